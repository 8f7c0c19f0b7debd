# Runs a translated spec file: sourced by bash through BASH_ENV before it reads the script.
#
# Descriptors, all made by the parent:
#   190 records to the parent     191 the examples to run       192 193 captured stdout, stderr
#   194 195 an example's stray stderr, stdout                  196 a hook's stderr
#   197 stdin of an evaluation    198 target on its way up     199 preserved variables
#   200 201 202 the virtual clock (clock.sh)
#   203 to 206 as 192 to 195, for every other example: the parent reads what one left while the
#   next one runs, and empties it before a third                207 the parent's answers
#   208 bodies of groups and examples, read once                209 210 what an example tells
#   189 /dev/null
#
# A record is its name, the number of its fields, the fields; each ends with NUL. The parent
# sends the number of the example to run next, and which set of descriptors it writes to, with
# that of its records: an example tells into a file, which wakes nobody until it has ended.
# Everything here calls builtins by 'builtin', so that a spec may redefine any command; only eval
# is called plainly, since 'builtin eval' loses the exemption from errexit that a condition gives
# (bash 5.2).

unset BASH_ENV
__hx_at=190
for __hx_fd in $HX_FDS; do
  eval "exec $__hx_at<&$__hx_fd $__hx_fd<&-"
  __hx_at=$((__hx_at + 1))
done
exec 189</dev/null
builtin mapfile -d '' -u 208 __hx_text
exec 208<&-
unset HX_FDS __hx_fd
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
__hx_spoken=
__hx_status=
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

__hx_tell() {
  builtin printf '%s\0' "$1" $(($# - 1)) "${@:2}" >&$__hx_records
}

# --- which example runs -----------------------------------------------------------------------

__hx_await() { # FIRST: return once the target is FIRST or later
  while :; do
    if [[ -z $__hx_target ]]; then
      IFS=: builtin read -r -u 191 __hx_target __hx_set __hx_own || builtin exit 0
    fi
    ((__hx_target < $1)) || return 0
    __hx_tell missed "$__hx_target"
    __hx_target=
  done
}

__hx_open() { # FIRST LAST: whether the group holds the target
  if (($1 <= __hx_seen && $1 <= $2)); then
    __hx_tell repeated "$1"
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
  builtin printf '%s\n' "$__hx_target:$__hx_set:$__hx_own" >|/proc/self/fd/198
  builtin exit 0
}

__hx_leave() { # STATUS FIRST LAST LINE
  __hx_target=
  if (($1 == 0)) && [[ -s /proc/self/fd/198 ]]; then
    IFS=: builtin read -r __hx_target __hx_set __hx_own </proc/self/fd/198 || :
    : >|/proc/self/fd/198 # or a group around it would seem closed
  else
    __hx_tell lost "$2" "$3" "$1" "$4"
  fi
  __hx_tell left "$2"
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

__hx_tell_complaint() { # RECORD: how much was written outside of examples to stderr so far
  local __hx_label __hx_position
  IFS=$' \t' builtin read -r __hx_label __hx_position </proc/self/fdinfo/2
  __hx_tell "$1" "$__hx_position"
}

__hx_prepare() { # FIRST ROWS: what an example needs beyond the usual; fails where none runs now
  if (($2 == 0 && $1 <= __hx_seen)); then
    __hx_tell repeated "$1"
    return 1
  fi
  __hx_await "$1"
  __hx_seen=$1
  while ((__hx_target < $1 + ($2 ? $2 : 1))); do
    __hx_run_before_all
    if [[ -n $__hx_broken ]]; then
      __hx_tell broken "$__hx_broken"
    elif [[ -n ${__hx_skip_reason+x} ]]; then
      __hx_tell skip "$__hx_skip_reason"
    else
      __hx_make_ready "$@"
      return 0
    fi
    __hx_tell finished
    __hx_tell end "$__hx_target" 0
    __hx_target=
    __hx_await "$1"
  done
  return 1
}

__hx_make_ready() { # FIRST ROWS
  if (($2)); then
    eval "__hx_row_args=(\"\${__hx_row_$((__hx_target - $1))[@]}\")"
  fi
  [[ -z ${__hx_pending_reason+x} ]] || __hx_tell pending "$__hx_pending_reason"
  [[ ! -s /proc/self/fd/2 ]] || __hx_tell_complaint complained
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
  # no status of its own tells that, since one that is not 0 springs a trap on ERR
  builtin printf '%s\0' finished 0 >&$__hx_records
  builtin exit 0
}

__hx_done() { # STATUS
  __hx_target=
  if [[ ! -d /usr/lib || ! -d /usr/bin || ! -d /etc || ! -d /var ]]; then
    __hx_tell_vanished
  fi
  builtin printf '%s\0' end 2 "$__hx_id" "$1" >&190
  if (($1)); then # the shell has said by which signal, or a trap on ERR has said something
    __hx_tell_complaint obituary
  fi
  builtin set -e
}

__hx_tell_vanished() {
  local __hx_directory IFS=' '
  for __hx_directory in $__hx_vital; do
    [[ -d $__hx_directory ]] || __hx_tell vanished "$__hx_directory"
  done
  __hx_vital=
}

__hx_end_of_file() {
  __hx_await 2147483647
  builtin set +e
  __hx_run_after_all
  __hx_tell eof
  builtin exit 0
}

# --- hooks ------------------------------------------------------------------------------------

__hx_hook() { # KIND CODE...
  eval "__hx_$1+=(\"\${@:2}\")"
  case $1 in *_call) __hx_special=hooked ;; esac
}

__hx_eval() {
  eval "$__hx_code"
}

__hx_try() { # KIND: run __hx_code; a status or any stderr is a failure
  __hx_hook_status=0
  __hx_eval 2>|/proc/self/fd/196 </dev/null || __hx_hook_status=$?
  if ((__hx_hook_status)) || [[ -s /proc/self/fd/196 ]]; then
    __hx_read_file /proc/self/fd/196
    __hx_tell hook "$1" "$__hx_code" "$__hx_hook_status" "$__hx_text"
    return 1
  fi
}

__hx_run_before_each() {
  for __hx_code in "${__hx_before_each[@]}"; do
    __hx_try before_each || {
      __hx_tell finished
      builtin exit 0
    }
  done
}

__hx_run_after_each() {
  builtin set +e
  for ((__hx_at = ${#__hx_after_each[@]} - 1; __hx_at >= 0; __hx_at--)); do
    __hx_code=${__hx_after_each[__hx_at]}
    __hx_try after_each || break
  done
}

__hx_run_before_all() {
  ((${#__hx_before_all[@]})) || return 0
  local __hx_errexit=$-
  builtin set +e
  local __hx_hooks=("${__hx_before_all[@]}")
  __hx_before_all=()
  for __hx_code in "${__hx_hooks[@]}"; do
    __hx_try before_all || {
      __hx_broken="BeforeAll '$__hx_code' failed"
      break
    }
  done
  case $__hx_errexit in *e*) builtin set -e ;; esac
}

__hx_run_after_all() {
  for ((__hx_at = ${#__hx_after_all[@]} - 1; __hx_at >= 0; __hx_at--)); do
    __hx_code=${__hx_after_all[__hx_at]}
    __hx_try after_all || break
  done
}

before_each() { __hx_hook before_each "$@"; }
after_each() { __hx_hook after_each "$@"; }
before_all() { __hx_hook before_all "$@"; }
after_all() { __hx_hook after_all "$@"; }

# --- marks ------------------------------------------------------------------------------------

__hx_skip() { # [REASON]
  if [[ -n $__hx_in_example ]]; then
    [[ -n $__hx_mute ]] || __hx_tell skip "${1-}"
    __hx_mute=1 __hx_special=skipped
  else
    [[ -n ${__hx_skip_reason+x} ]] || __hx_skip_reason=${1-}
  fi
}

__hx_skip_if() { # REASON CMD...
  if ("${@:2}") >/dev/null 2>&1; then
    __hx_skip "$1"
  fi
}

__hx_pending() { # [REASON]
  if [[ -n $__hx_in_example ]]; then
    [[ -n $__hx_mute ]] || __hx_tell pending "${1-}"
  else
    __hx_pending_reason=${1-}
  fi
}

__hx_misuse() { # LINE MESSAGE
  [[ -n $__hx_mute ]] || __hx_tell misuse "$1" "$2"
}

__hx_row() {
  eval "__hx_row_$__hx_nrows=(\"\$@\")"
  __hx_nrows=$((__hx_nrows + 1))
}

__hx_path() {
  local __hx_pair
  for __hx_pair in "$@"; do
    case $__hx_pair in
      *=*) __hx_aliases[${__hx_pair%%=*}]=${__hx_pair#*=} ;;
    esac
  done
}

__hx_set() {
  __hx_options+=("$@")
  __hx_special=options
}

__hx_apply_options() {
  local __hx_option
  for __hx_option in "${__hx_options[@]}"; do
    case $__hx_option in
      *:on) builtin set -o "${__hx_option%:*}" 2>/dev/null || builtin shopt -s "${__hx_option%:*}" ;;
      *:off) builtin set +o "${__hx_option%:*}" 2>/dev/null || builtin shopt -u "${__hx_option%:*}" ;;
    esac
  done
}

# --- text -------------------------------------------------------------------------------------

__hx_puts() {
  local IFS=' '
  builtin printf '%s' "$*"
}

__hx_putsn() {
  local IFS=' '
  builtin printf '%s\n' "$*"
}

__hx_printf() {
  builtin printf "$@"
}

__hx_sleep() {
  builtin command -p sleep "$@"
}

__hx_logger() {
  local IFS=' '
  builtin printf '%s\n' "$*" >>"${SHELLSPEC_LOGFILE:-/dev/null}"
}

__hx_expand() { # TEXT ARGS...: print TEXT as a heredoc would, with ARGS as $1...
  local __hx_text=$1
  shift
  eval "IFS= builtin read -r -d '' __hx_text <<__HX_TEXT__
${__hx_text}__HX_TEXT__
" || :
  builtin printf '%s' "$__hx_text"
}

__hx_read_file() { # FILE: its text into __hx_text, without NUL
  local __hx_part=
  __hx_text=
  {
    while IFS= builtin read -r -d '' __hx_part; do
      __hx_text+=$__hx_part
    done
  } <"$1"
  __hx_text+=$__hx_part
}

__hx_slurp() { # stdin to stdout, with a final newline
  local __hx_part=
  while IFS= builtin read -r -d '' __hx_part; do
    builtin printf '%s' "$__hx_part"
  done
  builtin printf '%s' "$__hx_part"
  [[ $__hx_part == *$'\n' ]] || builtin printf '\n'
}

# --- evaluations ------------------------------------------------------------------------------

__hx_begin() { # LINE: whether an evaluation may run now
  [[ -z $__hx_mute ]] || return 1
  if [[ -n $__hx_when ]]; then
    __hx_tell misuse "$1" "There is a second 'When'; an example takes one."
    return 1
  fi
  __hx_when=$1
  if [[ -n $__hx_spoken ]]; then
    __hx_tell misuse "$1" "'When' stands after an expectation; it must come first."
    return 1
  fi
  __hx_stdin=/dev/null
  if [[ -n $__hx_has_data ]]; then
    __hx_data "${__hx_row_args[@]}" >|/proc/self/fd/197 || :
    __hx_stdin=/proc/self/fd/197
  fi
}

__hx_finish() { # STATUS
  __hx_status=$1
  [[ -z $__hx_preserves ]] || __hx_restore
  __hx_tell when "$__hx_when" "$1"
}

__hx_call() { # LINE F ARGS...: the usual case; each function called would cost page faults
  if [[ -n $__hx_special ]]; then
    __hx_call_specially "$@"
    return 0
  fi
  __hx_special=evaluated __hx_when=$1
  {
    "${@:2}" && __hx_status=0 || __hx_status=$?
    case ${BASH_XTRACEFD-$-} in *x*) builtin set +x ;; esac
  } >&$((192 + __hx_set)) 2>&$((193 + __hx_set)) <&189
  [[ -z $__hx_preserves ]] || __hx_restore
  builtin printf '%s\0' when 2 "$__hx_when" "$__hx_status" >&$__hx_records
}

__hx_call_specially() { # LINE F ARGS...
  __hx_begin "$1" || return 0
  shift
  if ((${#__hx_options[@]} + ${#__hx_before_call[@]} + ${#__hx_after_call[@]})); then
    __hx_apply_options
    set -- __hx_hooked call "$@"
  fi
  # what the code traces is its stderr; what comes after it is not
  {
    "$@" && __hx_status=0 || __hx_status=$?
    case ${BASH_XTRACEFD-$-} in *x*) builtin set +x ;; esac
  } >&$((192 + __hx_set)) 2>&$((193 + __hx_set)) <"$__hx_stdin"
  __hx_finish "$__hx_status"
}

__hx_hooked() { # KIND F ARGS...: an evaluation between its hooks
  if [[ $1 == call ]]; then
    set -- __hx_before_call __hx_after_call "${@:2}"
  else
    set -- __hx_before_run __hx_after_run "${@:2}"
  fi
  local -n __hx_before=$1 __hx_after=$2
  shift 2
  local __hx_at
  for ((__hx_at = 0; __hx_at < ${#__hx_before[@]}; __hx_at++)); do
    __hx_code=${__hx_before[__hx_at]}
    __hx_eval || return $?
  done
  "$@" || return $?
  for ((__hx_at = ${#__hx_after[@]} - 1; __hx_at >= 0; __hx_at--)); do
    __hx_code=${__hx_after[__hx_at]}
    __hx_eval || return $?
  done
}

__hx_evaluate() { # F ARGS...: in a subshell that errexit can end
  local __hx_errexit=$-
  builtin set +e
  { # what the shell says of a subshell that a signal ended belongs to the evaluation
    (__hx_isolated "$@")
    __hx_status=$?
  } >&$((192 + __hx_set)) 2>&$((193 + __hx_set)) <"$__hx_stdin"
  case $__hx_errexit in *e*) builtin set -e ;; esac
  __hx_finish "$__hx_status"
}

__hx_isolated() {
  [[ -z ${__hx_run_errexit-} ]] || builtin set -e
  __hx_apply_options
  if ((${#__hx_before_run[@]} + ${#__hx_after_run[@]})); then
    local __hx_at
    for ((__hx_at = 0; __hx_at < ${#__hx_before_run[@]}; __hx_at++)); do
      __hx_code=${__hx_before_run[__hx_at]}
      __hx_eval || builtin exit $?
    done
    "$@"
    __hx_status=$?
    ((__hx_status == 0)) || builtin exit "$__hx_status"
    for ((__hx_at = ${#__hx_after_run[@]} - 1; __hx_at >= 0; __hx_at--)); do
      __hx_code=${__hx_after_run[__hx_at]}
      __hx_eval || builtin exit $?
    done
  else
    "$@"
  fi
}

__hx_run_function() { # LINE F ARGS...
  __hx_begin "$1" || return 0
  __hx_evaluate "${@:2}"
}

__hx_run_command() { # LINE C ARGS...
  __hx_begin "$1" || return 0
  __hx_evaluate __hx_external "${@:2}"
}

__hx_external() {
  if [[ $1 == */* ]] || ! builtin type -P -- "$1" >/dev/null; then
    builtin printf '%s: command not found\n' "$1" >&2
    return 127
  fi
  if ((${#__hx_after_run[@]})); then
    (builtin exec -- "$@")
  else
    builtin exec -- "$@"
  fi
}

__hx_run_script() { # LINE S ARGS...
  __hx_begin "$1" || return 0
  __hx_evaluate __hx_script "${@:2}"
}

__hx_script() {
  if [[ ! -e $1 ]]; then
    builtin printf '%s: No such file or directory\n' "$1" >&2
    return 127
  fi
  if [[ ! -x $1 || -d $1 ]]; then
    builtin printf '%s: Permission denied\n' "$1" >&2
    return 126
  fi
  if ((${#__hx_after_run[@]})); then
    ("$SHELLSPEC_SHELL" "$@")
  else
    builtin exec "$SHELLSPEC_SHELL" "$@"
  fi
}

__hx_run_source() { # LINE S ARGS...
  __hx_begin "$1" || return 0
  __hx_evaluate __hx_source "${@:2}"
}

__hx_source() {
  unset __SOURCED__
  builtin declare -F test >/dev/null || test() {
    (($# == 0)) || builtin test "$@"
  }
  __() {
    local __hx_function=${__hx_points[$1]-}
    [[ -n $__hx_function ]] || return 0
    "$__hx_function" "${@:2:$#-2}"
  }
  . "$@"
}

__hx_intercept() { # NAME[:FUNC]...
  local __hx_point
  for __hx_point in "$@"; do
    case $__hx_point in
      *:*) __hx_points[${__hx_point%%:*}]=${__hx_point#*:} ;;
      *) __hx_points[$__hx_point]="__${__hx_point}__" ;;
    esac
  done
}

__hx_assert() { # LINE CMD...
  [[ -z $__hx_mute ]] || return 0
  __hx_spoken=1 __hx_special=spoken
  local __hx_errexit=$-
  builtin set +e
  (
    builtin set -e
    "${@:2}"
  ) </dev/null 2>|/proc/self/fd/196
  set -- "$1" $? "${@:2}"
  case $__hx_errexit in *e*) builtin set -e ;; esac
  __hx_read_file /proc/self/fd/196
  __hx_tell assert "$1" "$2" "$__hx_text" "${@:3}"
}

__hx_dump() {
  __hx_read_file /proc/self/fd/$((192 + __hx_set))
  builtin printf '[stdout]\n%s\n' "$__hx_text"
  __hx_read_file /proc/self/fd/$((193 + __hx_set))
  builtin printf '[stderr]\n%s\n[status] %s\n' "$__hx_text" "${__hx_status-}"
}

# --- preserved variables ----------------------------------------------------------------------

__hx_preserve() { # V[:NEW]...
  local __hx_pair
  for __hx_pair in "$@"; do
    builtin printf '%s=%s=' "${__hx_pair%%:*}" "${__hx_pair#*:}" >>/proc/self/fd/199
    builtin declare -p "${__hx_pair%%:*}" 2>/dev/null >>/proc/self/fd/199 || :
    builtin printf '\0' >>/proc/self/fd/199
  done
}

__hx_restore() {
  local __hx_entry __hx_old __hx_new
  while IFS= builtin read -r -d '' __hx_entry; do
    __hx_old=${__hx_entry%%=*}
    __hx_entry=${__hx_entry#*=}
    __hx_new=${__hx_entry%%=*}
    __hx_entry=${__hx_entry#*=}
    case $__hx_entry in
      'declare '*)
        __hx_entry="declare -g ${__hx_entry#declare }"
        __hx_entry=${__hx_entry/" $__hx_old="/" $__hx_new="}
        eval "${__hx_entry/#declare -g -- /declare -g }" 2>/dev/null || :
        ;;
    esac
  done </proc/self/fd/199
}

# --- mocked commands --------------------------------------------------------------------------

__hx_mock() { # NUMBER NAME inline|process | NUMBER NAME fork NAMES...
  if [[ ! -e $HX_MOCKS/$1/$2 ]]; then
    builtin command -p cp -- "$HX_MOCKS/$1/.body" "$HX_MOCKS/$1/$2"
  fi
  PATH=$HX_MOCKS/$1:$PATH
  case $2 in
    *[!A-Za-z0-9_]* | [0-9]*) return 0 ;;
  esac
  if [[ $3 == inline ]]; then
    eval "$2() { __hx_inline $1 $2 \"\$@\"; }"
  elif [[ $3 == fork ]]; then
    local IFS=' '
    eval "$2() { __hx_mocked $1 $2 '${*:4}' \"\$@\"; }"
  else
    eval "$2() { command $2 \"\$@\"; }"
  fi
}

__hx_inline() { # NUMBER NAME ARGS...
  if [[ $- == *[ux]* ]] || builtin declare -F command >/dev/null; then
    command "$2" "${@:3}"
  else
    local IFS=$' \t\n'
    "__hx_mock_$1" "${@:3}"
  fi
}

__hx_mocked() { # NUMBER NAME NAMES ARGS...
  if builtin declare -F command >/dev/null; then
    command "$2" "${@:4}"
  else
    (
      __hx_strip "$1" "$3"
      "__hx_mock_$1" "${@:4}"
    )
  fi
}

__hx_strip() { # NUMBER NAMES: leave only what a new process would see
  builtin set +eufx +o pipefail
  builtin trap - ERR DEBUG RETURN
  local IFS=' ' __hx_name
  builtin unset -f $2 2>/dev/null
  for __hx_name in $2; do
    case $__hx_name in
      *[!A-Za-z0-9_]*) continue ;;
    esac
    while [[ -v $__hx_name && ${!__hx_name@a} != *x* ]]; do
      builtin unset -v "$__hx_name" 2>/dev/null || break
    done
  done
  [[ -z $__hx_preserves ]] || __hx_restore
}

# --- expectations -----------------------------------------------------------------------------

__hx_the() { # LINE WORDS...
  [[ -z $__hx_mute ]] || return 0
  __hx_spoken=1 __hx_special=spoken
  builtin printf '%s\0' the $# "$@" >&$__hx_records
}

__hx_the_variable() { # PLACE LINE WORDS...
  [[ -z $__hx_mute ]] || return 0
  __hx_spoken=1 __hx_special=spoken
  __hx_tell_variable "${!1-}"
  builtin printf '%s\0' the $(($# - 1)) "${@:2}" >&$__hx_records
}

__hx_the_path() { # PLACE LINE WORDS...
  [[ -z $__hx_mute ]] || return 0
  __hx_spoken=1 __hx_special=spoken
  __hx_tell_path "${!1-}"
  builtin printf '%s\0' the $(($# - 1)) "${@:2}" >&$__hx_records
}

__hx_the_contents() { # PLACE LINE WORDS...
  [[ -z $__hx_mute ]] || return 0
  __hx_spoken=1 __hx_special=spoken
  __hx_tell_path "${!1-}"
  __hx_tell_contents "${!1-}"
  builtin printf '%s\0' the $(($# - 1)) "${@:2}" >&$__hx_records
}

__hx_tell_variable() { # NAME
  case $1 in
    [!A-Za-z_]* | *[!A-Za-z0-9_]*)
      if [[ ! $1 =~ ^[A-Za-z_][A-Za-z0-9_]*\[.+\]$ ]]; then
        builtin printf '%s\0' variable 3 "$1" unset '' >&$__hx_records
        return 0
      fi
      ;;
  esac
  local - __hx_attributes
  builtin set +u
  __hx_attributes="${!1@a}"
  if [[ -n ${!1+x} ]]; then
    local __hx_text
    __hx_text="${!1}"
    builtin printf '%s\0' variable 4 "$1" set "$__hx_attributes" "$__hx_text" >&$__hx_records
  else
    builtin printf '%s\0' variable 3 "$1" unset "$__hx_attributes" >&$__hx_records
  fi
}

__hx_tell_path() { # PATH
  local __hx_file=${__hx_aliases[${1:-/}]-$1} __hx_flags=
  if [[ -e $__hx_file || -L $__hx_file ]]; then
    [[ ! -e $__hx_file ]] || __hx_flags+=e
    [[ ! -L $__hx_file ]] || __hx_flags+=L
    [[ ! -r $__hx_file ]] || __hx_flags+=r
    [[ ! -w $__hx_file ]] || __hx_flags+=w
    [[ ! -x $__hx_file ]] || __hx_flags+=x
    [[ ! -u $__hx_file ]] || __hx_flags+=u
    [[ ! -g $__hx_file ]] || __hx_flags+=g
    if [[ -f $__hx_file ]]; then
      __hx_flags+=f
      [[ -s $__hx_file ]] || __hx_flags+=0
    elif [[ -d $__hx_file ]]; then
      __hx_flags+=d
      ! __hx_is_empty "$__hx_file" || __hx_flags+=E
    else
      [[ ! -p $__hx_file ]] || __hx_flags+=p
      [[ ! -S $__hx_file ]] || __hx_flags+=S
      [[ ! -b $__hx_file ]] || __hx_flags+=b
      [[ ! -c $__hx_file ]] || __hx_flags+=c
    fi
  fi
  builtin printf '%s\0' path 2 "$__hx_file" "$__hx_flags" >&$__hx_records
}

__hx_is_empty() { # DIRECTORY
  if builtin shopt -q failglob; then
    (
      builtin shopt -u failglob
      __hx_is_empty "$1"
    )
    return
  fi
  local - __hx_entry
  builtin set +f
  for __hx_entry in "$1"/* "$1"/.*; do
    case $__hx_entry in
      "$1/." | "$1/..") ;;
      *) [[ ! -e $__hx_entry && ! -L $__hx_entry ]] || return 1 ;;
    esac
  done
}

__hx_tell_contents() { # PATH
  local __hx_file=${__hx_aliases[${1:-/}]-$1} __hx_text
  if [[ -r $__hx_file && ! -d $__hx_file ]]; then
    __hx_read_file "$__hx_file"
    builtin printf '%s\0' contents 1 "$__hx_text" >&$__hx_records
  fi
}

__hx_ask() { # LINE WORDS...: tell the sentence, then do what the parent needs to judge it
  [[ -z $__hx_mute ]] || return 0
  __hx_spoken=1 __hx_special=spoken
  local __hx_op __hx_argument __hx_value
  local __hx_records=190
  if ((${#__hx_subjects[@]})); then
    local __hx_words
    __hx_name_subjects "$@"
    set -- "${__hx_words[@]}"
  fi
  builtin printf '%s\0' ask $# "$@" >&190
  while IFS= builtin read -r -d '' -u 207 __hx_op; do
    IFS= builtin read -r -d '' -u 207 __hx_argument
    case $__hx_op in
      variable) __hx_tell_variable "$__hx_argument" ;;
      path) __hx_tell_path "$__hx_argument" ;;
      contents) __hx_tell_contents "$__hx_argument" ;;
      result) __hx_tell_result "$__hx_argument" ;;
      value)
        __hx_value=$__hx_argument
        __hx_tell value
        ;;
      satisfy) __hx_tell_satisfy "${@:__hx_argument}" ;;
      custom | custom_not) __hx_tell_custom "$__hx_op" "${@:__hx_argument}" ;;
      *) return 0 ;;
    esac
  done
}

__hx_name_subjects() { # LINE WORDS...: put the subjects' own names for those of the spec
  local __hx_word __hx_is_keyword=1
  __hx_words=("$1")
  for __hx_word in "${@:2}"; do
    case $__hx_is_keyword$__hx_word in
      1a | 1an | 1as | 1the) ;;
      1?*)
        __hx_is_keyword=
        __hx_word=${__hx_subjects[$__hx_word]-$__hx_word}
        ;;
      of) __hx_is_keyword=1 ;;
      should) __hx_is_keyword=over ;;
    esac
    __hx_words+=("$__hx_word")
  done
}

__hx_tell_result() { # F
  local __hx_stdout __hx_stderr __hx_text
  __hx_read_file /proc/self/fd/$((192 + __hx_set))
  __hx_stdout=$__hx_text
  __hx_read_file /proc/self/fd/$((193 + __hx_set))
  __hx_stderr=$__hx_text
  local __hx_failed=0 __hx_result
  __hx_result=$("$1" "$__hx_stdout" "$__hx_stderr" "${__hx_status-}" \
    </proc/self/fd/$((192 + __hx_set)) 2>|/proc/self/fd/196) || __hx_failed=$?
  __hx_read_file /proc/self/fd/196
  __hx_tell result "$__hx_failed" "$__hx_text" "$__hx_result"
}

__hx_tell_satisfy() { # F ARGS...
  builtin printf '%s' "${__hx_value-}" >|/proc/self/fd/197
  local __hx_answer=0
  (
    if [[ $1 =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]]; then
      if [[ -n ${__hx_value+x} ]]; then
        eval "$1=\$__hx_value"
      else
        builtin unset -v "$1"
      fi
    fi
    "$@"
  ) </proc/self/fd/197 2>|/proc/self/fd/196 || __hx_answer=$?
  local __hx_text
  __hx_read_file /proc/self/fd/196
  __hx_tell answer "$__hx_answer" "$__hx_text" ''
}

# --- matchers that a spec brings itself ---------------------------------------------------------

shellspec_syntax() { __hx_syntax[$1]=1; }
shellspec_syntax_chain() { :; }
shellspec_syntax_compound() { :; }
shellspec_syntax_alias() { # NAME KNOWN: another name of a subject or of a matcher
  case $1 in
    shellspec_subject_*) __hx_subjects[${1#shellspec_subject_}]=${2#shellspec_subject_} ;;
    shellspec_matcher_*) __hx_syntax[$1]=$2 ;;
  esac
}
shellspec_puts() { __hx_puts "$@"; }
shellspec_putsn() { __hx_putsn "$@"; }

shellspec_syntax_param() {
  if [[ $1 == count ]]; then
    "${@:2}" || {
      __hx_wrong_count=1
      return 1
    }
  else
    [[ ${4-} =~ ^[0-9]+$ ]] || {
      __hx_wrong_count=1
      return 1
    }
  fi
}

shellspec_matcher_do_match() {
  __hx_answer=0
  shellspec_matcher__match "$@" || __hx_answer=1
  if [[ $__hx_wanted == custom && $__hx_answer != 0 ]]; then
    shellspec_matcher__failure_message "${SHELLSPEC_SUBJECT-<unset>}" "${SHELLSPEC_EXPECT-}"
  elif [[ $__hx_wanted == custom_not && $__hx_answer == 0 ]]; then
    shellspec_matcher__failure_message_when_negated \
      "${SHELLSPEC_SUBJECT-<unset>}" "${SHELLSPEC_EXPECT-}"
  fi
}

__hx_tell_custom() { # custom|custom_not WORDS...: the longest name is tried last
  local __hx_name=shellspec_matcher_$2 __hx_at=3
  while ! builtin declare -F "${__hx_syntax[$__hx_name]/#1/$__hx_name}" >/dev/null 2>&1; do
    if ((__hx_at > $#)); then
      local IFS=' '
      __hx_tell unknown "${*:2}"
      return 0
    fi
    case ${!__hx_at} in
      a | an | as | the) ;;
      *) __hx_name+=_${!__hx_at} ;;
    esac
    __hx_at=$((__hx_at + 1))
  done
  set -- "$1" "${__hx_syntax[$__hx_name]/#1/$__hx_name}" "${@:__hx_at}"
  local __hx_wanted=$1 __hx_answer=2 __hx_text
  (
    __hx_wrong_count=
    unset SHELLSPEC_SUBJECT
    [[ -z ${__hx_value+x} ]] || SHELLSPEC_SUBJECT=$__hx_value
    builtin set +e
    "$2" "${@:3}"
    [[ -z $__hx_wrong_count ]] || builtin exit 3
    builtin exit "$__hx_answer"
  ) >|/proc/self/fd/197 2>|/proc/self/fd/196 </dev/null || __hx_answer=$?
  ((__hx_answer != 2)) || __hx_answer=0
  __hx_read_file /proc/self/fd/197
  __hx_value=$__hx_text
  __hx_read_file /proc/self/fd/196
  if ((__hx_answer == 3)); then
    __hx_tell miscounted "${2#shellspec_matcher_}"
  else
    __hx_tell answer "$__hx_answer" "$__hx_text" "$__hx_value"
  fi
}

# --- helper modules -----------------------------------------------------------------------------

minimum_version() { :; }
info() { builtin printf '%s\n' "$*"; }
warn() { builtin printf '%s\n' "$*"; }
error() { builtin printf '%s\n' "$*"; builtin exit 1; }
abort() { builtin printf '%s\n' "${1-}"; builtin exit "${2-1}"; }
setenv() { builtin export "$@"; __hx_environment+=("$@"); }
unsetenv() { builtin unset -v "$@"; }

import() { # NAME [ARGS...]
  local __hx_directory IFS=:
  for __hx_directory in $SHELLSPEC_LOAD_PATH; do
    if [[ -e $__hx_directory/$1.sh ]]; then
      unset IFS
      . "$__hx_directory/$1.sh" "${@:2}"
      return
    fi
  done
  builtin printf 'there is no helper module %s in %s\n' "$1" "$SHELLSPEC_LOAD_PATH" >&2
  builtin exit 1
}

__hx_precheck() { # MODULE: with the variables that a precheck may look at
  local VERSION=$SHELLSPEC_VERSION SHELL_TYPE=bash SHELL_VERSION=$BASH_VERSION
  "$1_precheck"
}

if [[ -n ${HX_PATH+x} ]]; then
  PATH=$HX_PATH
  unset HX_PATH
fi
SHELLSPEC_SHELL_VERSION=$BASH_VERSION
builtin export SHELLSPEC_SHELL_VERSION
if [[ -n ${HX_ENV_FROM-} ]]; then
  # what it exports is wanted, not its functions and what it prints
  eval "$(
    builtin set -a
    . "$HX_ENV_FROM" >/dev/null 2>&1
    builtin unset HX_ENV_FROM
    builtin export -p
  )"
  unset HX_ENV_FROM
fi
IFS=' ' builtin read -r -a __hx_modules <<<"$HX_REQUIRE"
for __hx_module in "${__hx_modules[@]}"; do
  import "$__hx_module"
  if builtin declare -F "${__hx_module}_precheck" >/dev/null; then
    __hx_precheck=$(__hx_precheck "$__hx_module" 2>&1) || {
      __hx_tell precheck "$__hx_module" $? "$__hx_precheck"
      builtin exit 1
    }
    __hx_precheck "$__hx_module" >/dev/null 2>&1
  fi
  ! builtin declare -F "${__hx_module}_loaded" >/dev/null || "${__hx_module}_loaded"
done
for __hx_module in "${__hx_modules[@]}"; do
  ! builtin declare -F "${__hx_module}_configure" >/dev/null || "${__hx_module}_configure"
done
case $- in *e*) __hx_run_errexit=1 ;; esac
unset __hx_module __hx_modules
unset -f minimum_version info warn error abort setenv unsetenv __hx_precheck
[[ -z ${HX_CLOCK-} ]] || . "$HX_CLOCK"
# traces the lines that run, for coverage; the trace has a descriptor of its own
if [[ -n ${HX_TRACE_FD-} ]]; then
  BASH_XTRACEFD=$HX_TRACE_FD
  PS4='+hx:${BASH_SOURCE[0]-}:$LINENO:'
  unset HX_TRACE_FD
  builtin set -x
fi
builtin set -e
