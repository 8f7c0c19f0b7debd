# Matchers, subjects and modifiers that a spec defines.

shellspec_syntax() { __hx_syntax[$1]=1; }
shellspec_syntax_chain() { :; }
shellspec_syntax_compound() { :; }
shellspec_syntax_alias() { # NAME KNOWN: define NAME as an alias of a known subject or matcher
  case $1 in
    shellspec_subject_*) __hx_subjects[${1#shellspec_subject_}]=${2#shellspec_subject_} ;;
    shellspec_matcher_*) __hx_syntax[$1]=$2 ;;
  esac
}
shellspec_syntax_dispatch() { # modifier ARGS...: store the words after a subject of the spec
  __hx_following=("${@:2}")
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

shellspec_syntax_failure_message() { # +|- LINES...: define the message for `should` or `should not`
  local __hx_lines __hx_message=shellspec_matcher__failure_message
  [[ $1 == + ]] || __hx_message+=_when_negated
  builtin printf -v __hx_lines '%q ' "${@:2}"
  eval "$__hx_message() { __hx_show_message \"\$1\" \"\$2\" $__hx_lines; }"
}

__hx_show_message() { # SUBJECT EXPECTED LINES...
  local __hx_line __hx_before __hx_number
  for __hx_line in "${@:3}"; do
    while [[ $__hx_line == *'$'[12]* ]]; do
      __hx_before=${__hx_line%%'$'[12]*}
      __hx_number=${__hx_line:${#__hx_before}+1:1}
      __hx_puts "$__hx_before${!__hx_number}"
      __hx_line=${__hx_line:${#__hx_before}+2}
    done
    __hx_putsn "$__hx_line"
  done
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

__hx_report_custom() { # custom|custom_not WORDS...: try names of matchers, the longest name last
  local - __hx_name=shellspec_matcher_$2 __hx_at=3
  local __hx_nounset=$-
  builtin set +u
  while ! builtin declare -F "${__hx_syntax[$__hx_name]/#1/$__hx_name}" >/dev/null 2>&1; do
    if ((__hx_at > $#)); then
      local IFS=' '
      __hx_report unknown "${*:2}"
      return 0
    fi
    case ${!__hx_at} in
      a | an | as | the) ;;
      *) __hx_name+=_${!__hx_at} ;;
    esac
    __hx_at=$((__hx_at + 1))
  done
  builtin set -- "$1" "${__hx_syntax[$__hx_name]/#1/$__hx_name}" "${@:__hx_at}"
  local __hx_wanted=$1 __hx_answer=2 __hx_text
  (
    __hx_wrong_count=
    builtin unset SHELLSPEC_SUBJECT
    [[ -z ${__hx_value+x} ]] || SHELLSPEC_SUBJECT=$__hx_value
    builtin set +e
    case $__hx_nounset in *u*) builtin set -u ;; esac
    "$2" "${@:3}"
    [[ -z $__hx_wrong_count ]] || builtin exit 3
    builtin exit "$__hx_answer"
  ) >|/proc/self/fd/197 2>|/proc/self/fd/196 </dev/null || __hx_answer=$?
  ((__hx_answer != 2)) || __hx_answer=0
  __hx_read_file /proc/self/fd/197
  __hx_value=$__hx_text
  __hx_read_file /proc/self/fd/196
  if ((__hx_answer == 3)); then
    __hx_report miscounted "${2#shellspec_matcher_}"
  else
    __hx_report answer "$__hx_answer" "$__hx_text" "$__hx_value"
  fi
}
