# Matchers, subjects and modifiers that a spec defines.

shellspec_syntax() { eval "__hx_syntax_$1=$1"; }
shellspec_syntax_chain() { :; }
shellspec_syntax_compound() { :; }
shellspec_syntax_alias() { # NAME KNOWN: define NAME as an alias of a known subject or matcher
  case $1 in
    shellspec_subject_*)
      __hx_subjects="${1#shellspec_subject_}=${2#shellspec_subject_} $__hx_subjects"
      ;;
    shellspec_matcher_*) eval "__hx_syntax_$1=$2" ;;
  esac
}
shellspec_puts() { __hx_puts "$@"; }
shellspec_putsn() { __hx_putsn "$@"; }

shellspec_syntax_param() {
  if [ "$1" = count ]; then
    shift
    "$@" || {
      __hx_wrong_count=1
      return 1
    }
  else
    case ${4-} in
      '' | *[!0-9]*)
        __hx_wrong_count=1
        return 1
        ;;
    esac
  fi
}

shellspec_syntax_failure_message() { # +|- LINES...: define the message for `should` or `should not`
  local __hx_message=shellspec_matcher__failure_message
  [ "$1" = + ] || __hx_message=${__hx_message}_when_negated
  shift
  __hx_quote_all "$@"
  eval "$__hx_message() { __hx_show_message \"\$1\" \"\$2\" $__hx_quoted; }"
}

__hx_show_message() { # SUBJECT EXPECTED LINES...
  local __hx_one="$1" __hx_two="$2" __hx_before __hx_line
  shift 2
  for __hx_line in "$@"; do
    while :; do
      __hx_before=${__hx_line%%'$'[12]*}
      [ "$__hx_before" != "$__hx_line" ] || break
      __hx_line=${__hx_line#"$__hx_before"}
      case $__hx_line in
        '$1'*) __hx_puts "$__hx_before$__hx_one" ;;
        *) __hx_puts "$__hx_before$__hx_two" ;;
      esac
      __hx_line=${__hx_line#??}
    done
    __hx_putsn "$__hx_line"
  done
}

shellspec_matcher_do_match() {
  __hx_answer=0
  shellspec_matcher__match "$@" || __hx_answer=1
  if [ "$__hx_wanted$__hx_answer" = custom1 ]; then
    shellspec_matcher__failure_message "${SHELLSPEC_SUBJECT-<unset>}" "${SHELLSPEC_EXPECT-}"
  elif [ "$__hx_wanted$__hx_answer" = custom_not0 ]; then
    shellspec_matcher__failure_message_when_negated \
      "${SHELLSPEC_SUBJECT-<unset>}" "${SHELLSPEC_EXPECT-}"
  fi
}

__hx_report_custom() { # custom|custom_not WORDS...: try names of matchers, the longest name last
  local __hx_wanted="$1" __hx_all __hx_name __hx_function= __hx_answer=2 __hx_text
  shift
  local IFS=' '
  __hx_all=$*
  IFS='
 	'
  __hx_name=shellspec_matcher_$1
  shift
  while :; do
    case $__hx_name in
      *[!A-Za-z0-9_]*) ;;
      *) eval "__hx_function=\${__hx_syntax_$__hx_name-}" ;;
    esac
    if [ -n "$__hx_function" ] && __hx_is_function "$__hx_function"; then
      break
    fi
    if [ "$#" -eq 0 ]; then
      __hx_report unknown "$__hx_all"
      return 0
    fi
    case $1 in
      a | an | as | the) ;;
      *) __hx_name=${__hx_name}_$1 ;;
    esac
    shift
  done
  (
    __hx_wrong_count=
    unset SHELLSPEC_SUBJECT
    [ -z "${__hx_value+x}" ] || SHELLSPEC_SUBJECT=$__hx_value
    set +e
    "$__hx_function" "$@"
    [ -z "$__hx_wrong_count" ] || exit 3
    exit "$__hx_answer"
  ) >|$__hx_fd/197 2>|$__hx_fd/196 </dev/null || __hx_answer=$?
  [ "$__hx_answer" -ne 2 ] || __hx_answer=0
  __hx_read_file "$__hx_fd/197"
  __hx_value=$__hx_text
  __hx_read_file "$__hx_fd/196"
  if [ "$__hx_answer" -eq 3 ]; then
    __hx_report miscounted "${__hx_function#shellspec_matcher_}"
  else
    __hx_report answer "$__hx_answer" "$__hx_text" "$__hx_value"
  fi
}
