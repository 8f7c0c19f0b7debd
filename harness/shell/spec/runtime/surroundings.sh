# Sets up the shell of a test that was translated from a spec. The warm shell sources this file before
# the code under test (surroundings.py).

case $HX_PROJECT in
  /*) SHELLSPEC_PROJECT_ROOT=$HX_PROJECT ;;
  *) SHELLSPEC_PROJECT_ROOT=$PWD${HX_PROJECT:+/$HX_PROJECT} ;;
esac
builtin cd -- "$SHELLSPEC_PROJECT_ROOT${HX_EXEC_DIR:+/$HX_EXEC_DIR}" || builtin exit 1
__hx_parts=${BASH_SOURCE[0]%/*}
SHELLSPEC_CWD=$SHELLSPEC_PROJECT_ROOT
SHELLSPEC_HELPERDIR=$SHELLSPEC_PROJECT_ROOT/$HX_HELPER_DIR
SHELLSPEC_SPECDIR=$SHELLSPEC_HELPERDIR
SHELLSPEC_LIB=${__hx_parts%/*}
SHELLSPEC_SUPPORT_BIN=$SHELLSPEC_LIB/support_bin.sh
SHELLSPEC_TMPDIR=${TMPDIR:-/tmp}
# without a throw-away root, files stay, and writes outside the run's folder may be refused
__hx_scratch=${HX_THROWAWAY:+$SHELLSPEC_TMPDIR}
SHELLSPEC_TMPBASE=$(command -p mktemp -d "${__hx_scratch:-${HX_MOCKED%/*}}/shellspec.XXXXXX") ||
  builtin exit 1
SHELLSPEC_WORKDIR=$SHELLSPEC_TMPBASE/1
command -p mkdir -- "$SHELLSPEC_WORKDIR"
SHELLSPEC_SPEC_NO=1
SHELLSPEC_SHELL=bash SHELLSPEC_SHELL_TYPE=bash
builtin printf -v SHELLSPEC_UNIXTIME '%(%s)T'
SHELLSPEC_LOAD_PATH=$SHELLSPEC_HELPERDIR
IFS=: builtin read -r -a __hx_directories <<<"$HX_LOAD_PATH"
for __hx_directory in "${__hx_directories[@]}"; do
  SHELLSPEC_LOAD_PATH+=:$SHELLSPEC_PROJECT_ROOT/$__hx_directory
done
SHELLSPEC_PATH=${HX_PROJECT_PATH-$PATH}
PATH=$HX_MOCKS:$SHELLSPEC_HELPERDIR/support/bin:${HX_ONLY_PATH-$SHELLSPEC_PATH}
__hx_newline=$'\n'
builtin export PATH SHELLSPEC_PROJECT_ROOT SHELLSPEC_CWD SHELLSPEC_HELPERDIR SHELLSPEC_SPECDIR SHELLSPEC_LIB \
  SHELLSPEC_SUPPORT_BIN SHELLSPEC_TMPDIR SHELLSPEC_TMPBASE SHELLSPEC_WORKDIR SHELLSPEC_SPEC_NO \
  SHELLSPEC_SHELL SHELLSPEC_SHELL_TYPE SHELLSPEC_UNIXTIME SHELLSPEC_LOAD_PATH SHELLSPEC_PATH
if [[ -n ${HX_ENV_FROM-} ]]; then
  HX_ENV_FROM=$SHELLSPEC_PROJECT_ROOT/$HX_ENV_FROM
fi
unset HX_PROJECT HX_EXEC_DIR HX_HELPER_DIR HX_LOAD_PATH HX_PROJECT_PATH HX_ONLY_PATH HX_MOCKS
unset __hx_directory __hx_directories __hx_scratch

declare -A __hx_syntax=() __hx_subjects=()
__hx_before_each=() __hx_after_each=() __hx_before_all=() __hx_after_all=()
__hx_options=()
for __hx_part in hooks marks text matchers; do
  . "$__hx_parts/$__hx_part.sh"
done

__hx_report() {
  builtin printf '%s: %s\n' "$1" "${*:2}" >&2
}

# Values for expectations that only the shell can compute; each function sets or changes __hx_value.

spec_value() { # TEXT
  __hx_value=$1
}

spec_variable() { # NAME
  if [[ -v $1 ]]; then __hx_value=${!1}; else unset -v __hx_value; fi
}

spec_output() { # DESCRIPTOR [entire]: the text that the evaluation wrote
  local __hx_text
  __hx_read_file "/proc/self/fd/$1"
  __hx_value=$__hx_text
  [[ -n ${2-} ]] || spec_trim
}

spec_contents() { # [entire]: the content of the file that the value names
  local __hx_text
  if [[ -r ${__hx_value-} && ! -d $__hx_value ]]; then
    __hx_read_file "$__hx_value"
    __hx_value=$__hx_text
    [[ -n ${1-} ]] || spec_trim
  else
    unset -v __hx_value
  fi
}

spec_trim() {
  while [[ ${__hx_value-} == *$'\n' ]]; do
    __hx_value=${__hx_value%$'\n'}
  done
}

spec_result() { # FUNCTION
  local __hx_out __hx_err
  spec_output 1 entire
  __hx_out=$__hx_value
  spec_output 2 entire
  __hx_err=$__hx_value
  __hx_value=$("$1" "$__hx_out" "$__hx_err" "$__status" < <(builtin printf '%s' "$__hx_out") \
    2>|/proc/self/fd/196) || unset -v __hx_value
  [[ ! -s /proc/self/fd/196 ]] || spec_noise=$1
}

spec_part() { # line|word|lines|length [NUMBER]
  local -a __hx_parts=()
  [[ -n ${__hx_value+x} ]] || return 0
  case $1 in
    length) __hx_parts=("${#__hx_value}") ;;
    word) IFS=$' \t\n' builtin read -r -d '' -a __hx_parts <<<"$__hx_value" || : ;;
    *)
      [[ -z $__hx_value ]] || builtin mapfile -t __hx_parts <<<"${__hx_value%$'\n'}"
      [[ $1 != lines ]] || __hx_parts=("${#__hx_parts[@]}")
      ;;
  esac
  if ((${2-1} <= ${#__hx_parts[@]})); then
    __hx_value=${__hx_parts[${2-1} - 1]}
  else
    unset -v __hx_value
  fi
}

spec_try() { # CODE: run a hook; end the shell if the hook fails or writes to stderr
  local __hx_text
  if eval "$1" </dev/null 2>|/proc/self/fd/196 && [[ ! -s /proc/self/fd/196 ]]; then
    return 0
  fi
  __hx_read_file /proc/self/fd/196
  builtin printf "The hook '%s' failed. %s\n" "$1" "$__hx_text" >&2
  builtin exit 1
}

spec_judge() { # NAME STATUS: store a command's status, or that the command wrote to stderr (196)
  if [[ -s /proc/self/fd/196 ]]; then
    builtin printf -v "$1" 'it wrote to stderr'
  else
    builtin printf -v "$1" '%s' "$2"
  fi
}

spec_hook() { # NAME CODE: run a hook after the example; store its result in NAME
  eval "$2" >/dev/null </dev/null 2>|/proc/self/fd/196
  spec_judge "$1" "$?"
}

spec_assert() { # NAME COMMAND ARGS...: run the command; store its result in NAME
  (
    builtin set -e
    "${@:2}"
  ) >/dev/null </dev/null 2>|/proc/self/fd/196
  spec_judge "$1" "$?"
}

spec_is_empty_directory() { # PATH
  [[ -d $1 && -z $(command -p ls -A -- "$1") ]]
}

spec_has_attribute() { # LETTER NAME
  [[ ${!2@a} == *"$1"* ]]
}

spec_satisfies() { # NAME FUNCTION ARGS...: call FUNCTION with the value on stdin and in a variable
  (
    if [[ $2 =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]]; then
      if [[ -n ${__hx_value+x} ]]; then
        builtin printf -v "$2" '%s' "$__hx_value"
      else
        unset -v "$2"
      fi
    fi
    "${@:2}"
  ) >/dev/null < <(builtin printf '%s' "${__hx_value-}") 2>|/proc/self/fd/196
  spec_judge "$1" "$?"
}

spec_keep() { # NAME: store the value in the variable NAME
  if [[ -n ${__hx_value+x} ]]; then
    builtin printf -v "$1" '%s' "$__hx_value"
  else
    unset -v "$1"
  fi
}

. "$__hx_parts/helper_modules.sh"
unset __hx_part __hx_parts
