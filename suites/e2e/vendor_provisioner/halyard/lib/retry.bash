# retry.bash - try again what the network or another process may spoil
#
# shellcheck shell=bash disable=SC2034,SC2154 # the other files of lib use or set it

# retry WHAT COMMAND...: HAL_TRIES times, with a pause that doubles. Returns the last exit code.
function retry {
  local what="$1" attempt=0 pause="${HAL_PAUSE_S}" code=0
  shift
  while ((attempt < HAL_TRIES)); do
    attempt=$((attempt + 1))
    code=0
    "$@" || code="$?"
    ((code != 0)) || return 0
    warn "${what}: try ${attempt} of ${HAL_TRIES} ended with ${code}"
    if ((attempt < HAL_TRIES)); then
      sleep "${pause}"
      pause=$((pause * 2))
    fi
  done
  return "${code}"
}

# until_true SECONDS COMMAND...: poll it quietly.
function until_true {
  local limit=$((SECONDS + $1))
  shift
  while ! "$@" >/dev/null 2>&1; do
    ((SECONDS < limit)) || return 1
    sleep 0.2
  done
}
