# teardown.bash - gives the machine back as the image pipeline got it
#
# shellcheck shell=bash disable=SC2034,SC2154 # the other files of lib use or set it

readonly HAL_MODULES=(nvidia_uvm nvidia_drm nvidia_modeset nvidia)
readonly HAL_PROGRAMS=(smi modprobe debugdump persistenced powerd ngx-updater sleep.sh bug-report.sh
  cuda-mps-control cuda-mps-server)

function teardown_services {
  local pid
  if systemctl cat "${HAL_HEALTH}" >/dev/null 2>&1; then
    systemctl disable --quiet --now "${HAL_HEALTH}"
  fi
  if [[ -f /run/halyard-sampler.pid ]]; then
    pid="$(</run/halyard-sampler.pid)"
    kill "${pid}" 2>/dev/null || true
    rm -f /run/halyard-sampler.pid
  fi
  rm -f "${HAL_UNITS}/${HAL_HEALTH}"
  rm -rf "${HAL_UNITS}/kubelet.service.d"
  systemctl daemon-reload
}

function teardown_unload {
  local module
  for module in "${HAL_MODULES[@]}"; do
    [[ -d "/sys/module/${module}" ]] || continue
    rmmod "${module}" || die "${EX_TEARDOWN}" "${module} is in use"
  done
}

function teardown_files {
  local program version kernel
  for version in /var/lib/dkms/nvidia/*/source; do
    version="${version%/source}"
    dkms remove "nvidia/${version##*/}" --all >/dev/null
  done
  for kernel in /lib/modules/*/updates/dkms/nvidia*.ko*; do
    rm -f "${kernel}"
  done
  rm -rf /var/lib/dkms/nvidia /usr/src/nvidia-[0-9]*
  for program in "${HAL_PROGRAMS[@]}"; do
    rm -f "/usr/bin/nvidia-${program}"
  done
  rm -f /usr/lib/x86_64-linux-gnu/{libcuda,libnvidia-ml}.so*
  rm -f /dev/nvidia* "${HAL_RUNTIME_PROGRAM}" "${HAL_CDI}" "${HAL_MODPROBE}" "${HAL_NODES_TMPFILES}"
  rm -rf "${HAL_CACHE}"
  ldconfig
  depmod --all
}
