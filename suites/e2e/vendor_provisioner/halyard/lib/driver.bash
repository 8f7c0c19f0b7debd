# driver.bash - NVIDIA's run-file, its module, and what a node may reuse
#
# shellcheck shell=bash disable=SC2034,SC2154 # the other files of lib use or set it

readonly HAL_INSTALLER_LOG=/var/log/halyard/nvidia-installer.log
readonly HAL_MODPROBE=/etc/modprobe.d/halyard-gpu.conf

function driver_newest_kernel {
  local build
  for build in /lib/modules/*/build; do
    build="${build%/build}"
    printf '%s\n' "${build##*/}"
  done | sort --version-sort | tail -n 1
}

function driver_module_version {
  modinfo --field version -k "$1" nvidia 2>/dev/null || true
}

# driver_plan: 'reuse' what the image has, or 'install'. The first that applies is the reason.
function driver_plan {
  local kernel
  kernel="$(uname -r)"
  if [[ "$(state_get staged)" != "${HAL_DRIVER_VERSION}" ]]; then
    decide install not-staged
  elif [[ "$(driver_module_version "${kernel}")" != "${HAL_DRIVER_VERSION}" ]]; then
    decide install other-kernel
  elif [[ -n "$(state_get unhealthy)" ]]; then
    decide install unhealthy
  elif [[ "$(state_get converged)" == "${HAL_DRIVER_VERSION}" ]]; then
    decide reuse converged
  else
    decide reuse staged
  fi
}

function driver_write_modprobe {
  cat >"${HAL_MODPROBE}" <<'CONF'
# written by gpu-node-setup
install nouveau /bin/false
options nvidia NVreg_OpenRmEnableUnsupportedGpus=1
CONF
}

# driver_install KERNEL
function driver_install {
  local kernel="$1" runfile
  runfile="$(runfile_path)"
  state_drop staged
  driver_write_modprobe
  info "installing ${HAL_DRIVER_VERSION} for ${kernel}"
  sh "${runfile}" -s -a --no-drm --dkms "-k=${kernel}" "--log-file-name=${HAL_INSTALLER_LOG}" 2>&1 \
    | sed -u 's/^/nvidia-installer: /' \
    || die "${EX_INSTALLER}" "the installer of ${HAL_DRIVER_VERSION} failed; see ${HAL_INSTALLER_LOG}"
  ldconfig
  depmod "${kernel}"
  state_drop unhealthy
  state_set staged "${HAL_DRIVER_VERSION}"
}

# The mark is gone only where the driver answered, so that a next run installs it again.
function driver_verify {
  local answer
  state_set unhealthy verify
  if ! answer="$(timeout 60 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1)"; then
    die "${EX_VERIFY}" "nvidia-smi: ${answer}"
  fi
  info "nvidia-smi: ${answer}"
  [[ "${answer}" == *"${HAL_DRIVER_VERSION}"* ]] \
    || die "${EX_VERIFY}" "the driver that runs is not ${HAL_DRIVER_VERSION}: ${answer}"
  state_drop unhealthy
}
