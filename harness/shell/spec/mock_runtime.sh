# The functions that the body of a mocked command may call; %preserve returns variables to the spec.

__hx_newline=$'\n'

__hx_puts() {
  local IFS=' '
  printf '%s' "$*"
}

__hx_putsn() {
  local IFS=' '
  printf '%s\n' "$*"
}

__hx_printf() { printf "$@"; }

__hx_sleep() { command -p sleep "$@"; }

__hx_logger() {
  local IFS=' '
  printf '%s\n' "$*" >>"${SHELLSPEC_LOGFILE:-/dev/null}"
}

__hx_expand() {
  local __hx_text=$1
  shift
  eval "IFS= read -r -d '' __hx_text <<__HX_TEXT__
${__hx_text}__HX_TEXT__
" || :
  printf '%s' "$__hx_text"
}

__hx_preserve() { # V[:NEW]...
  local __hx_pair
  for __hx_pair in "$@"; do
    printf '%s=%s=' "${__hx_pair%%:*}" "${__hx_pair#*:}" >>/proc/self/fd/199
    declare -p "${__hx_pair%%:*}" 2>/dev/null >>/proc/self/fd/199 || :
    printf '\0' >>/proc/self/fd/199
  done
}

if [[ -s /proc/self/fd/199 ]]; then
  while IFS= read -r -d '' __hx_entry; do
    __hx_old=${__hx_entry%%=*}
    __hx_entry=${__hx_entry#*=}
    __hx_new=${__hx_entry%%=*}
    __hx_entry=${__hx_entry#*=}
    case $__hx_entry in
      'declare '*) eval "${__hx_entry/" $__hx_old="/" $__hx_new="}" 2>/dev/null || : ;;
    esac
  done </proc/self/fd/199
  unset __hx_entry __hx_old __hx_new
fi
