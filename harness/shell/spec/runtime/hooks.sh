# Runs the hooks of groups, and the hooks before and after each example.

__hx_hook() { # KIND CODE...
  eval "__hx_$1+=(\"\${@:2}\")"
  case $1 in *_call) __hx_special=hooked ;; esac
}

__hx_eval() {
  eval "$__hx_code"
}

__hx_try() { # KIND: run __hx_code; a status other than 0 or any text on stderr is a failure
  __hx_hook_status=0
  __hx_report hooking "$1" "$__hx_code"
  __hx_eval 2>|/proc/self/fd/196 </dev/null || __hx_hook_status=$?
  if ((__hx_hook_status)) || [[ -s /proc/self/fd/196 ]]; then
    local __hx_text # local, since the global variable has the bodies of blocks
    __hx_read_file /proc/self/fd/196
    __hx_report hook "$1" "$__hx_code" "$__hx_hook_status" "$__hx_text" "$__hx_group_line"
    return 1
  fi
  __hx_report hooked
}

__hx_run_before_each() {
  for __hx_code in "${__hx_before_each[@]}"; do
    __hx_try before_each || {
      __hx_report finished
      builtin exit 0
    }
  done
}

__hx_run_after_each() {
  builtin set +e
  for ((__hx_at = ${#__hx_after_each[@]} - 1; __hx_at >= 0; __hx_at--)); do
    __hx_code=${__hx_after_each[__hx_at]}
    __hx_try after_each || break
  done
}

__hx_run_before_all() {
  ((${#__hx_before_all[@]})) && [[ -z $__hx_unused ]] || return 0
  local __hx_errexit=$-
  builtin set +e
  local __hx_hooks=("${__hx_before_all[@]}")
  __hx_before_all=()
  for __hx_code in "${__hx_hooks[@]}"; do
    __hx_try before_all || {
      __hx_broken="BeforeAll '$__hx_code' failed"
      break
    }
  done
  case $__hx_errexit in *e*) builtin set -e ;; esac
}

__hx_run_after_all() {
  [[ -z $__hx_unused ]] || return 0
  for ((__hx_at = ${#__hx_after_all[@]} - 1; __hx_at >= 0; __hx_at--)); do
    __hx_code=${__hx_after_all[__hx_at]}
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
