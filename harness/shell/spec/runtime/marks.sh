# Marks examples as skipped or pending; notes their rows, paths and options.

__hx_skip() { # [REASON]
  if [[ -n $__hx_in_example ]]; then
    [[ -n $__hx_mute ]] || __hx_report skip "${1-}"
    __hx_mute=1 __hx_special=skipped
  else
    [[ -n ${__hx_skip_reason+x} ]] || __hx_skip_reason=${1-}
    ((__hx_seen >= 0)) || __hx_unused=1
  fi
}

__hx_skip_if() { # [REASON [CMD...]]: without a command, skip nothing
  if (($# > 1)) && ("${@:2}") >/dev/null; then
    __hx_skip "$1"
  fi
}

__hx_pending() { # [REASON]
  if [[ -n $__hx_in_example ]]; then
    [[ -n $__hx_mute ]] || __hx_report pending "${1-}"
  else
    __hx_pending_reason=${1-}
  fi
}

__hx_misuse() { # LINE MESSAGE
  [[ -n $__hx_mute ]] || __hx_report misuse "$1" "$2"
}

__hx_row() {
  eval "__hx_row_$__hx_nrows=(\"\$@\")"
  __hx_nrows=$((__hx_nrows + 1))
}

__hx_path() {
  local __hx_pair
  for __hx_pair in "$@"; do
    case $__hx_pair in
      *=*) : "${__hx_aliases[${__hx_pair%%=*}]=${__hx_pair#*=}}" ;; # the first definition counts
    esac
  done
}

__hx_set() { # OPTION:on|off...
  local __hx_option
  for __hx_option in "$@"; do
    [[ $__hx_option == *:o@(n|ff) ]] || builtin printf "Set: '%s' ends neither in ':on' nor in ':off'\n" "$__hx_option" >&2
  done
  __hx_options+=("$@")
  __hx_special=options
}

__hx_apply_options() {
  local __hx_option
  for __hx_option in "${__hx_options[@]}"; do
    case $__hx_option in
      *:on) builtin set -o "${__hx_option%:*}" 2>/dev/null || builtin shopt -s "${__hx_option%:*}" ;;
      *:off) builtin set +o "${__hx_option%:*}" 2>/dev/null || builtin shopt -u "${__hx_option%:*}" ;;
    esac
  done
}
