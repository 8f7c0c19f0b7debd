# 'The': reports variables, paths, files and results to the parent, which judges the sentences.

__hx_the() { # LINE WORDS...
  [ -z "$__hx_mute" ] || return 0
  __hx_expected=1
  __hx_report the "$@"
}

__hx_the_variable() { # PLACE LINE WORDS...
  [ -z "$__hx_mute" ] || return 0
  eval "__hx_report_variable \"\${$1-}\""
  shift
  __hx_the "$@"
}

__hx_the_path() { # PLACE LINE WORDS...
  [ -z "$__hx_mute" ] || return 0
  eval "__hx_report_path \"\${$1-}\""
  shift
  __hx_the "$@"
}

__hx_the_contents() { # PLACE LINE WORDS...
  [ -z "$__hx_mute" ] || return 0
  eval "__hx_report_path \"\${$1-}\"; __hx_report_contents \"\${$1-}\""
  shift
  __hx_the "$@"
}

__hx_report_variable() { # NAME
  local __hx_attributes= __hx_value
  case $1 in
    '' | [!A-Za-z_]* | *[!A-Za-z0-9_]*)
      __hx_report variable "$1" unset ''
      return 0
      ;;
  esac
  case $__hx_newline$(export -p)$__hx_newline in
    *"${__hx_newline}export $1"[="$__hx_newline"]*) __hx_attributes=x ;;
  esac
  case $__hx_newline$(readonly -p)$__hx_newline in
    *"${__hx_newline}readonly $1"[="$__hx_newline"]*) __hx_attributes=${__hx_attributes}r ;;
  esac
  if eval "[ -n \"\${$1+x}\" ]"; then
    eval "__hx_value=\$$1"
    __hx_report variable "$1" set "$__hx_attributes" "$__hx_value"
  else
    __hx_report variable "$1" unset "$__hx_attributes"
  fi
}

__hx_resolve() { # PATH: set __hx_file to the path behind the alias PATH, or to PATH itself
  __hx_file=$1
  eval "set -- $__hx_aliases"
  while [ "$#" -gt 0 ]; do
    if [ "$1" = "$__hx_file" ]; then
      __hx_file=$2
      return 0
    fi
    shift 2
  done
}

__hx_report_path() { # PATH
  local __hx_file __hx_flags= __hx_flag IFS=
  __hx_resolve "$1"
  if [ -e "$__hx_file" ] || [ -L "$__hx_file" ]; then
    for __hx_flag in e L r w x u g f p S b c d; do
      [ ! -$__hx_flag "$__hx_file" ] || __hx_flags=$__hx_flags$__hx_flag
    done
    if [ -f "$__hx_file" ]; then
      [ -s "$__hx_file" ] || __hx_flags=${__hx_flags}0
    elif [ -d "$__hx_file" ]; then
      ! (__hx_is_empty "$__hx_file") || __hx_flags=${__hx_flags}E
    fi
  fi
  __hx_report path "$__hx_file" "$__hx_flags"
}

__hx_is_empty() { # DIRECTORY
  local __hx_entry
  set +f
  for __hx_entry in "$1"/* "$1"/.*; do
    case $__hx_entry in
      "$1/." | "$1/..") ;;
      *) [ ! -e "$__hx_entry" ] && [ ! -L "$__hx_entry" ] || return 1 ;;
    esac
  done
}

__hx_report_contents() { # PATH
  local __hx_file
  __hx_resolve "$1"
  if [ -r "$__hx_file" ] && [ ! -d "$__hx_file" ]; then
    __hx_read_file "$__hx_file"
    __hx_report contents "$__hx_text"
  fi
}

__hx_ask() { # LINE WORDS...: report the sentence, then carry out the parent's requests
  [ -z "$__hx_mute" ] || return 0
  __hx_expected=1
  local __hx_op __hx_argument
  local __hx_records=190
  unset __hx_value
  if [ -n "$__hx_subjects" ]; then
    __hx_name_subjects "$@"
    eval "set -- $__hx_words"
  fi
  __hx_report ask "$@"
  while IFS= read -r __hx_op <$__hx_fd/207; do
    IFS= read -r __hx_argument <$__hx_fd/207
    __hx_argument=$(printf '%bx' "$__hx_argument")
    __hx_argument=${__hx_argument%x}
    case $__hx_op in
      variable) __hx_report_variable "$__hx_argument" ;;
      path) __hx_report_path "$__hx_argument" ;;
      contents) __hx_report_contents "$__hx_argument" ;;
      result) __hx_report_result "$__hx_argument" ;;
      value)
        __hx_value=$__hx_argument
        __hx_report value
        ;;
      satisfy | custom | custom_not) __hx_report_match "$__hx_op" "$__hx_argument" "$@" ;;
      *) return 0 ;;
    esac
  done
}

__hx_report_match() { # satisfy|custom|custom_not PLACE WORDS...: the words from PLACE on
  local __hx_op="$1"
  shift "$(($2 + 1))"
  if [ "$__hx_op" = satisfy ]; then
    __hx_report_satisfy "$@"
  else
    __hx_report_custom "$__hx_op" "$@"
  fi
}

__hx_name_subjects() { # LINE WORDS...: replace aliases of subjects by the subjects' names
  local __hx_word __hx_is_keyword=1 __hx_known IFS=' '
  __hx_quote "$1"
  __hx_words=$__hx_quoted
  shift
  for __hx_word in "$@"; do
    case $__hx_is_keyword$__hx_word in
      1a | 1an | 1as | 1the) ;;
      1?*)
        __hx_is_keyword=
        for __hx_known in $__hx_subjects; do
          [ "${__hx_known%%=*}" != "$__hx_word" ] || {
            __hx_word=${__hx_known#*=}
            break
          }
        done
        ;;
      of) __hx_is_keyword=1 ;;
      should) __hx_is_keyword=over ;;
    esac
    __hx_quote "$__hx_word"
    __hx_words="$__hx_words $__hx_quoted"
  done
}

__hx_report_result() { # F
  local __hx_stdout __hx_stderr __hx_text __hx_failed=0 __hx_result
  __hx_read_file "$__hx_fd/$((192 + __hx_set))"
  __hx_stdout=$__hx_text
  __hx_read_file "$__hx_fd/$((193 + __hx_set))"
  __hx_stderr=$__hx_text
  __hx_result=$("$1" "$__hx_stdout" "$__hx_stderr" "${__hx_status-}" \
    <$__hx_fd/$((192 + __hx_set)) 2>|$__hx_fd/196) || __hx_failed=$?
  __hx_read_file "$__hx_fd/196"
  __hx_report result "$__hx_failed" "$__hx_text" "$__hx_result"
}

__hx_report_satisfy() { # F ARGS...
  printf '%s' "${__hx_value-}" >|$__hx_fd/197
  local __hx_answer=0 __hx_text
  (
    case $1 in
      '' | [!A-Za-z_]* | *[!A-Za-z0-9_]*) ;;
      *) if [ -n "${__hx_value+x}" ]; then eval "$1=\$__hx_value"; else unset -v "$1"; fi ;;
    esac
    "$@"
  ) <$__hx_fd/197 2>|$__hx_fd/196 || __hx_answer=$?
  __hx_read_file "$__hx_fd/196"
  __hx_report answer "$__hx_answer" "$__hx_text" ''
}
