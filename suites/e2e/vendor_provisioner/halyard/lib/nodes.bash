# nodes.bash - kernel modules and device nodes
#
# shellcheck shell=bash disable=SC2034,SC2154 # the other files of lib use or set it

readonly HAL_NODES_TMPFILES=/etc/tmpfiles.d/halyard-gpu.conf

function nodes_count_gpus {
  local count=0 vendor class
  for vendor in /sys/bus/pci/devices/*/vendor; do
    class="$(<"${vendor%/vendor}/class")"
    if [[ "$(<"${vendor}")" == 0x10de && "${class}" == 0x03* ]]; then
      count=$((count + 1))
    fi
  done
  printf '%d\n' "${count}"
}

function nodes_create {
  local gpus index=0 arguments=()
  driver_write_modprobe
  modprobe nvidia || die "${EX_NODES}" "the module nvidia can't be loaded"
  gpus="$(nodes_count_gpus)"
  while ((index < gpus)); do
    arguments+=("-c${index}")
    index=$((index + 1))
  done
  info "${gpus} GPUs"
  nvidia-modprobe "${arguments[@]}" -c255 || die "${EX_NODES}" "nvidia-modprobe can't make the nodes of ${gpus} GPUs"
  nvidia-modprobe -u -c0 || die "${EX_NODES}" "nvidia-modprobe can't make the nodes of unified memory"
  nodes_grant
}

# Workloads run as members of a group, which the image has.
function nodes_grant {
  getent group halyard-gpu >/dev/null || groupadd --system halyard-gpu
  printf 'z /dev/nvidia* 0666 root halyard-gpu - -\n' >"${HAL_NODES_TMPFILES}"
  systemd-tmpfiles --create "${HAL_NODES_TMPFILES}"
}
