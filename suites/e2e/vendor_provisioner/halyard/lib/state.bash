# state.bash - what earlier runs have reached: one file for each key, written beside and renamed
#
# shellcheck shell=bash disable=SC2034,SC2154 # the other files of lib use or set it

readonly HAL_STATE="${HAL_STATE:-/var/lib/halyard/gpu/state.d}"

function state_set {
  mkdir -p "${HAL_STATE}"
  printf '%s\n' "$2" >"${HAL_STATE}/.$1.tmp"
  mv -f "${HAL_STATE}/.$1.tmp" "${HAL_STATE}/$1"
}

function state_get {
  local file="${HAL_STATE}/$1"
  if [[ -f "${file}" ]]; then
    head -n 1 "${file}"
  fi
}

function state_drop {
  rm -f "${HAL_STATE}/$1"
}

function state_clear {
  rm -rf "${HAL_STATE}"
}
