# packages.bash - what the distribution provides, and our own tools from the mirror
#
# shellcheck shell=bash disable=SC2034,SC2154 # the other files of lib use or set it

readonly HAL_BUILD_PACKAGES=(dkms gcc make)
readonly HAL_TOOLS=halyard-gpu-tools

function packages_installed {
  [[ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

# apt waits for unattended-upgrades, which every machine runs in its first minutes.
function packages_apt {
  DEBIAN_FRONTEND=noninteractive apt-get \
    --quiet --yes --no-install-recommends \
    --option DPkg::Lock::Timeout=120 \
    --option Dpkg::Options::=--force-confold \
    "$@"
}

function packages_ensure {
  local name wanted=()
  for name in "${HAL_BUILD_PACKAGES[@]}"; do
    packages_installed "${name}" || wanted+=("${name}")
  done
  if ((${#wanted[@]} > 0)); then
    info "installing ${wanted[*]}"
    retry apt packages_apt install "${wanted[@]}" \
      || die "${EX_PACKAGES}" "the packages ${wanted[*]} can't be installed"
  fi
  packages_installed "${HAL_TOOLS}" || packages_tools
}

function packages_tools {
  local deb="${HAL_CACHE}/${HAL_TOOLS}.deb"
  fetch_file "${HAL_TOOLS}.deb" "${deb}"
  info "installing ${HAL_TOOLS}"
  packages_apt install "${deb}" || die "${EX_PACKAGES}" "${HAL_TOOLS} can't be installed"
}
