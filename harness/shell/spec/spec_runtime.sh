# Runs a translated spec file: sourced by bash through BASH_ENV before it reads the script.
#
# Descriptors, all made by the parent:
#   190 records to the parent     191 the examples to run       192 193 captured stdout, stderr
#   194 195 an example's stray stderr, stdout                  196 a hook's stderr
#   197 stdin of an evaluation    198 target on its way up     199 preserved variables
#   200 201 202 the virtual clock (clock.sh)
#   203 to 206 as 192 to 195, for every other example: the parent reads what one left while the
#   next one runs, and empties it before a third                207 the parent's answers
#   208 bodies of groups and examples, read once                209 210 the records of an example
#   211 212 pipes whose other ends, 214 and 215, an evaluation and an example open: they are at
#   their end once all processes that were started there have ended
#   189 /dev/null
#
# A record is its name, the number of its fields, the fields; each ends with NUL. The parent
# sends the number of the example to run next, and which set of descriptors it writes to, with
# that of its records: an example writes records to a file, which wakes nobody until it has ended.
# Everything here calls builtins by 'builtin', so that a spec may redefine any command; only eval
# is called plainly, since 'builtin eval' loses the exemption from errexit that a condition gives
# (bash 5.2).

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
# what '%preserve' and a clock of its own leave, others' examples must not find
__hx_preserves=${HX_PRESERVES-}
__hx_reset=$__hx_preserves${HX_CLOCK-}
unset HX_PRESERVES
__hx_target=
__hx_set=0
__hx_id=
__hx_seen=-1
__hx_in_example=
__hx_mute=
__hx_special= # what keeps an evaluation from being the usual case
__hx_when=
__hx_expected=
__hx_status=
__hx_job_wait=1 # seconds
__hx_stale= # whether a process that did not end holds the pipes
__hx_broken=
__hx_has_data=
__hx_nrows=0
__hx_row_args=()
__hx_before_each=() __hx_after_each=() __hx_before_all=() __hx_after_all=()
__hx_before_call=() __hx_after_call=() __hx_before_run=() __hx_after_run=()
__hx_options=()
__hx_vital='/usr/lib /usr/bin /etc /var'
declare -A __hx_aliases=() __hx_points=() __hx_syntax=() __hx_subjects=()

# A lookup counts itself in the entry that it finds, and a fork copies each page written to:
# entries made one after the other lie together.
for __hx_name in example it run call the done; do
  eval "__hx_$__hx_name() { :; }"
done
unset __hx_name

__hx_report() {
  builtin printf '%s\0' "$1" $(($# - 1)) "${@:2}" >&$__hx_records
}

# --- which example runs -----------------------------------------------------------------------

__hx_await() { # FIRST: return once the target is FIRST or later
  while :; do
    if [[ -z $__hx_target ]]; then
      IFS=: builtin read -r -u 191 __hx_target __hx_set __hx_own || builtin exit 0
    fi
    ((__hx_target < $1)) || return 0
    __hx_report missed "$__hx_target"
    __hx_target=
  done
}

__hx_open() { # FIRST LAST: whether the group holds the target
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

__hx_enter() { # in the group's own shell
  __hx_before_all=() __hx_after_all=()
  __hx_seen=-1
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
    : >|/proc/self/fd/198 # or a group around it would seem closed
    [[ -z $__hx_stale ]] || __hx_renew_pipes
  else
    local __hx_text
    __hx_read_file /proc/self/fd/196 # of the hook that ended it, if one did
    __hx_report_stderr lost "$2" "$3" "$1" "$4" "$__hx_text"
  fi
  __hx_report left "$2"
  builtin set -e
}

# A function is copied whole each time it is called, and what is copied after a fork costs page
# faults: what runs for every example holds the usual case only.

__hx_example() { # FIRST [ROWS]: whether to run an example now
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

__hx_report_stderr() { # RECORD FIELDS...: first of them, how much was written outside of examples to stderr so far
  local __hx_label __hx_position
  IFS=$' \t' builtin read -r __hx_label __hx_position </proc/self/fdinfo/2
  __hx_report "$1" "$__hx_position" "${@:2}"
}

__hx_prepare() { # FIRST ROWS: what an example needs beyond the usual; fails where none runs now
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
  # each example begins with a clock at which nobody slept, and without what others preserved
  [[ ! -s /proc/self/fd/200 ]] || : >|/proc/self/fd/200
  [[ ! -s /proc/self/fd/199 ]] || : >|/proc/self/fd/199
}

__hx_run() { # in the example's own shell
  __hx_records=$__hx_own
  [[ -z ${__hx_before_each+x} ]] || __hx_run_before_each
  __hx_in_example=1
  builtin set -e
  __hx_it "${__hx_row_args[@]}"
  [[ -z ${__hx_after_each+x} ]] || __hx_run_after_each
  # no status of its own shows that, since one that is not 0 springs a trap on ERR
  builtin printf '%s\0' finished 0 >&$__hx_records
  builtin exit 0
}

__hx_done() { # STATUS
  __hx_target=
  builtin read -t 0 -u 212 || __hx_await_jobs
  if [[ ! -d /usr/lib/../bin/../../etc/../var ]]; then # of all vital directories by one call
    __hx_report_vanished
  fi
  if (($1)); then # the shell has named the signal, or a trap on ERR has written something
    __hx_report_stderr end_message
    __hx_report_hook_stderr
  fi
  builtin printf '%s\0' end 2 "$__hx_id" "$1" >&190
  builtin set -e
}

__hx_report_hook_stderr() { # in case a hook ended the example
  local __hx_text
  __hx_read_file /proc/self/fd/196
  __hx_report hook_stderr "$__hx_text"
}

__hx_await_jobs() { # wait for what the example started; report what does not end
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

__hx_renew_pipes() { # what holds the old ones is not waited for again
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
# traces the lines that run, for coverage; the trace has a descriptor of its own
if [[ -n ${HX_TRACE_FD-} ]]; then
  builtin export BASH_ENV=${BASH_SOURCE[0]%/*}/../warm_shell/trace.sh
  . "$BASH_ENV"
fi
builtin set -e
