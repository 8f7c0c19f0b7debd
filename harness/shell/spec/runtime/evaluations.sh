# 'When': runs functions, commands and scripts under test, and captures their results.

# code may resolve the path of /dev/stdin, so stdin is a file with a path
__hx_stdin_file=${SHELLSPEC_WORKDIR-}/.stdin

# Replaces the builtin. '$$' is the shell of the whole file, so a signal to '$$' goes to the shell of
# the example, or to the subshell of 'When run'.
kill() {
  # a trap runs inside this function, so coverage needs the trace
  { [[ ${BASH_XTRACEFD-:} == "${HX_TRACE_FD-}" ]] || { local -; builtin set +x; }; } 2>&189
  local __hx_word
  local -a __hx_words=()
  for __hx_word in "$@"; do
    [[ $__hx_word != "$$" ]] || __hx_word=${__hx_case-$$}
    __hx_words+=("$__hx_word")
  done
  builtin kill "${__hx_words[@]}" || return "$?" # so that a trap on ERR runs, as for the builtin
}

__hx_begin() { # LINE: return whether an evaluation may run now
  [[ -z $__hx_mute ]] || return 1
  if [[ -n $__hx_when ]]; then
    __hx_report misuse "$1" "There is a second 'When'; an example takes one."
    return 1
  fi
  __hx_when=$1
  if [[ -n $__hx_expected ]]; then
    __hx_report misuse "$1" "'When' stands after an expectation; it must come first."
    return 1
  fi
  __hx_report begun "$1"
  __hx_stdin=/dev/null
  if [[ -n $__hx_has_data ]]; then
    __hx_stdin=/proc/self/fd/197
    if [[ -n ${SHELLSPEC_WORKDIR-} ]] && { : >|"$__hx_stdin_file"; } 2>/dev/null && [[ -r $__hx_stdin_file ]]; then
      __hx_stdin=$__hx_stdin_file
    fi
    __hx_data "${__hx_row_args[@]}" >|"$__hx_stdin" || {
      __hx_report misuse "$1" "The command of 'Data' ended with status $?."
      return 1
    }
  fi
}

__hx_finish() { # STATUS
  __hx_status=$1
  # background jobs of the evaluation may still write output, or change files that are checked next
  builtin read -t 0 -u 211 || builtin read -t "$__hx_job_wait" -u 211 || :
  [[ -z $__hx_preserves ]] || __hx_restore
  __hx_report when "$__hx_when" "$1"
}

__hx_call() { # LINE F ARGS...: the usual case; calls no functions, since calls cost page faults
  if [[ -n $__hx_special ]]; then
    __hx_call_specially "$@"
    return 0
  fi
  __hx_special=evaluated __hx_when=$1
  builtin set +e # as in shellspec: the code may look for errexit in $-
  {
    builtin printf '%s\0' called 1 "$1"
    "${@:2}" >&"$((192 + __hx_set))" 2>&"$((193 + __hx_set))" <&189 214>/proc/self/fd/211 &&
      __hx_status=0 || __hx_status=$?
    # end the code's trace and traps, so that they do not show the commands that follow; the text
    # that such a trap prints ends with NUL
    builtin trap -- - RETURN DEBUG
    [[ -z ${__hx_traced-} ]] || builtin trap -- "$__hx_traced" DEBUG
    [[ ${BASH_XTRACEFD-:} == "${HX_TRACE_FD-}" ]] || builtin set +vx
    builtin read -t 0 -u 211 || builtin read -t "$__hx_job_wait" -u 211 || :
    [[ -z $__hx_preserves ]] || __hx_restore
    builtin printf '\0when\0002\000%s\0%s\0' "$__hx_when" "$__hx_status"
  } >&"$__hx_records" 2>&189
  builtin set -e
}

__hx_call_specially() { # LINE F ARGS...
  __hx_begin "$1" || return 0
  builtin shift
  if ((${#__hx_options[@]} + ${#__hx_before_call[@]} + ${#__hx_after_call[@]})); then
    __hx_apply_options
    builtin set -- __hx_hooked call "$@"
  fi
  builtin set +e
  {
    "$@" >&"$((192 + __hx_set))" 2>&"$((193 + __hx_set))" <"$__hx_stdin" && __hx_status=0 ||
      __hx_status=$?
    builtin trap -- - RETURN
    builtin trap -- "${__hx_traced:--}" DEBUG
    [[ ${BASH_XTRACEFD-:} == "${HX_TRACE_FD-}" ]] || builtin set +vx
  } >&189 2>&189 214>/proc/self/fd/211
  builtin set -e
  __hx_finish "$__hx_status"
}

__hx_hooked() { # KIND F ARGS...: run the hooks before the evaluation, the evaluation, the hooks after
  if [[ $1 == call ]]; then
    builtin set -- __hx_before_call __hx_after_call "${@:2}"
  else
    builtin set -- __hx_before_run __hx_after_run "${@:2}"
  fi
  local -n __hx_before=$1 __hx_after=$2
  builtin shift 2
  local __hx_at
  for ((__hx_at = 0; __hx_at < ${#__hx_before[@]}; __hx_at++)); do
    __hx_code=${__hx_before[__hx_at]}
    __hx_eval || return "$?"
  done
  # shellcheck disable=SC2015 # a trap is set without failure
  "$@" && {
    builtin trap -- - RETURN
    builtin trap -- "${__hx_traced:--}" DEBUG
  } >&189 2>&189 || {
    __hx_status=$?
    builtin trap -- - RETURN
    builtin trap -- "${__hx_traced:--}" DEBUG
    return "$__hx_status"
  } >&189 2>&189
  for ((__hx_at = ${#__hx_after[@]} - 1; __hx_at >= 0; __hx_at--)); do
    __hx_code=${__hx_after[__hx_at]}
    __hx_eval || return "$?"
  done
}

__hx_evaluate() { # F ARGS...: run the evaluation in a subshell, which errexit may end
  local __hx_errexit=$-
  builtin set +e
  { # the shell's message about a subshell that a signal ended is part of the evaluation's stderr
    (
      __hx_isolate
      if ((${#__hx_before_run[@]} + ${#__hx_after_run[@]})); then
        __hx_run_hooked "$@"
      else
        "$@" # no command after this one, and no function: a trap on DEBUG or RETURN would see them
      fi
    )
    __hx_status=$?
  } >&"$((192 + __hx_set))" 2>&"$((193 + __hx_set))" <"$__hx_stdin" 214>/proc/self/fd/211
  case $__hx_errexit in *e*) builtin set -e ;; esac
  __hx_finish "$__hx_status"
}

__hx_isolate() {
  __hx_case=$BASHPID
  [[ -z ${__hx_run_errexit-} ]] || builtin set -e
  __hx_apply_options
}

__hx_run_hooked() { # F ARGS...
  local __hx_at
  for ((__hx_at = 0; __hx_at < ${#__hx_before_run[@]}; __hx_at++)); do
    __hx_code=${__hx_before_run[__hx_at]}
    __hx_eval || builtin exit "$?"
  done
  "$@"
  {
    __hx_status=$?
    builtin trap -- - RETURN
    builtin trap -- "${__hx_traced:--}" DEBUG
  } >&189 2>&189
  ((__hx_status == 0)) || builtin exit "$__hx_status"
  for ((__hx_at = ${#__hx_after_run[@]} - 1; __hx_at >= 0; __hx_at--)); do
    __hx_code=${__hx_after_run[__hx_at]}
    __hx_eval || builtin exit "$?"
  done
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
  builtin unset __SOURCED__
  builtin declare -F test >/dev/null || test() {
    (($# == 0)) || builtin test "$@"
  }
  __() {
    local __hx_function=${__hx_points[$1]-}
    [[ -n $__hx_function ]] || return 0
    "$__hx_function" "${@:2:$#-2}"
  }
  . "$@"
  {
    __hx_status=$?
    builtin trap -- - RETURN ERR
    builtin trap -- "${__hx_traced:--}" DEBUG
  } >&189 2>&189
  return "$__hx_status"
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
  __hx_expected=1 __hx_special=expected
  if (($# == 1)); then
    __hx_report misuse "$1" "'Assert' names no command."
    return 0
  fi
  local __hx_errexit=$-
  builtin set +e
  (
    builtin set -e
    "${@:2}"
  ) </dev/null 2>|/proc/self/fd/196
  builtin set -- "$1" "$?" "${@:2}"
  case $__hx_errexit in *e*) builtin set -e ;; esac
  __hx_read_file /proc/self/fd/196
  __hx_report assert "$1" "$2" "$__hx_text" "${@:3}"
}

__hx_dump() {
  __hx_read_file /proc/self/fd/$((192 + __hx_set))
  builtin printf '[stdout]\n%s\n' "$__hx_text"
  __hx_read_file /proc/self/fd/$((193 + __hx_set))
  builtin printf '[stderr]\n%s\n[status] %s\n' "$__hx_text" "${__hx_status-}"
}
