# Runs a translated spec file in a POSIX shell with 'local': dash, BusyBox ash.
#
# The records and descriptors are the same as in spec_runtime.sh. This file is slower: lists are
# quoted words, and texts go through files. These shells can redirect only one-digit descriptors, so
# they open other descriptors by their paths in /proc. The descriptors 8 and 9 replace 214 and 215.
# These shells have no 'builtin': if a spec defines a function 'printf' or 'read', the function must
# also do what the builtin does.

unset HX_RUNTIME
. /proc/self/fd/208 # the texts of blocks
__hx_fd=/proc/self/fd
__hx_newline='
'
__hx_records=190
__hx_own=
__hx_preserves=${HX_PRESERVES-}
unset HX_PRESERVES
__hx_cat=$(command -v cat) __hx_tr=$(command -v tr) __hx_cp=$(command -v cp)
__hx_timeout=${HX_TIMEOUT:-$(command -v timeout)}
__hx_sleep=${HX_SLEEP:-$(command -v sleep)}
__hx_job_wait=1 # seconds
__hx_stale=0 # grows by two if an example leaves a process running; from 16 on, do not wait
__hx_target= __hx_set=0 __hx_id= __hx_seen=-1 __hx_in_example= __hx_mute= __hx_unused= __hx_group_line=
__hx_when= __hx_expected= __hx_broken= __hx_has_data= __hx_nrows=0 __hx_row_args=
__hx_before_each= __hx_after_each= __hx_before_all= __hx_after_all=
__hx_before_call= __hx_after_call= __hx_before_run= __hx_after_run=
__hx_options= __hx_aliases= __hx_points= __hx_subjects=
__hx_vital='/usr/lib /usr/bin /etc /var'

__hx_report() { # NAME FIELDS...
  local __hx_name="$1"
  shift
  printf '%s\0' "$__hx_name" "$#" "$@" >>$__hx_fd/$__hx_records
}

__hx_quote() { # TEXT: set __hx_quoted to TEXT, quoted
  local __hx_rest="$1"
  __hx_quoted="'"
  while :; do
    case $__hx_rest in
      *\'*)
        __hx_quoted="$__hx_quoted${__hx_rest%%\'*}'\\''"
        __hx_rest=${__hx_rest#*\'}
        ;;
      *) break ;;
    esac
  done
  __hx_quoted="$__hx_quoted$__hx_rest'"
}

__hx_quote_all() { # WORDS...: set __hx_quoted to all words, quoted
  local __hx_all= __hx_word
  for __hx_word in "$@"; do
    __hx_quote "$__hx_word"
    __hx_all="$__hx_all $__hx_quoted"
  done
  __hx_quoted=$__hx_all
}

__hx_is_function() { # NAME
  case $(type "$1" 2>/dev/null) in *function*) ;; *) return 1 ;; esac
}

# --- which example runs -----------------------------------------------------------------------

__hx_take_target() {
  IFS=: read -r __hx_target __hx_set __hx_own <$__hx_fd/191 || exit 0
}

__hx_await() { # FIRST: wait until the target, the number of the next example, is at least FIRST
  while :; do
    [ -n "$__hx_target" ] || __hx_take_target
    [ "$__hx_target" -lt "$1" ] || return 0
    __hx_report missed "$__hx_target"
    __hx_target=
  done
}

__hx_open() { # FIRST LAST: return whether the target is in the group with these examples
  if [ "$1" -le "$__hx_seen" ] && [ "$1" -le "$2" ]; then
    __hx_report repeated "$1"
    return 1
  fi
  __hx_await "$1"
  __hx_seen=$2
  [ "$__hx_target" -le "$2" ] || return 1
  __hx_run_before_all
  set +e
  : >|$__hx_fd/198
}

__hx_enter() { # begin a group, in its subshell
  __hx_before_all= __hx_after_all=
  __hx_seen=-1 __hx_unused=${__hx_skip_reason+1}
  set -e
}

__hx_close() {
  set +e
  __hx_run_after_all
  printf '%s\n' "$__hx_target:$__hx_set:$__hx_own:$__hx_stale" >|$__hx_fd/198
  exit 0
}

__hx_leave() { # STATUS FIRST LAST LINE
  __hx_target=
  if [ "$1" -eq 0 ] && [ -s "$__hx_fd/198" ]; then
    IFS=: read -r __hx_target __hx_set __hx_own __hx_stale <$__hx_fd/198 || :
    : >|$__hx_fd/198 # otherwise the outer group would mistake this for its own end
  else
    __hx_read_file "$__hx_fd/196" # stderr of the hook, if a hook ended the group
    __hx_report_stderr lost "$2" "$3" "$1" "$4" "$__hx_text"
  fi
  __hx_report left "$2"
  set -e
}

__hx_example() { # FIRST [ROWS]: return whether to run the example now
  set -- "$1" "${2:-0}"
  if [ "$2" -eq 0 ] && [ "$1" -le "$__hx_seen" ]; then
    __hx_report repeated "$1"
    return 1
  fi
  __hx_await "$1"
  __hx_seen=$1
  while [ "$__hx_target" -lt "$(($1 + ($2 ? $2 : 1)))" ]; do
    __hx_run_before_all
    if [ -n "$__hx_broken" ]; then
      __hx_report broken "$__hx_broken"
    elif [ -n "${__hx_skip_reason+x}" ]; then
      __hx_report skip "$__hx_skip_reason"
    else
      __hx_make_ready "$@"
      return 0
    fi
    __hx_report finished
    __hx_report end "$__hx_target" 0
    __hx_target=
    __hx_await "$1"
  done
  return 1
}

__hx_make_ready() { # FIRST ROWS
  [ "$2" -eq 0 ] || eval "__hx_row_args=\$__hx_row_$((__hx_target - $1))"
  [ -z "${__hx_pending_reason+x}" ] || __hx_report pending "$__hx_pending_reason"
  [ ! -s "$__hx_fd/2" ] || __hx_report_stderr group_stderr
  : >|$__hx_fd/200
  : >|$__hx_fd/199
  __hx_id=$__hx_target
  set +e
}

# report RECORD with the number of bytes that code outside of examples wrote to stderr, and FIELDS
__hx_report_stderr() { # RECORD FIELDS...
  local __hx_record="$1" __hx_label __hx_position IFS=' 	'
  shift
  read -r __hx_label __hx_position <$__hx_fd/../fdinfo/2
  __hx_report "$__hx_record" "$__hx_position" "$@"
}

__hx_run() { # run the example, in its subshell
  __hx_records=$__hx_own
  __hx_find_case
  [ -z "$__hx_before_each" ] || __hx_run_before_each
  __hx_in_example=1
  eval "set -- $__hx_row_args"
  set -e
  __hx_it "$@"
  [ -z "$__hx_after_each" ] || __hx_run_after_each
  __hx_report finished
  exit 0
}

__hx_done() { # STATUS
  local __hx_directory
  __hx_target=
  __hx_await_jobs
  for __hx_directory in /usr/lib /usr/bin /etc /var; do
    case " $__hx_vital " in *" $__hx_directory "*)
      [ -d "$__hx_directory" ] || {
        __hx_report vanished "$__hx_directory"
        __hx_vital=
      }
      ;;
    esac
  done
  if [ "$1" -ne 0 ]; then
    __hx_report_stderr end_message
    __hx_read_file "$__hx_fd/196"
    __hx_report hook_stderr "$__hx_text"
  fi
  __hx_report end "$__hx_id" "$1"
  set -e
}

__hx_await_end() { # 211|212: fail if a process still has the other end open after some time
  [ "$__hx_stale" -ge 16 ] ||
    "$__hx_timeout" "$__hx_job_wait" "$__hx_cat" "$__hx_fd/$(($1 + __hx_stale))"
}

__hx_await_jobs() { # wait for processes that the example started; report those that do not end
  ! __hx_await_end 212 || return 0
  (
    set +fux
    set --
    for __hx_process in /proc/[0-9]*; do
      if [ "$__hx_process/fd/9" -ef "$__hx_fd/$((212 + __hx_stale))" ]; then
        __hx_command=$("$__hx_tr" '\000' ' ' <"$__hx_process/cmdline")
        set -- "$@" "${__hx_command% }"
      fi
    done 2>/dev/null
    [ "$#" -eq 0 ] || __hx_report running "$__hx_job_wait" "$@"
  )
  __hx_stale=$((__hx_stale + 2)) # use new pipes: do not wait for these processes again
}

__hx_end_of_file() {
  __hx_await 2147483647
  set +e
  __hx_run_after_all
  __hx_report eof
  exit 0
}

for __hx_part in hooks text evaluations expectations matchers; do
  . "${SHELLSPEC_LIB}/posix/$__hx_part.sh"
done
unset __hx_part

# --- helper modules -----------------------------------------------------------------------------

minimum_version() { :; }
info() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*"; }
error() { printf '%s\n' "$*"; exit 1; }
abort() { printf '%s\n' "${1-}"; exit "${2-1}"; }
setenv() { export "$@"; }
unsetenv() { unset -v "$@"; }

import() { # NAME [ARGS...]
  local IFS=: __hx_directory __hx_module_name="$1"
  shift
  for __hx_directory in $SHELLSPEC_LOAD_PATH; do
    if [ -e "$__hx_directory/$__hx_module_name.sh" ]; then
      unset IFS
      . "$__hx_directory/$__hx_module_name.sh"
      return
    fi
  done
  printf 'there is no helper module %s in %s\n' "$__hx_module_name" "$SHELLSPEC_LOAD_PATH" >&2
  exit 1
}

shellspec_import() { import "$@"; }

__hx_precheck() { # MODULE: run its precheck, with the variables that a precheck may read
  local VERSION="$SHELLSPEC_VERSION" SHELL_TYPE="$SHELLSPEC_SHELL_TYPE" SHELL_VERSION=
  "$1_precheck"
}

if [ -n "${HX_PATH+x}" ]; then
  PATH=$HX_PATH
  unset HX_PATH
fi
eval "$(printf "SHELLSPEC_%s='\\\\%s' " SOH 001 STX 002 ETX 003 EOT 004 ENQ 005 ACK 006 BEL 007 \
  BS 010 TAB 011 HT 011 VT 013 FF 014 CR 015 ESC 033 RS 036 US 037 | {
  read -r __hx_constants
  printf "$__hx_constants"
})"
SHELLSPEC_LF=$__hx_newline SHELLSPEC_IFS=" $SHELLSPEC_TAB$__hx_newline"
export SHELLSPEC_SHELL_VERSION=
if [ -n "${HX_ENV_FROM-}" ]; then
  # keep the exported variables of the file, but not its functions and its output
  eval "$(
    . "$HX_ENV_FROM" >/dev/null 2>&1
    unset HX_ENV_FROM
    export -p
  )"
  unset HX_ENV_FROM
fi
for __hx_module in $HX_REQUIRE; do
  import "$__hx_module"
  if __hx_is_function "${__hx_module}_precheck"; then
    __hx_precheck=$(__hx_precheck "$__hx_module" 2>&1) || {
      __hx_report precheck "$__hx_module" "$?" "$__hx_precheck"
      exit 1
    }
    __hx_precheck "$__hx_module" >/dev/null 2>&1
  fi
  ! __hx_is_function "${__hx_module}_loaded" || "${__hx_module}_loaded"
done
for __hx_module in $HX_REQUIRE; do
  ! __hx_is_function "${__hx_module}_configure" || "${__hx_module}_configure"
done
case $- in *e*) __hx_run_errexit=1 ;; esac
unset __hx_module __hx_precheck
unset -f minimum_version info warn error abort setenv unsetenv __hx_precheck
__hx_report ready
set -e
