# runtime.bash - containerd and the Container Device Interface
#
# shellcheck shell=bash disable=SC2034,SC2154 # the other files of lib use or set it

readonly HAL_CONTAINERD=/etc/containerd/config.toml
readonly HAL_CDI=/etc/cdi/halyard.yaml
readonly HAL_RUNTIME_PROGRAM=/usr/local/bin/nvidia-container-runtime

function runtime_toml {
  cat <<TOML
# written by gpu-node-setup
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]

[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
  BinaryName = "${HAL_RUNTIME_PROGRAM}"
TOML
}

function runtime_configure {
  install -m 0755 "${HAL_ROOT}/share/nvidia-container-runtime" "${HAL_RUNTIME_PROGRAM}"
  mkdir -p "${HAL_CONTAINERD%/*}"
  if runtime_toml | cmp --silent - "${HAL_CONTAINERD}"; then
    info "containerd is configured already"
    return 0
  fi
  runtime_toml >"${HAL_CONTAINERD}.tmp"
  mv -f "${HAL_CONTAINERD}.tmp" "${HAL_CONTAINERD}"
  info "restarting containerd"
  systemctl restart containerd || die "${EX_RUNTIME}" "containerd does not start with ${HAL_CONTAINERD}"
  until_true 30 ctr version || die "${EX_RUNTIME}" "containerd does not answer"
}

function runtime_cdi_spec {
  local node index=0
  printf 'cdiVersion: "0.5.0"\nkind: nvidia.com/gpu\ndevices:\n'
  for node in /dev/nvidia[0-9]*; do
    printf '  - name: "%d"\n    containerEdits:\n      deviceNodes:\n        - path: %s\n' "${index}" "${node}"
    index=$((index + 1))
  done
  printf 'containerEdits:\n  deviceNodes:\n'
  for node in /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools; do
    [[ ! -c "${node}" ]] || printf '    - path: %s\n' "${node}"
  done
}

function runtime_write_cdi {
  mkdir -p "${HAL_CDI%/*}"
  runtime_cdi_spec >"${HAL_CDI}.tmp"
  grep -q 'path: /dev/nvidia[0-9]' "${HAL_CDI}.tmp" || die "${EX_CDI}" "no GPU has a device node"
  mv -f "${HAL_CDI}.tmp" "${HAL_CDI}"
}
