# Runs the hooks of groups; marks examples as skipped or pending; notes rows, paths and options.

__hx_hook() { # KIND CODE...
  local __hx_kind="$1"
  shift
  __hx_quote_all "$@"
  eval "__hx_$__hx_kind=\"\$__hx_$__hx_kind\$__hx_quoted\""
}

__hx_reversed() { # WORDS...: set __hx_list to the quoted words in reverse order
  __hx_list=
  local __hx_word
  for __hx_word in "$@"; do
    __hx_quote "$__hx_word"
    __hx_list=" $__hx_quoted$__hx_list"
  done
}

__hx_eval() {
  eval "$__hx_code"
}

__hx_try() { # KIND: run __hx_code; a status other than 0 or any text on stderr is a failure
  __hx_hook_status=0
  __hx_report hooking "$1" "$__hx_code"
  __hx_eval 2>|$__hx_fd/196 </dev/null || __hx_hook_status=$?
  if [ "$__hx_hook_status" -ne 0 ] || [ -s "$__hx_fd/196" ]; then
    __hx_read_file "$__hx_fd/196"
    __hx_report hook "$1" "$__hx_code" "$__hx_hook_status" "$__hx_text" "$__hx_group_line"
    return 1
  fi
  __hx_report hooked
}

__hx_run_before_each() {
  eval "set -- $__hx_before_each"
  for __hx_code in "$@"; do
    __hx_try before_each || {
      __hx_report finished
      exit 0
    }
  done
}

__hx_run_after_each() {
  set +e
  eval "__hx_reversed $__hx_after_each"
  eval "set -- $__hx_list"
  for __hx_code in "$@"; do
    __hx_try after_each || break
  done
}

__hx_run_before_all() {
  [ -n "$__hx_before_all" ] && [ -z "$__hx_unused" ] || return 0
  local __hx_errexit=$-
  set +e
  eval "set -- $__hx_before_all"
  __hx_before_all=
  for __hx_code in "$@"; do
    __hx_try before_all || {
      __hx_broken="BeforeAll '$__hx_code' failed"
      break
    }
  done
  case $__hx_errexit in *e*) set -e ;; esac
}

__hx_run_after_all() {
  [ -z "$__hx_unused" ] || return 0
  eval "__hx_reversed $__hx_after_all"
  eval "set -- $__hx_list"
  for __hx_code in "$@"; do
    __hx_try after_all || break
  done
}

before_each() { __hx_hook before_each "$@"; }
after_each() { __hx_hook after_each "$@"; }
before_all() { __hx_hook before_all "$@"; }
after_all() { __hx_hook after_all "$@"; }

# other names of these functions, which older projects use
shellspec_before_each() { __hx_hook before_each "$@"; }
shellspec_after_each() { __hx_hook after_each "$@"; }
shellspec_before_all() { __hx_hook before_all "$@"; }
shellspec_after_all() { __hx_hook after_all "$@"; }

__hx_skip() { # [REASON]
  if [ -n "$__hx_in_example" ]; then
    [ -n "$__hx_mute" ] || __hx_report skip "${1-}"
    __hx_mute=1
  else
    [ -n "${__hx_skip_reason+x}" ] || __hx_skip_reason=${1-}
    [ "$__hx_seen" -ge 0 ] || __hx_unused=1
  fi
}

__hx_skip_if() { # [REASON [CMD...]]: without a command, skip nothing
  [ "$#" -gt 1 ] || return 0
  local __hx_reason="$1"
  shift
  if ("$@") >/dev/null; then
    __hx_skip "$__hx_reason"
  fi
}

__hx_pending() { # [REASON]
  if [ -n "$__hx_in_example" ]; then
    [ -n "$__hx_mute" ] || __hx_report pending "${1-}"
  else
    __hx_pending_reason=${1-}
  fi
}

__hx_misuse() { # LINE MESSAGE
  [ -n "$__hx_mute" ] || __hx_report misuse "$1" "$2"
}

__hx_row() {
  __hx_quote_all "$@"
  eval "__hx_row_$__hx_nrows=\$__hx_quoted"
  __hx_nrows=$((__hx_nrows + 1))
}

__hx_path() { # NAME=PATH...
  local __hx_pair
  for __hx_pair in "$@"; do
    case $__hx_pair in
      *=*)
        __hx_quote_all "${__hx_pair%%=*}" "${__hx_pair#*=}"
        __hx_aliases="$__hx_aliases$__hx_quoted"
        ;;
    esac
  done
}

__hx_set() { # OPTION:on|off...
  local __hx_option
  for __hx_option in "$@"; do
    case $__hx_option in
      *:on | *:off) ;;
      *) printf "Set: '%s' ends neither in ':on' nor in ':off'\n" "$__hx_option" >&2 ;;
    esac
  done
  __hx_quote_all "$@"
  __hx_options="$__hx_options$__hx_quoted"
}

__hx_apply_options() {
  [ -n "$__hx_options" ] || return 0
  eval "set -- $__hx_options"
  local __hx_option __hx_sign
  for __hx_option in "$@"; do
    case $__hx_option in
      *:on) __hx_sign=- ;;
      *) __hx_sign=+ ;;
    esac
    # an unknown option would end the shell
    ! (set "${__hx_sign}o" "${__hx_option%:*}") 2>/dev/null || set "${__hx_sign}o" "${__hx_option%:*}"
  done
}
