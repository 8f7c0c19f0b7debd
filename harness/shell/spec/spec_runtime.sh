# Runs a translated spec file. Bash sources this file through BASH_ENV before it reads the script.
#
# Descriptors, which the parent process opens:
#   189          /dev/null
#   190          records to the parent
#   191          the examples to run
#   192 193      captured stdout and stderr
#   194 195      an example's stray stderr and stdout
#   196          a hook's stderr
#   197          stdin of an evaluation
#   198          the target, for outer groups
#   199          preserved variables
#   200 201 202  the virtual clock (clock.sh)
#   203 to 206   the same as 192 to 195, for every second example
#   207          the parent's answers
#   208          bodies of groups and examples, read once
#   209 210      the records of an example
#   211 212      pipes whose writing ends, 214 and 215, an evaluation and an example open
#
# There are two sets of outputs, since the parent reads the output of an example while the next
# example runs. Reading from 211 or 212 ends when all processes that the evaluation or the example
# started have ended.
#
# A record is a name, the number of fields, and the fields; each ends with NUL. For each example,
# the parent sends the number of the example, the set of descriptors for its output, and the
# descriptor for its records. An example writes its records to a file, so that the parent does not
# wake up before the example ends.
#
# This file calls builtins by 'builtin', so that a spec may redefine any command. The exception is
# eval: in a condition, 'builtin eval' is not exempt from errexit (bash 5.2).

unset BASH_ENV
__hx_at=190
for __hx_fd in $HX_FDS; do
  eval "exec $__hx_at<&$__hx_fd $__hx_fd<&-"
  __hx_at=$((__hx_at + 1))
done
exec 189<>/dev/null
builtin mapfile -d '' -u 208 __hx_text
exec 208<&-
unset HX_FDS __hx_fd
__hx_newline=$'\n'
__hx_records=190
__hx_own=
# whether to reset preserved variables and the virtual clock before each example
__hx_preserves=${HX_PRESERVES-}
__hx_reset=$__hx_preserves${HX_CLOCK-}
unset HX_PRESERVES
__hx_target=
__hx_set=0
__hx_id=
__hx_seen=-1
__hx_in_example=
__hx_mute=
__hx_special= # why the evaluation can't take the fast path
__hx_when=
__hx_expected=
__hx_status=
__hx_job_wait=1 # seconds
__hx_stale= # whether a process of an earlier example still has the pipes open
__hx_broken=
__hx_group_line=
__hx_unused= # whether all examples of the group are skipped, so that it needs no BeforeAll
__hx_has_data=
__hx_nrows=0
__hx_row_args=()
__hx_before_each=() __hx_after_each=() __hx_before_all=() __hx_after_all=()
__hx_before_call=() __hx_after_call=() __hx_before_run=() __hx_after_run=()
__hx_options=()
__hx_vital='/usr/lib /usr/bin /etc /var'
declare -A __hx_aliases=() __hx_points=() __hx_syntax=() __hx_subjects=()

# Bash writes a counter into each hash entry that it looks up, and each page that is written after a
# fork is copied. Entries that are created together are on the same pages.
for __hx_name in example it run call the done; do
  eval "__hx_$__hx_name() { :; }"
done
unset __hx_name

__hx_report() {
  builtin printf '%s\0' "$1" "$(($# - 1))" "${@:2}" >&"$__hx_records"
}

# --- which example runs -----------------------------------------------------------------------

__hx_await() { # FIRST: wait until the target, the number of the next example, is at least FIRST
  while :; do
    if [[ -z $__hx_target ]]; then
      IFS=: builtin read -r -u 191 __hx_target __hx_set __hx_own || builtin exit 0
    fi
    ((__hx_target < $1)) || return 0
    __hx_report missed "$__hx_target"
    __hx_target=
  done
}

__hx_open() { # FIRST LAST: return whether the target is in the group with these examples
  if (($1 <= __hx_seen && $1 <= $2)); then
    __hx_report repeated "$1"
    return 1
  fi
  __hx_await "$1"
  __hx_seen=$2
  ((__hx_target <= $2)) || return 1
  __hx_run_before_all
  builtin set +e
  : >|/proc/self/fd/198
}

__hx_enter() { # begin a group, in its subshell
  __hx_before_all=() __hx_after_all=()
  __hx_seen=-1 __hx_unused=${__hx_skip_reason+1}
  builtin set -e
}

__hx_close() {
  builtin set +e
  __hx_run_after_all
  builtin printf '%s\n' "$__hx_target:$__hx_set:$__hx_own:$__hx_stale" >|/proc/self/fd/198
  builtin exit 0
}

__hx_leave() { # STATUS FIRST LAST LINE
  __hx_target=
  if (($1 == 0)) && [[ -s /proc/self/fd/198 ]]; then
    IFS=: builtin read -r __hx_target __hx_set __hx_own __hx_stale </proc/self/fd/198 || :
    : >|/proc/self/fd/198 # otherwise the outer group would mistake this for its own end
    [[ -z $__hx_stale ]] || __hx_renew_pipes
  else
    local __hx_text
    __hx_read_file /proc/self/fd/196 # stderr of the hook, if a hook ended the group
    __hx_report_stderr lost "$2" "$3" "$1" "$4" "$__hx_text"
  fi
  __hx_report left "$2"
  builtin set -e
}

# Bash copies a whole function at each call, and copies after a fork cost page faults. So a function
# that runs for every example has only the code for the usual case.

__hx_example() { # FIRST [ROWS]: return whether to run the example now
  [[ -n $__hx_target ]] || IFS=: builtin read -r -u 191 __hx_target __hx_set __hx_own ||
    builtin exit 0
  if [[ $1 != "$__hx_target" || $1 -le $__hx_seen || -s /proc/self/fd/2 ||
    -n ${2-}${__hx_before_all+x}$__hx_broken${__hx_skip_reason+x}${__hx_pending_reason+x} ||
    -n $__hx_reset && (-s /proc/self/fd/199 || -s /proc/self/fd/200) ]]; then
    __hx_prepare "$1" "${2:-0}" || return 1
  fi
  __hx_seen=$1 __hx_id=$__hx_target
  builtin set +e
}

# report RECORD with the number of bytes that code outside of examples wrote to stderr, and FIELDS
__hx_report_stderr() { # RECORD FIELDS...
  local __hx_label __hx_position
  IFS=$' \t' builtin read -r __hx_label __hx_position </proc/self/fdinfo/2
  __hx_report "$1" "$__hx_position" "${@:2}"
}

__hx_prepare() { # FIRST ROWS: prepare an unusual example; fail if no example is to run now
  if (($2 == 0 && $1 <= __hx_seen)); then
    __hx_report repeated "$1"
    return 1
  fi
  __hx_await "$1"
  __hx_seen=$1
  while ((__hx_target < $1 + ($2 ? $2 : 1))); do
    __hx_run_before_all
    if [[ -n $__hx_broken ]]; then
      __hx_report broken "$__hx_broken"
    elif [[ -n ${__hx_skip_reason+x} ]]; then
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
  if (($2)); then
    eval "__hx_row_args=(\"\${__hx_row_$((__hx_target - $1))[@]}\")"
  fi
  [[ -z ${__hx_pending_reason+x} ]] || __hx_report pending "$__hx_pending_reason"
  [[ ! -s /proc/self/fd/2 ]] || __hx_report_stderr group_stderr
  # reset the clock's sleeps and the preserved variables of other examples
  [[ ! -s /proc/self/fd/200 ]] || : >|/proc/self/fd/200
  [[ ! -s /proc/self/fd/199 ]] || : >|/proc/self/fd/199
}

__hx_run() { # run the example, in its subshell
  __hx_records=$__hx_own __hx_case=$BASHPID
  [[ -z ${__hx_before_each+x} ]] || __hx_run_before_each
  __hx_in_example=1
  builtin set -e
  __hx_it "${__hx_row_args[@]}"
  [[ -z ${__hx_after_each+x} ]] || __hx_run_after_each
  # do not report the end by a status, since a status other than 0 runs a trap on ERR
  builtin printf '%s\0' finished 0 >&"$__hx_records"
  builtin exit 0
}

__hx_done() { # STATUS
  __hx_target=
  builtin read -t 0 -u 212 || __hx_await_jobs
  if [[ ! -d /usr/lib/../bin/../../etc/../var ]]; then # checks all vital directories in one call
    __hx_report_vanished
  fi
  if (($1)); then # the shell may have named a signal, or a trap on ERR may have printed a message
    __hx_report_stderr end_message
    __hx_report_hook_stderr
  fi
  builtin printf '%s\0' end 2 "$__hx_id" "$1" >&190
  builtin set -e
}

__hx_report_hook_stderr() { # report the hook's stderr, in case a hook ended the example
  local __hx_text
  __hx_read_file /proc/self/fd/196
  __hx_report hook_stderr "$__hx_text"
}

__hx_await_jobs() { # wait for processes that the example started; report those that do not end
  builtin read -t "$__hx_job_wait" -u 212
  (($? > 128)) || return 0
  (
    builtin set +fux
    builtin shopt -u failglob
    builtin shopt -s nullglob
    __hx_jobs=()
    for __hx_process in /proc/[0-9]*; do
      if [[ $__hx_process/fd/215 -ef /proc/self/fd/212 ]]; then
        IFS=' ' builtin mapfile -d '' -t __hx_words <"$__hx_process/cmdline"
        IFS=' '
        __hx_jobs+=("${__hx_words[*]}")
      fi
    done 2>&189
    ((${#__hx_jobs[@]} == 0)) || __hx_report running "$__hx_job_wait" "${__hx_jobs[@]}"
  )
  __hx_stale=1
  __hx_renew_pipes
}

__hx_renew_pipes() { # open new pipes, to not wait again for processes that have the old pipes open
  exec 211< <(:) 212< <(:)
}

__hx_report_vanished() {
  local __hx_directory IFS=' '
  for __hx_directory in $__hx_vital; do
    [[ -d $__hx_directory ]] || __hx_report vanished "$__hx_directory"
  done
  __hx_vital=
}

__hx_end_of_file() {
  __hx_await 2147483647
  builtin set +e
  __hx_run_after_all
  __hx_report eof
  builtin exit 0
}

for __hx_part in hooks marks text evaluations mocks expectations matchers; do
  . "${BASH_SOURCE[0]%/*}/runtime/$__hx_part.sh"
done
unset __hx_part

if [[ -n ${HX_PATH+x} ]]; then
  PATH=$HX_PATH
  unset HX_PATH
fi
. "${BASH_SOURCE[0]%/*}/runtime/helper_modules.sh"
[[ -z ${HX_CLOCK-} ]] || . "$HX_CLOCK"
__hx_report ready
# trace the lines that run, for coverage; the trace goes to a separate descriptor
if [[ -n ${HX_TRACE_FD-} ]]; then
  builtin export BASH_ENV=${BASH_SOURCE[0]%/*}/../warm_shell/trace.sh
  . "$BASH_ENV"
fi
builtin set -e
