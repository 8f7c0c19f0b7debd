# Sets constants and the variables of the project's environment file; sources its helper modules.

minimum_version() { :; }
info() { builtin printf '%s\n' "$*"; }
warn() { builtin printf '%s\n' "$*"; }
error() { builtin printf '%s\n' "$*"; builtin exit 1; }
abort() { builtin printf '%s\n' "${1-}"; builtin exit "${2-1}"; }
setenv() { builtin export "$@"; __hx_environment+=("$@"); }
unsetenv() { builtin unset -v "$@"; }

import() { # NAME [ARGS...]
  local __hx_directory IFS=:
  for __hx_directory in $SHELLSPEC_LOAD_PATH; do
    if [[ -e $__hx_directory/$1.sh ]]; then
      unset IFS
      . "$__hx_directory/$1.sh" "${@:2}"
      return
    fi
  done
  builtin printf 'there is no helper module %s in %s\n' "$1" "$SHELLSPEC_LOAD_PATH" >&2
  builtin exit 1
}

shellspec_import() { import "$@"; }

__hx_precheck() { # MODULE: run its precheck, with the variables that a precheck may read
  local VERSION=$SHELLSPEC_VERSION SHELL_TYPE=bash SHELL_VERSION=$BASH_VERSION
  "$1_precheck"
}

SHELLSPEC_SOH=$'\001' SHELLSPEC_STX=$'\002' SHELLSPEC_ETX=$'\003' SHELLSPEC_EOT=$'\004'
SHELLSPEC_ENQ=$'\005' SHELLSPEC_ACK=$'\006' SHELLSPEC_BEL=$'\a' SHELLSPEC_BS=$'\b'
SHELLSPEC_TAB=$'\t' SHELLSPEC_HT=$'\t' SHELLSPEC_LF=$'\n' SHELLSPEC_VT=$'\v' SHELLSPEC_FF=$'\f' SHELLSPEC_CR=$'\r'
SHELLSPEC_ESC=$'\033' SHELLSPEC_RS=$'\036' SHELLSPEC_US=$'\037' SHELLSPEC_IFS=$' \t\n'
SHELLSPEC_SHELL_VERSION=$BASH_VERSION
builtin export SHELLSPEC_SHELL_VERSION
if [[ -n ${HX_ENV_FROM-} ]]; then
  # keep the exported variables of the file, but not its functions and its output
  eval "$(
    . "$HX_ENV_FROM" >/dev/null 2>&1
    builtin unset HX_ENV_FROM
    builtin export -p
  )"
  unset HX_ENV_FROM
fi
IFS=' ' builtin read -r -a __hx_modules <<<"$HX_REQUIRE"
for __hx_module in "${__hx_modules[@]}"; do
  import "$__hx_module"
  if builtin declare -F "${__hx_module}_precheck" >/dev/null; then
    __hx_precheck=$(__hx_precheck "$__hx_module" 2>&1) || {
      __hx_report precheck "$__hx_module" "$?" "$__hx_precheck"
      builtin exit 1
    }
    __hx_precheck "$__hx_module" >/dev/null 2>&1
  fi
  ! builtin declare -F "${__hx_module}_loaded" >/dev/null || "${__hx_module}_loaded"
done
for __hx_module in "${__hx_modules[@]}"; do
  ! builtin declare -F "${__hx_module}_configure" >/dev/null || "${__hx_module}_configure"
done
case $- in *e*) __hx_run_errexit=1 ;; esac
unset __hx_module __hx_modules
unset -f minimum_version info warn error abort setenv unsetenv __hx_precheck
