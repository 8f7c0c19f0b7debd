# core.bash - log, configuration, lock, phases and the result file
#
# shellcheck shell=bash disable=SC2034,SC2154 # the other files of lib use or set it

readonly EX_USAGE=3
readonly EX_CONFIG=10
readonly EX_BUSY=11
readonly EX_HOST=12
readonly EX_PACKAGES=20
readonly EX_FETCH=30
readonly EX_CHECKSUM=31
readonly EX_INSTALLER=32
readonly EX_NODES=40
readonly EX_RUNTIME=50
readonly EX_CDI=51
readonly EX_SERVICES=60
readonly EX_VERIFY=70
readonly EX_TEARDOWN=80

readonly HAL_CONFIG="${HAL_CONFIG:-/etc/halyard/gpu.conf}"
readonly HAL_LOG="${HAL_LOG:-/var/log/halyard/gpu-node-setup.log}"
readonly HAL_RESULT="${HAL_RESULT:-/var/lib/halyard/gpu/result.json}"
readonly HAL_LOCK="${HAL_LOCK:-/run/halyard-gpu.lock}"

HAL_VERB=
HAL_PHASE=begin
HAL_MESSAGE=
HAL_PLAN=none
HAL_REASON=none

# One line: TIME|PID|LEVEL|PHASE|TEXT. The collector of the fleet splits at the bars.
function say {
  local level="$1"
  shift
  printf '%s|%d|%s|%s|%s\n' "$(date -u +%H:%M:%S)" "$$" "${level}" "${HAL_PHASE}" "$*" \
    | tee -a "${HAL_LOG}"
}

function info { say I "$@"; }
function warn { say W "$@"; }

# die CODE TEXT...: the text is also the message of the result file.
function die {
  local code="$1"
  shift
  HAL_MESSAGE="$*"
  say E "HG${code} ${HAL_MESSAGE}"
  exit "${code}"
}

function json_string {
  local text="${1//\\/\\\\}"
  text="${text//\"/\\\"}"
  printf '"%s"' "${text//$'\n'/ }"
}

# The only writer of the result file; runs at every exit.
function core_end {
  local code="$?" outcome=ok
  trap - EXIT
  if ((code != 0)); then
    outcome=failed
    if [[ -z "${HAL_MESSAGE}" ]]; then
      HAL_MESSAGE="phase ${HAL_PHASE} was not finished"
      say E "HG${code} ${HAL_MESSAGE}"
    fi
  fi
  {
    printf '{"verb": %s, "outcome": "%s", "code": %d, ' "$(json_string "${HAL_VERB}")" "${outcome}" "${code}"
    printf '"phase": %s, "message": %s, ' "$(json_string "${HAL_PHASE}")" "$(json_string "${HAL_MESSAGE}")"
    printf '"plan": "%s", "reason": "%s"}\n' "${HAL_PLAN}" "${HAL_REASON}"
  } >"${HAL_RESULT}.tmp"
  mv -f "${HAL_RESULT}.tmp" "${HAL_RESULT}"
  exit "${code}"
}

function core_begin {
  HAL_VERB="$1"
  mkdir -p "${HAL_LOG%/*}" "${HAL_RESULT%/*}"
  trap core_end EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  info "gpu-node-setup ${HAL_VERB} on $(uname -r)"
}

function core_lock {
  exec 9>>"${HAL_LOCK}"
  if ! flock --timeout 2 9; then
    die "${EX_BUSY}" "another run holds ${HAL_LOCK}: $(fuser "${HAL_LOCK}" 2>/dev/null || echo unknown process)"
  fi
}

function core_load_config {
  [[ -r "${HAL_CONFIG}" ]] || die "${EX_CONFIG}" "${HAL_CONFIG} is not readable"
  # shellcheck source=/dev/null
  source "${HAL_CONFIG}"
  local name
  for name in HAL_DRIVER_VERSION HAL_MIRROR; do
    [[ -n "${!name:-}" ]] || die "${EX_CONFIG}" "${name} is not set in ${HAL_CONFIG}"
  done
  HAL_TRIES="${HAL_TRIES:-4}"
  HAL_PAUSE_S="${HAL_PAUSE_S:-1}"
  HAL_CACHE="${HAL_CACHE:-/var/cache/halyard/gpu}"
  HAL_PREFIX="${HAL_PREFIX:-/usr}"
}

# phase NAME COMMAND...
function phase {
  HAL_PHASE="$1"
  local begun="${SECONDS}"
  shift
  info "begin"
  "$@"
  info "done after $((SECONDS - begun)) s"
}

function decide {
  HAL_PLAN="$1"
  HAL_REASON="$2"
  info "plan=${HAL_PLAN} reason=${HAL_REASON}"
}

function preflight_host {
  [[ "$(id -u)" == 0 ]] || die "${EX_HOST}" "gpu-node-setup has to run as root"
  [[ "$(uname -m)" == x86_64 ]] || die "${EX_HOST}" "there is no driver for $(uname -m)"
  local kib
  kib="$(df --output=avail -k /var | tail -n 1)"
  ((kib > 524288)) || die "${EX_HOST}" "/var has ${kib} KiB left, and a build needs 524288"
}

function preflight_has_gpu {
  grep -qx 0x10de /sys/bus/pci/devices/*/vendor
}
