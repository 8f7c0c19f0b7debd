# Mocked commands, and the variables that '%preserve' returns from them.

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

# A trace of the code under test shows calls of mocks, but not the commands inside mocks.

# Bash copies a whole function at each call, so the usual case has a short function.

__hx_mock() { # NUMBER NAME inline|process|file | NUMBER NAME fork NAMES...; in the block __hx_block
  # identical mocks of other examples share this file, which code may have removed or changed
  if [[ $3 == file || $2 == *[!A-Za-z0-9_]* || $2 == [0-9]* || ! $HX_MOCKS/$1/$2 -ef $HX_MOCKS/$1/.body ]]; then
    __hx_mock_specially "$@"
    return
  fi
  PATH=$HX_MOCKS/$1:$PATH
  # remove an exported function of that name, so that child processes find the mock on PATH
  builtin unset -f -- "$2"
  case $3 in
    inline) eval "function $2 { { local -; builtin set +x; } 2>&189; __hx_inline $1 $2 \"\$@\"; }" ;;
    fork)
      local IFS=' '
      eval "function $2 { { local -; builtin set +x; } 2>&189; __hx_mocked $1 $2 '${*:4}' \"\$@\"; }"
      ;;
    *) eval "function $2 { { local -; builtin set +x; } 2>&189; command $2 \"\$@\"; }" ;;
  esac
}

__hx_mock_specially() {
  case $2 in
    '' | . | .. | */*)
      builtin command -p sh "$SHELLSPEC_LIB/path_mocks.sh" put "$HX_MOCKS/$1/.body" "$2" "$__hx_block" ||
        return
      builtin set -- "$1" "$2" process
      ;;
    *)
      # identical mocks of other examples share this file, which code may have removed or changed
      if [[ ! $HX_MOCKS/$1/$2 -ef $HX_MOCKS/$1/.body ]]; then
        builtin command -p cp -fp -- "$HX_MOCKS/$1/.body" "$HX_MOCKS/$1/$2"
      fi
      PATH=$HX_MOCKS/$1:$PATH
      ;;
  esac
  case $2 in
    # define a function with such a name only if it replaces a function; if the name has a '=',
    # declare can't tell whether there is a function
    *[!A-Za-z0-9_.+:@=-]* | [!A-Za-z0-9_]*) builtin declare -F -- "$2" >&189 2>&189 || return 0 ;;
    # in POSIX mode, a function must have a name that a variable can have
    *[!A-Za-z0-9_]* | [0-9]*) [[ ! -o posix ]] || return 0 ;;
  esac
  # if the mock must be a file, define a function too only if it replaces a function
  if [[ $3 == file ]]; then
    builtin declare -F -- "$2" >&189 2>&189 || return 0
  fi
  # remove an exported function of that name, so that child processes find the mock on PATH
  builtin unset -f -- "$2"
  if [[ $3 == inline ]]; then
    eval "function $2 { { local -; builtin set +x; } 2>&189; __hx_inline $1 ${2@Q} \"\$@\"; }"
  elif [[ $3 == fork ]]; then
    local IFS=' '
    eval "function $2 { { local -; builtin set +x; } 2>&189; __hx_mocked $1 ${2@Q} '${*:4}' \"\$@\"; }"
  else
    eval "function $2 { { local -; builtin set +x; } 2>&189; command ${2@Q} \"\$@\"; }"
  fi
}

__hx_unmock_paths() { # BLOCK
  builtin command -p sh "$SHELLSPEC_LIB/path_mocks.sh" restore "$1" || :
}

__hx_inline() { # NUMBER NAME ARGS...
  if [[ $- == *[ux]* ]] || builtin declare -F command >&189; then
    command "$2" "${@:3}"
  else
    local IFS=$' \t\n'
    "__hx_mock_$1" "${@:3}"
  fi
}

__hx_mocked() { # NUMBER NAME NAMES ARGS...
  if builtin declare -F command >&189; then
    command "$2" "${@:4}"
  else
    (
      __hx_strip "$1" "$3"
      "__hx_mock_$1" "${@:4}"
    )
  fi
}

__hx_strip() { # NUMBER NAMES: remove names that a new process would not see
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
