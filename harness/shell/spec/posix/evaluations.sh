# 'When': runs functions, commands and scripts under test, and captures their results.

# code may resolve the path of /dev/stdin, so stdin is a file with a path
__hx_stdin_file=${SHELLSPEC_WORKDIR-}/.stdin

# Replaces the builtin. '$$' is the shell of the whole file, so a signal to '$$' goes to the shell of
# the example, or to the subshell of 'When run'.
kill() {
  {
    local __hx_flags=$- __hx_word __hx_answer=0
    set +x
  } 2>/dev/null
  for __hx_word in "$@"; do
    shift
    [ "$__hx_word" != "$$" ] || __hx_word=${__hx_case-$$}
    set -- "$@" "$__hx_word"
  done
  if __hx_is_function command; then
    (unset -f command && command kill "$@") || __hx_answer=$?
  else
    command kill "$@" || __hx_answer=$?
  fi
  case $__hx_flags in *x*) set -x ;; esac
  return "$__hx_answer"
}

__hx_find_case() { # set __hx_case to the PID of this shell
  local __hx_rest
  IFS=' ' read -r __hx_case __hx_rest </proc/self/stat
}

__hx_begin() { # LINE: return whether an evaluation may run now
  [ -z "$__hx_mute" ] || return 1
  if [ -n "$__hx_when" ]; then
    __hx_report misuse "$1" "There is a second 'When'; an example takes one."
    return 1
  fi
  __hx_when=$1
  if [ -n "$__hx_expected" ]; then
    __hx_report misuse "$1" "'When' stands after an expectation; it must come first."
    return 1
  fi
  __hx_report begun "$1"
  __hx_stdin=/dev/null
  if [ -n "$__hx_has_data" ]; then
    __hx_stdin=$__hx_fd/197
    if [ -n "${SHELLSPEC_WORKDIR-}" ] && (: >|"$__hx_stdin_file") 2>/dev/null && [ -r "$__hx_stdin_file" ]; then
      __hx_stdin=$__hx_stdin_file
    fi
    (
      eval "set -- $__hx_row_args"
      __hx_data "$@"
    ) >|"$__hx_stdin" || {
      __hx_report misuse "$1" "The command of 'Data' ended with status $?."
      return 1
    }
  fi
}

__hx_finish() { # STATUS
  __hx_status=$1
  # background jobs of the evaluation may still write output, or change files that are checked next
  __hx_await_end 211 || :
  [ -z "$__hx_preserves" ] || __hx_restore
  __hx_report when "$__hx_when" "$1"
}

__hx_call() { # LINE F ARGS...
  __hx_begin "$1" || return 0
  shift
  __hx_apply_options
  set +e # as in shellspec: the code may look for errexit in $-
  if [ -n "$__hx_before_call$__hx_after_call" ]; then
    set -- __hx_hooked "$__hx_before_call" "$__hx_after_call" "$@"
  fi
  # a trace of the code belongs to the code's stderr; end the trace before the commands that follow
  {
    "$@" && __hx_status=0 || __hx_status=$?
    case $- in *x*) set +x ;; esac
  } >>$__hx_fd/$((192 + __hx_set)) 2>>$__hx_fd/$((193 + __hx_set)) <"$__hx_stdin" \
    8>$__hx_fd/$((211 + __hx_stale))
  set -e
  __hx_finish "$__hx_status"
}

__hx_hooked() { # BEFORE AFTER F ARGS...: run an evaluation between its hooks
  local __hx_before="$1" __hx_after="$2"
  shift 2
  __hx_run_hooks "$__hx_before" || return "$?"
  "$@" || return "$?"
  eval "__hx_reversed $__hx_after"
  __hx_run_hooks "$__hx_list"
}

__hx_run_hooks() { # QUOTED
  eval "set -- $1"
  for __hx_code in "$@"; do
    __hx_eval || return "$?"
  done
}

__hx_evaluate() { # F ARGS...: run the evaluation in a subshell, which errexit may end
  local __hx_errexit=$-
  set +e
  # The shell's message about a subshell that a signal ended is part of the evaluation's stderr. The
  # redirections are repeated inside the subshell, since BusyBox undoes outer redirections before it
  # runs a trap on EXIT.
  {
    (__hx_isolated "$@") >>$__hx_fd/$((192 + __hx_set)) 2>>$__hx_fd/$((193 + __hx_set)) \
      <"$__hx_stdin" 8>$__hx_fd/$((211 + __hx_stale))
    __hx_status=$?
  } 2>>$__hx_fd/$((193 + __hx_set))
  case $__hx_errexit in *e*) set -e ;; esac
  __hx_finish "$__hx_status"
}

__hx_isolated() {
  __hx_find_case
  [ -z "${__hx_run_errexit-}" ] || set -e
  __hx_apply_options
  [ -z "$__hx_before_run" ] || __hx_run_hooks "$__hx_before_run" || exit "$?"
  "$@"
  __hx_status=$?
  [ "$__hx_status" -eq 0 ] || exit "$__hx_status"
  eval "__hx_reversed $__hx_after_run"
  __hx_run_hooks "$__hx_list" || exit "$?"
}

__hx_run_function() { # LINE F ARGS...
  __hx_begin "$1" || return 0
  shift
  __hx_evaluate "$@"
}

__hx_run_command() { # LINE C ARGS...
  __hx_begin "$1" || return 0
  shift
  __hx_evaluate __hx_external "$@"
}

__hx_external() {
  if ! __hx_is_on_path "$1"; then
    printf '%s: command not found\n' "$1" >&2
    return 127
  fi
  (exec "$@")
}

__hx_is_on_path() { # COMMAND
  case $1 in */*) return 1 ;; esac
  local IFS=: __hx_directory
  for __hx_directory in $PATH; do
    if [ -f "$__hx_directory/$1" ] && [ -x "$__hx_directory/$1" ]; then
      return 0
    fi
  done
  return 1
}

__hx_run_script() { # LINE S ARGS...
  __hx_begin "$1" || return 0
  shift
  __hx_evaluate __hx_script "$@"
}

__hx_script() {
  local IFS=' '
  if [ ! -e "$1" ]; then
    printf '%s: No such file or directory\n' "$1" >&2
    return 127
  fi
  if [ ! -x "$1" ] || [ -d "$1" ]; then
    printf '%s: Permission denied\n' "$1" >&2
    return 126
  fi
  ($SHELLSPEC_SHELL "$@")
}

__hx_run_source() { # LINE S ARGS...
  __hx_begin "$1" || return 0
  shift
  __hx_evaluate __hx_source "$@"
}

__hx_source() {
  unset __SOURCED__
  __hx_is_function test || eval 'test() { [ "$#" -eq 0 ] || [ "$@" ]; }'
  __() {
    local __hx_function= __hx_words=
    __hx_find_point "$1"
    [ -n "$__hx_function" ] || return 0
    shift
    while [ "$#" -gt 1 ]; do # the last argument is '__': leave it out
      __hx_quote "$1"
      __hx_words="$__hx_words $__hx_quoted"
      shift
    done
    eval "$__hx_function $__hx_words"
  }
  __hx_source_file=$1
  case $1 in */*) ;; *) __hx_source_file=./$1 ;; esac
  shift
  . "$__hx_source_file"
}

__hx_find_point() { # NAME: set __hx_function to the function for an intercepted point
  local IFS=' ' __hx_pair
  for __hx_pair in $__hx_points; do
    [ "${__hx_pair%%:*}" != "$1" ] || __hx_function=${__hx_pair#*:}
  done
}

__hx_intercept() { # NAME[:FUNC]...
  local __hx_point
  for __hx_point in "$@"; do
    case $__hx_point in
      *:*) __hx_points="$__hx_points $__hx_point" ;;
      *) __hx_points="$__hx_points $__hx_point:__${__hx_point}__" ;;
    esac
  done
}

__hx_assert() { # LINE CMD...
  [ -z "$__hx_mute" ] || return 0
  __hx_expected=1
  if [ "$#" -eq 1 ]; then
    __hx_report misuse "$1" "'Assert' names no command."
    return 0
  fi
  local __hx_errexit=$- __hx_line="$1" __hx_answer
  shift
  set +e
  (
    set -e
    "$@"
  ) </dev/null 2>|$__hx_fd/196
  __hx_answer=$?
  case $__hx_errexit in *e*) set -e ;; esac
  __hx_read_file "$__hx_fd/196"
  __hx_report assert "$__hx_line" "$__hx_answer" "$__hx_text" "$@"
}

__hx_dump() {
  __hx_read_file "$__hx_fd/$((192 + __hx_set))"
  printf '[stdout]\n%s\n' "$__hx_text"
  __hx_read_file "$__hx_fd/$((193 + __hx_set))"
  printf '[stderr]\n%s\n[status] %s\n' "$__hx_text" "${__hx_status-}"
}
