# services.bash - what runs on the node for as long as it is one
#
# shellcheck shell=bash disable=SC2034,SC2154 # the other files of lib use or set it

readonly HAL_UNITS=/etc/systemd/system
readonly HAL_HEALTH=halyard-gpu-health.service

function services_write {
  cat >"${HAL_UNITS}/${HAL_HEALTH}" <<UNIT
[Unit]
Description=Halyard GPU health watcher
After=containerd.service
Before=kubelet.service

[Service]
Type=notify
NotifyAccess=all
ExecStart=${HAL_ROOT}/bin/gpu-health --interval 30
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
UNIT
  mkdir -p "${HAL_UNITS}/kubelet.service.d"
  cat >"${HAL_UNITS}/kubelet.service.d/20-halyard-gpu.conf" <<UNIT
[Unit]
After=${HAL_HEALTH}
Wants=${HAL_HEALTH}
UNIT
  systemctl daemon-reload
}

# The sampler outlives this run: it must not keep our lock.
function services_sampler {
  if [[ -f /run/halyard-sampler.pid ]] && kill -0 "$(</run/halyard-sampler.pid)" 2>/dev/null; then
    return 0
  fi
  setsid "${HAL_ROOT}/bin/gpu-sampler" </dev/null >>/var/log/halyard/sampler.log 2>&1 9>&- &
  printf '%d\n' "$!" >/run/halyard-sampler.pid
}

function services_start {
  services_write
  services_sampler
  systemctl enable --quiet "${HAL_HEALTH}"
  systemctl restart "${HAL_HEALTH}" || die "${EX_SERVICES}" "${HAL_HEALTH} does not start"
  systemctl restart kubelet.service || die "${EX_SERVICES}" "kubelet does not start"
  systemctl enable --quiet kubelet.service
}
