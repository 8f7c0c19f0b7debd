# The bash part of the warm shell (warm_shell.py), which forks for each evaluation.
#
# Bash sources this file through BASH_ENV; the script on stdin then sources the code under test and
# ends with __hx_serve. Descriptors 190 to 202 are described in spec_runtime.sh, and 203 to 209 in
# mocked_command.sh. 198: code that the test defines. 199: the variables after an evaluation.
# 210: the code to evaluate. 212: a pipe that the processes of an evaluation have open as 214. 218,
# 219: the code's stdout and stderr while an evaluation ends.

unset BASH_ENV
__hx_at=190
for __hx_fd in $HX_FDS; do
  eval "exec $__hx_at<&$__hx_fd $__hx_fd<&-"
  __hx_at=$((__hx_at + 1))
done
unset HX_FDS __hx_fd __hx_at
builtin export PATH="$HX_PATH"
unset HX_PATH
. "$HX_MOCKED_COMMAND"
builtin export -f command_not_found_handle
[[ -z ${HX_CLOCK-} ]] || . "$HX_CLOCK"
if [[ -n ${HX_TRACE_FD-} ]]; then
  builtin export BASH_ENV=${BASH_SOURCE[0]%/*}/trace.sh
  . "$BASH_ENV"
fi

# Replaces the builtin. A trap of the code on EXIT would replace the trap that reports an
# evaluation's variables, so the action of the code's trap is stored and runs later. A trap on
# DEBUG or RETURN that a function sets ends with the function, unless the function has the
# attribute 'trace'. So this function has the attribute. Traps on DEBUG and RETURN then run in this
# function too and, after 'set -T', in all functions of the harness. A wrapper around the action of
# such a trap does nothing there.
trap() {
  {
    local __hx_flags=$- __hx_answer
    builtin set +x
  } 2>/dev/null
  __hx_trap "$@"
  {
    __hx_answer=$?
    [[ $__hx_flags != *x* ]] || builtin set -x
    return "$__hx_answer"
  } 2>/dev/null
}

__hx_trap() {
  local __hx_word __hx_listed
  local -a __hx_others=()
  case ${1-} in
    '' | -p)
      if (($#)) && [[ -z $1 ]]; then
        __hx_set_trap "$@"
        return
      fi
      __hx_listed=$(builtin trap "$@" || builtin :; builtin printf x)
      __hx_listed=${__hx_listed%x}
      __hx_listed=${__hx_listed//"trap -- '$__hx_leaving' EXIT$__hx_newline"/}
      __hx_listed=${__hx_listed//"$__hx_unless_trap"/}
      [[ -z ${__hx_exit+x} || $# -gt 1 && " $* " != *' EXIT '* && " $* " != *' 0 '* ]] ||
        builtin printf "trap -- '%s' EXIT\\n" "${__hx_exit//"'"/"$__hx_quote"}"
      builtin printf '%s' "${__hx_listed//"$__hx_newline;; esac'"/"'"}"
      ;;
    -l) builtin trap -l ;;
    *)
      [[ $1 != -- ]] || shift
      __hx_set_trap "$@"
      ;;
  esac
}
builtin declare -ft trap __hx_trap
__hx_newline=$'\n'
__hx_quote="'\\''"
# The code may have closed stdout or stderr. With 'builtin exec', the redirection would not last.
__hx_leaving='{ __hx_left=$? __hx_ended=${__hx_ended-$-}; builtin set +euxE; builtin trap - DEBUG; } >/dev/null 2>&1'
__hx_leaving+='; [[ -e /proc/self/fd/1 ]] || exec >/dev/null; [[ -e /proc/self/fd/2 ]] || exec 2>/dev/null'
__hx_leaving+='; { __hx_leave "$__hx_left" "$__hx_ended" "$@"; } 218>&1 219>&2 >/dev/null 2>&1'
__hx_unless_trap='case " trap kill sleep date timeout ${__hx_mocked-} ,${FUNCNAME[0]-}" in *" ${FUNCNAME[0]-,} "* | *,__hx_*) ;; *) '

__hx_set_trap() { # ACTION NAMES... | NAME
  (($# > 1)) || set -- - "$@"
  for __hx_word in "${@:2}"; do
    case $__hx_word in
      0 | [Ee][Xx][Ii][Tt])
        if [[ ${__hx_case-} != "$BASHPID" ]]; then
          __hx_others+=("$__hx_word")
        elif [[ $1 == - ]]; then
          builtin unset -v __hx_exit
        else
          __hx_exit=$1
        fi
        ;;
      [Dd][Ee][Bb][Uu][Gg] | [Rr][Ee][Tt][Uu][Rr][Nn])
        [[ -z ${__hx_traced-} ]] || builtin set +T
        # with 'set -T', an evaluation has the trap on DEBUG that sourcing left
        [[ -n ${__hx_case-} || $__hx_word == [Rr]* ]] || __hx_debug=${1#-}
        case $1 in
          '' | -) builtin trap -- "$1" "$__hx_word" ;;
          *) builtin trap -- "$__hx_unless_trap$1$__hx_newline;; esac" "$__hx_word" ;;
        esac
        ;;
      *) __hx_others+=("$__hx_word") ;;
    esac
  done
  ((${#__hx_others[@]} == 0)) || builtin trap -- "$1" "${__hx_others[@]}"
}
builtin declare -ft __hx_set_trap

# Replaces the builtin. '$$' is the warm shell, so a signal to '$$' goes to the evaluation's own shell.
# A signal to the process group also reaches the warm shell. The record 'group' announces this.
kill() {
  # a trap runs inside this function, so coverage needs the trace
  { [[ ${BASH_XTRACEFD-:} == "${HX_TRACE_FD-}" ]] || { local -; builtin set +x; }; } 2>/dev/null
  local __hx_word
  local -a __hx_words=()
  for __hx_word in "$@"; do
    case $__hx_word in
      "$$") __hx_word=${__hx_case-$$} ;;
      0 | -1 | "-$$") [[ -z ${__hx_case-} ]] || builtin printf '%s\0' group 0 >&190 ;;
    esac
    __hx_words+=("$__hx_word")
  done
  builtin kill "${__hx_words[@]}" || return "$?" # so that a trap on ERR runs, as for the builtin
}

__hx_return() { # STATUS
  return "$1"
}

__hx_leave() { # STATUS OPTIONS ARGS...: end the evaluation, in its shell
  builtin set +euxE
  builtin trap - EXIT DEBUG RETURN
  if [[ -z ${__hx_prepared-} ]]; then
    builtin printf '%s\0' unprepared 1 "$1" >&190
    builtin exit "$1"
  fi
  __hx_status=$1
  if [[ -n ${__hx_exit-} ]]; then
    exit() {
      __hx_end
      builtin exit "${1-$__hx_status}"
    }
    __hx_trace=()
    if [[ -n ${__hx_traced-} ]]; then
      __hx_trace=(builtin trap "$__hx_traced" DEBUG)
    elif [[ $2 == *x* ]]; then
      __hx_trace=(builtin set -x)
    fi
    __hx_kept=${2//[!eu]/}
    builtin declare -p >|/proc/self/fd/199 # in case the action ends the shell, as with 'set -e'
    builtin set -- "${@:3}"
    eval "\"\${__hx_trace[@]}\"
{ builtin ${__hx_kept:+set -}${__hx_kept:-:}; __hx_return $__hx_status && builtin :; } 2>/dev/null
$__hx_exit

{ builtin set +eux; } 2>/dev/null" >&218 2>&219
    { builtin set +eux; } 2>/dev/null
  fi
  __hx_end # without 'exit', so that a signal that ended the evaluation ends the shell too
}

__hx_end() {
  builtin set +eux
  builtin trap - DEBUG
  builtin unset -f exit
  builtin declare -p >|/proc/self/fd/199
}

__hx_run_case() {
  __hx_case=$BASHPID
  builtin trap "$__hx_leaving" EXIT
  builtin cd -- "$__hx_cwd" || builtin :
  OLDPWD=$__hx_old_cwd
  . /proc/self/fd/198
  {
    __hx_trace=(builtin :)
    [[ $__hx_options$- != *x* ]] || __hx_trace=(builtin set -x)
    [[ $__hx_options != *T* || -z ${__hx_debug-} ]] ||
      __hx_trace=(eval "builtin ${__hx_trace[1]} ${__hx_trace[2]-}; { trap \"\$__hx_debug\" DEBUG; } 2>/dev/null")
    builtin set +x
  } 2>/dev/null
  {
    builtin unset -v __hx_status
    . /proc/self/fd/210
    {
      __hx_status=${__hx_status-$?} __hx_ended=${__hx_ended-$-}
      builtin set +x
    } 2>/dev/null
    builtin exit "$__hx_status"
  } >|/proc/self/fd/192 2>|/proc/self/fd/193 <"$__hx_stdin"
}

__hx_end_processes() { # end processes of earlier evaluations; only in a sandbox
  [[ -n ${HX_THROWAWAY-} && $PPID == 1 && $$ -lt 10 ]] || return 0
  local - GLOBIGNORE= __hx_process
  builtin set +f
  while :; do
    builtin kill -KILL -1
    builtin wait
    __hx_process=(/proc/[0-9]*)
    ((${#__hx_process[@]} > 2)) || return 0
    builtin read -r -t 0.002 -u 201 || builtin :
  done 2>/dev/null
}

__hx_serve() {
  { __hx_options=$-; builtin set +ex; } 2>/dev/null
  [[ $__hx_options != *T* || -n ${__hx_traced-} ]] || builtin trap - DEBUG
  local __hx_word
  __hx_cwd=$PWD __hx_old_cwd=${OLDPWD-}
  # a signal to the process group, such as 'kill 0', ends the evaluation but not this shell
  for __hx_word in HUP INT QUIT USR1 USR2 ALRM TERM; do
    builtin trap "__hx_signal=$__hx_word" "$__hx_word"
  done
  builtin cd /
  exec 212< <(:)
  builtin printf '%s\0' ready 0 >&190
  while IFS= builtin read -r -u 191 __hx_word; do
    if [[ $__hx_word == clear ]]; then
      __hx_end_processes
      builtin printf '%s\0' cleared 0 >&190
      continue
    fi
    __hx_signal=
    (__hx_run_case) >|/proc/self/fd/195 2>|/proc/self/fd/194 </dev/null 214>/proc/self/fd/212
    __hx_status=$?
    # background jobs, such as 'tee' in 'exec > >(tee log)', may still write output
    if ! builtin read -t 0 -u 212; then
      builtin read -t 1 -u 212
      (($? <= 128)) || exec 212< <(:) # do not wait again for the same jobs
    fi
    builtin printf '%s\0' end 2 "$__hx_status" "$__hx_signal" >&190
  done
}
