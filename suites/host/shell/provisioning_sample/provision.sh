#!/usr/bin/env bash
# Provisions a GPU node: a sample to be tested with stateful fakes.
#
# It decides whether the driver that was built into the image can be used, installs one otherwise,
# starts the services of a managed node, and removes the driver from a node that opted out.

DRIVER_KIND=${DRIVER_KIND:-cuda-lts}
DRIVER_VERSION=${DRIVER_VERSION:-580.126.09}
DRIVER_SHA=${DRIVER_SHA:-20260801000000}
REGISTRY=${REGISTRY:-mcr.microsoft.com}
RECORD=${RECORD:-/opt/gpu-node/prebake-record}
OUTCOME=${OUTCOME:-/var/log/gpu-node-provision.log}
TAGS_CACHE=${TAGS_CACHE:-/var/cache/gpu-node/tags.json}
MIG_STRATEGY=${MIG_STRATEGY:-None}

ERR_APT=9
ERR_DRIVER=84
ERR_CONTAINERD=85
ERR_DEVICE_PLUGIN=86
ERR_TAGS=224

METADATA_URL='http://169.254.169.254/metadata/instance/compute/tagsList?api-version=2021-02-01'
DKMS_TREE=/var/lib/dkms
UNITS=/etc/systemd/system
MODULES=(nvidia_uvm nvidia_drm nvidia_modeset nvidia_peermem nvidia)
BUILD_PACKAGES=(gcc make libc6-dev)

log() {
  echo "gpu-node: $*" | tee -a "$OUTCOME"
}

# retry ATTEMPTS SECONDS COMMAND...: run it until it succeeds.
retry() {
  local attempts=$1 pause=$2 attempt
  shift 2
  for ((attempt = 1; attempt <= attempts; attempt++)); do
    "$@" && return 0
    [ "$attempt" -eq "$attempts" ] || sleep "$pause"
  done
  log "gave up after $attempts attempts: $*"
  return 1
}

#
# Tags of the virtual machine
#

fetch_tags() {
  mkdir -p "$(dirname "$TAGS_CACHE")"
  retry 5 2 curl -fsS --noproxy '*' --max-time 10 -H Metadata:true \
    -o "$TAGS_CACHE" "$METADATA_URL" || return "$ERR_TAGS"
}

# Whether a tag is set to "true"; whole name and value, in any case.
has_tag() {
  local wanted="{\"name\":\"$1\",\"value\":\"true\"}"
  tr '{' '\n' <"$TAGS_CACHE" | sed 's/^"/{"/; s/},*\]*$/}/' | grep -Fixq "$wanted"
}

#
# What was baked into the image
#

record_field() {
  [ -f "$RECORD" ] || return 1
  sed -n "s/^$1=//p" "$RECORD" | head -n 1
}

# The family of a driver: cuda and cuda-lts are one.
driver_family() {
  case $1 in
    cuda*) echo cuda ;;
    grid*) echo grid ;;
    *) echo "$1" ;;
  esac
}

is_registered() {
  local version=$1 kernel=$2 arch=$3
  dkms status -m nvidia -v "$version" -k "$kernel" -a "$arch" |
    grep -qE '^nvidia[/,] ?[^,]+, [^:]+: installed$'
}

# Prints "ACTION REASON"; the first reason that applies decides.
decide() {
  local kind version kernel
  if [ ! -f "$RECORD" ]; then
    echo "install no_record"
    return
  fi
  kind=$(record_field driver_kind)
  version=$(record_field driver_version)
  kernel=$(record_field kernel)
  if [ -z "$kind" ] || [ -z "$version" ]; then
    echo "teardown,install corrupt"
  elif [ "$(driver_family "$kind")" != "$(driver_family "$DRIVER_KIND")" ]; then
    echo "teardown,install kind"
  elif [ "$version" != "$DRIVER_VERSION" ]; then
    echo "teardown,install version"
  elif [ "$kernel" != "$(uname -r)" ]; then
    echo "install kernel"
  elif ! is_registered "$version" "$kernel" "$(uname -m)"; then
    echo "install dkms"
  elif [ "$(modinfo -F version -k "$kernel" nvidia 2>/dev/null)" != "$version" ]; then
    echo "install module"
  else
    echo "install-skip-build ok"
  fi
}

#
# The driver's container image
#

driver_image() {
  echo "mcr.microsoft.com/aks/aks-gpu-$DRIVER_KIND:$DRIVER_VERSION-$DRIVER_SHA"
}

pull_image() {
  local image source
  image=$(driver_image)
  source=${REGISTRY%/}/${image#*/}
  if ctr -n k8s.io images ls -q "name==$image" | grep -qx "$image"; then
    return 0
  fi
  retry 3 5 ctr -n k8s.io images pull "$source" >/dev/null || return "$ERR_DRIVER"
  if [ "$source" != "$image" ]; then
    ctr -n k8s.io images tag --force "$source" "$image" >/dev/null || return "$ERR_DRIVER"
  fi
}

run_image() {
  mkdir -p /opt/gpu /opt/actions
  ctr -n k8s.io run --rm --privileged --net-host --with-ns pid:/proc/1/ns/pid \
    --mount type=bind,src=/opt/gpu,dst=/mnt/gpu,options=rbind \
    --mount type=bind,src=/opt/actions,dst=/mnt/actions,options=rbind \
    "$(driver_image)" gpuinstall /entrypoint.sh "$1"
}

remove_image() {
  local image
  image=$(driver_image)
  ctr -n k8s.io images rm --sync "$image" >/dev/null
  [ "${REGISTRY%/}/${image#*/}" = "$image" ] ||
    ctr -n k8s.io images rm --sync "${REGISTRY%/}/${image#*/}" >/dev/null
}

write_record() {
  mkdir -p "$(dirname "$RECORD")"
  cat >"$RECORD" <<RECORD_END
kernel=$(uname -r)
driver_version=$DRIVER_VERSION
driver_kind=$DRIVER_KIND
arch=$(uname -m)
RECORD_END
}

#
# Installing
#

install_packages() {
  local package missing=()
  for package in "${BUILD_PACKAGES[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  retry 3 5 apt-get update -qq || return "$ERR_APT"
  retry 10 2 apt-get install -y --no-install-recommends "${missing[@]}" >/dev/null ||
    return "$ERR_APT"
  apt-mark hold "${missing[@]}" >/dev/null
}

restart_containerd() {
  retry 5 2 systemctl restart containerd || return "$ERR_CONTAINERD"
}

# A baked driver gets one attempt; what fails falls through to a full installation.
install_driver() {
  local action=$1
  if [ "$action" = install-skip-build ]; then
    if run_image install-skip-build; then
      return 0
    fi
    log "the baked driver did not start; installing it again"
  fi
  install_packages || return
  retry 5 10 run_image install || return "$ERR_DRIVER"
  write_record
}

validate_driver() {
  retry 3 5 modprobe nvidia || return "$ERR_DRIVER"
  lsmod | awk '{ print $1 }' | grep -qx nvidia || return "$ERR_DRIVER"
  [ "$(modinfo -F version nvidia)" = "$DRIVER_VERSION" ] || return "$ERR_DRIVER"
}

#
# Removing
#

# Unload all of the driver's modules, or none where one is in use by something else.
unload_modules() {
  local module loaded count holders=0
  loaded=$(lsmod)
  for module in "${MODULES[@]}"; do
    count=$(awk -v name="$module" '$1 == name { print $3 }' <<<"$loaded")
    holders=$(awk -v name="$module" '$1 == name { print gsub(/[a-z_]+/, "", $4) }' <<<"$loaded")
    if [ -n "$count" ] && [ "$count" -gt "${holders:-0}" ]; then
      log "module $module is in use"
      return 1
    fi
  done
  for module in "${MODULES[@]}"; do
    if awk '{ print $1 }' <<<"$loaded" | grep -qx "$module"; then
      rmmod "$module" || return 1
    fi
  done
}

has_residue() {
  [ -e "$DKMS_TREE/nvidia" ] && return 0
  compgen -G '/lib/modules/*/updates/dkms/nvidia*.ko*' >/dev/null && return 0
  lsmod | awk '{ print $1 }' | grep -qx nvidia
}

# Remove the baked driver; the record stays until all of it is gone, so that a next run goes on.
teardown() {
  [ -f "$RECORD" ] || return 0
  unload_modules
  rm -rf "$DKMS_TREE/nvidia"
  rm -f /lib/modules/*/updates/dkms/nvidia*.ko*
  rm -f /etc/ld.so.conf.d/nvidia.conf /usr/bin/nvidia-smi /usr/bin/nvidia-modprobe
  depmod -a
  if has_residue; then
    log "event=teardown status=incomplete"
    return 1
  fi
  rm -f "$RECORD"
  log "event=teardown status=cleaned"
}

#
# Services of a managed node
#

write_device_plugin_drop_in() {
  local flags=--pass-device-specs
  case $MIG_STRATEGY in
    Mixed) flags="--mig-strategy mixed $flags" ;;
    Single) flags="--mig-strategy single $flags" ;;
  esac
  mkdir -p "$UNITS/nvidia-device-plugin.service.d"
  cat >"$UNITS/nvidia-device-plugin.service.d/10-flags.conf" <<DROP_IN_END
[Service]
ExecStart=
ExecStart=/usr/bin/nvidia-device-plugin $flags
DROP_IN_END
}

start_managed_services() {
  local unit
  systemctl enable nvidia-device-plugin nvidia-dcgm
  write_device_plugin_drop_in
  systemctl daemon-reload
  retry 20 5 systemctl restart nvidia-device-plugin || return "$ERR_DEVICE_PLUGIN"
  # Monitoring may come later.
  for unit in nvidia-dcgm nvidia-dcgm-exporter; do
    systemctl restart --no-block "$unit" || log "warning: $unit could not be enqueued"
  done
}

stop_managed_services() {
  local unit
  for unit in nvidia-device-plugin nvidia-dcgm nvidia-dcgm-exporter; do
    if systemctl is-enabled --quiet "$unit" 2>/dev/null || systemctl is-active --quiet "$unit"; then
      systemctl disable --now "$unit"
    fi
  done
}

#
# The node
#

provision_gpu() {
  local action reason
  read -r action reason < <(decide)
  log "event=decision action=$action reason=$reason"
  if [[ $action = teardown,* ]]; then
    teardown || log "the old driver is not gone; installing over it"
    action=install
  fi
  pull_image || return
  install_driver "$action" || return
  remove_image
  restart_containerd || return
  validate_driver
}

main() {
  mkdir -p "$(dirname "$OUTCOME")"
  fetch_tags || return
  if has_tag SkipGpuDriverInstall; then
    log "event=decision action=teardown reason=opted_out"
    stop_managed_services
    teardown
    return 0
  fi
  provision_gpu || return
  if has_tag EnableManagedGPUExperience; then
    start_managed_services || return
  fi
  log "the node is ready"
}

[ "${BASH_SOURCE[0]}" != "$0" ] || main "$@"
