# 'The': reports variables, paths, files and results to the parent, which judges the sentences.

__hx_the() { # LINE WORDS...
  [[ -z $__hx_mute ]] || return 0
  __hx_expected=1 __hx_special=expected
  builtin printf '%s\0' the "$#" "$@" >&"$__hx_records"
}

__hx_the_variable() { # PLACE LINE WORDS...
  [[ -z $__hx_mute ]] || return 0
  __hx_expected=1 __hx_special=expected
  __hx_report_variable "${!1-}"
  builtin printf '%s\0' the "$(($# - 1))" "${@:2}" >&"$__hx_records"
}

__hx_the_path() { # PLACE LINE WORDS...
  [[ -z $__hx_mute ]] || return 0
  __hx_expected=1 __hx_special=expected
  __hx_report_path "${!1-}"
  builtin printf '%s\0' the "$(($# - 1))" "${@:2}" >&"$__hx_records"
}

__hx_the_contents() { # PLACE LINE WORDS...
  [[ -z $__hx_mute ]] || return 0
  __hx_expected=1 __hx_special=expected
  __hx_report_path "${!1-}"
  __hx_report_contents "${!1-}"
  builtin printf '%s\0' the "$(($# - 1))" "${@:2}" >&"$__hx_records"
}

__hx_report_variable() { # NAME
  case $1 in
    [!A-Za-z_]* | *[!A-Za-z0-9_]*)
      if [[ ! $1 =~ ^[A-Za-z_][A-Za-z0-9_]*\[.+\]$ ]]; then
        builtin printf '%s\0' variable 3 "$1" unset '' >&"$__hx_records"
        return 0
      fi
      ;;
  esac
  local - __hx_attributes
  builtin set +u
  # in "${!1@a}", bash leaves out the attributes of a variable without a value
  eval "__hx_attributes=\${${1%%[*}@a}"
  if [[ -n ${!1+x} ]]; then
    local __hx_text
    __hx_text="${!1}"
    builtin printf '%s\0' variable 4 "$1" set "$__hx_attributes" "$__hx_text" >&"$__hx_records"
  else
    builtin printf '%s\0' variable 3 "$1" unset "$__hx_attributes" >&"$__hx_records"
  fi
}

__hx_report_path() { # PATH
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
  builtin printf '%s\0' path 2 "$__hx_file" "$__hx_flags" >&"$__hx_records"
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

__hx_report_contents() { # PATH
  local __hx_file=${__hx_aliases[${1:-/}]-$1} __hx_text
  if [[ -r $__hx_file && ! -d $__hx_file ]]; then
    __hx_read_file "$__hx_file"
    builtin printf '%s\0' contents 1 "$__hx_text" >&"$__hx_records"
  fi
}

__hx_ask() { # LINE WORDS...: report the sentence, then carry out the parent's requests
  [[ -z $__hx_mute ]] || return 0
  __hx_expected=1 __hx_special=expected
  local __hx_op __hx_argument __hx_value
  local __hx_records=190
  if ((${#__hx_subjects[@]})); then
    local __hx_words
    __hx_name_subjects "$@"
    builtin set -- "${__hx_words[@]}"
  fi
  if ((${#__hx_syntax[@]})); then
    local -a __hx_words=()
    __hx_take_subject "$@" || return 0
    builtin set -- "${__hx_words[@]}"
  fi
  builtin printf '%s\0' ask "$#" "$@" >&190
  while IFS= builtin read -r -d '' -u 207 __hx_op; do
    IFS= builtin read -r -d '' -u 207 __hx_argument
    case $__hx_op in
      variable) __hx_report_variable "$__hx_argument" ;;
      path) __hx_report_path "$__hx_argument" ;;
      contents) __hx_report_contents "$__hx_argument" ;;
      result) __hx_report_result "$__hx_argument" ;;
      value)
        __hx_value=$__hx_argument
        __hx_report value
        ;;
      satisfy) __hx_report_satisfy "${@:__hx_argument}" ;;
      custom | custom_not) __hx_report_custom "$__hx_op" "${@:__hx_argument}" ;;
      *) return 0 ;;
    esac
  done
}

__hx_name_subjects() { # LINE WORDS...: replace aliases of subjects by the subjects' names
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

__hx_take_subject() { # LINE WORDS...: replace a subject that the spec defines by its value
  local __hx_at __hx_first=2 __hx_function
  for ((__hx_at = 2; __hx_at <= $#; __hx_at++)); do
    case ${!__hx_at} in
      of) __hx_first=$((__hx_at + 1)) ;;
      should) break ;;
    esac
  done
  while [[ ${!__hx_first-} == @(a|an|as|the) ]]; do
    __hx_first=$((__hx_first + 1))
  done
  __hx_words=("$@")
  __hx_function=shellspec_subject_${!__hx_first-}
  [[ -n ${__hx_syntax[$__hx_function]-} ]] || return 0
  builtin declare -F "$__hx_function" >/dev/null || return 0
  local -a __hx_following=()
  local SHELLSPEC_SUBJECT __hx_wrong_count=
  builtin unset -v SHELLSPEC_SUBJECT
  "$__hx_function" "${@:__hx_first + 1}" 2>|/proc/self/fd/196
  if [[ -n $__hx_wrong_count ]] || ((${#__hx_following[@]} == 0)); then
    __hx_report misuse "$1" "The subject '${!__hx_first}' takes another number of arguments."
    return 1
  fi
  # report an unset value as a variable that is not set
  __hx_words=("${@:1:__hx_first - 1}" variable __hx_unset "${__hx_following[@]}")
  if [[ -n ${SHELLSPEC_SUBJECT+x} ]]; then
    __hx_words=("${@:1:__hx_first - 1}" value "$SHELLSPEC_SUBJECT" "${__hx_following[@]}")
  fi
}

__hx_report_result() { # F
  local __hx_stdout __hx_stderr __hx_text
  __hx_read_file /proc/self/fd/$((192 + __hx_set))
  __hx_stdout=$__hx_text
  __hx_read_file /proc/self/fd/$((193 + __hx_set))
  __hx_stderr=$__hx_text
  local __hx_failed=0 __hx_result
  __hx_result=$("$1" "$__hx_stdout" "$__hx_stderr" "${__hx_status-}" \
    </proc/self/fd/$((192 + __hx_set)) 2>|/proc/self/fd/196) || __hx_failed=$?
  __hx_read_file /proc/self/fd/196
  __hx_report result "$__hx_failed" "$__hx_text" "$__hx_result"
}

__hx_report_satisfy() { # F ARGS...
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
  __hx_report answer "$__hx_answer" "$__hx_text" ''
}
