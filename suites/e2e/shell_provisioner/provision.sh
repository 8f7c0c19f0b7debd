#!/usr/bin/env bash
# Provisions a GPU node: an example that is tested by its functions and in machines.
#
#   provision.sh boot      decide whether the driver that was baked into the image can be used, build
#                          one otherwise, start the services of a managed node; remove the driver
#                          from a node that has no GPU or opted out
#   provision.sh plan      log what boot would decide, and leave driver and services as they are
#   provision.sh bake      build the driver for the newest kernel, on a machine without a GPU
#   provision.sh teardown  remove the baked driver

CONFIG=${CONFIG:-/etc/gpu-node/provision.conf}
# shellcheck source=/dev/null
[ ! -r "$CONFIG" ] || . "$CONFIG"

DRIVER_KIND=${DRIVER_KIND:-cuda-lts}
DRIVER_VERSION=${DRIVER_VERSION:-580.126.09}
DRIVER_SHA=${DRIVER_SHA:-20260801000000}
REGISTRY=${REGISTRY:-mcr.microsoft.com}
RECORD=${RECORD:-/opt/azure/aks-gpu/dkms-marker}
OUTCOME=${OUTCOME:-/var/log/gpu-node-provision.log}
TAGS_CACHE=${TAGS_CACHE:-/var/cache/gpu-node/tags.json}
EVENTS=${EVENTS:-/var/log/gpu-node/events}
MIG_STRATEGY=${MIG_STRATEGY:-None}
PLUGIN_ATTEMPTS=${PLUGIN_ATTEMPTS:-20}

ERR_USAGE=2
ERR_KUBELET=4
ERR_APT=9
ERR_DRIVER=84
ERR_CONTAINERD=85
ERR_DEVICE_PLUGIN=86
ERR_TAGS=224

METADATA_URL=${METADATA_URL:-http://169.254.169.254/metadata/instance/compute/tagsList?api-version=2021-02-01}
DKMS_TREE=/var/lib/dkms
UNITS=/etc/systemd/system
LIBRARIES=/usr/bin/lib64
LINKER_CONFIGURATION=/etc/ld.so.conf.d/nvidia.conf
PROGRAMS=(/usr/bin/nvidia-{smi,debugdump,persistenced,modprobe,powerd,ngx-updater}
  /usr/bin/nvidia-cuda-mps-{control,server} /usr/bin/nvidia-{bug-report.sh,sleep.sh})
MODULES=(nvidia_uvm nvidia_drm nvidia_modeset nvidia_peermem nvidia)
BUILD_PACKAGES=(gcc make libc6-dev)
PAYLOAD=/opt/gpu

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

# event TASK COMMAND...: run it, and leave an event file that is named by the millisecond.
event() {
  local task=$1 started milliseconds attempt status=0
  shift
  started=$(date -u '+%F %T.%3N')
  milliseconds=$(date '+%s%3N')
  "$@" || status=$?
  for ((attempt = 0; attempt < 100; attempt++, milliseconds++)); do
    if (set -C && : >"$EVENTS/$milliseconds.json") 2>/dev/null; then
      printf '{"TaskName": "%s", "Timestamp": "%s", "Message": "exit code %d"}\n' \
        "GPU.$task" "$started" "$status" >"$EVENTS/$milliseconds.json"
      break
    fi
  done
  return "$status"
}

#
# The virtual machine
#

has_gpu() {
  [ -n "$(lspci -n -d 10de:)" ]
}

fetch_tags() {
  mkdir -p "$(dirname "$TAGS_CACHE")"
  retry 5 2 curl -fsS --noproxy '*' --max-time 10 -H Metadata:true \
    -o "$TAGS_CACHE" "$METADATA_URL" || return "$ERR_TAGS"
}

# Whether a tag is set to "true"; whole name and value, in any case.
has_tag() {
  local wanted="{\"name\":\"$1\",\"value\":\"true\"}"
  tr -d ' \n' <"$TAGS_CACHE" | tr '{' '\n' | sed 's/^"/{"/; s/}.*/}/' | grep -Fixq "$wanted"
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
  local kind version kernel arch vermagic
  if [ ! -e "$RECORD" ]; then
    echo "install no_record"
    return
  fi
  kind=$(record_field driver_kind)
  version=$(record_field driver_version)
  kernel=$(record_field kernel)
  arch=$(record_field arch)
  if [[ -z $kind || -z $version || "$kind$version$kernel$arch" = *[[:space:]]* ]]; then
    echo "teardown-install corrupt"
  elif [ "$(driver_family "$kind")" != "$(driver_family "$DRIVER_KIND")" ]; then
    echo "teardown-install kind"
  elif [ "$version" != "$DRIVER_VERSION" ]; then
    echo "teardown-install version"
  elif [ "$kernel" != "$(uname -r)" ]; then
    echo "install kernel"
  elif [ "$arch" != "$(uname -m)" ]; then
    echo "install arch"
  elif ! ldconfig -N -X || [ "$(modinfo -F version -k "$kernel" nvidia 2>/dev/null)" != "$version" ]; then
    echo "install module"
  elif vermagic=$(modinfo -F vermagic -k "$kernel" nvidia) && [ "${vermagic%% *}" != "$kernel" ]; then
    echo "install vermagic"
  elif ! is_registered "$version" "$kernel" "$arch"; then
    echo "install dkms"
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

# pull_once IMAGE: what the registry answered is for the log.
pull_once() {
  local answer
  answer=$(ctr -n k8s.io images pull "$1" 2>&1 >/dev/null) && return 0
  log "$answer"
  return 1
}

pull_image() {
  local image source
  image=$(driver_image)
  source=${REGISTRY%/}/${image#*/}
  if ctr -n k8s.io images ls -q "name==$image" | grep -qx "$image"; then
    return 0
  fi
  retry 3 5 pull_once "$source" || return "$ERR_DRIVER"
  if [ "$source" != "$image" ]; then
    ctr -n k8s.io images tag --force "$source" "$image" >/dev/null || return "$ERR_DRIVER"
  fi
}

run_image() {
  mkdir -p "$PAYLOAD" /opt/actions
  ctr -n k8s.io run --rm --privileged --net-host --with-ns pid:/proc/1/ns/pid \
    --mount "type=bind,src=$PAYLOAD,dst=/mnt/gpu,options=rbind" \
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

# write_record KERNEL: beside and renamed, so that no reader sees half of it.
write_record() {
  mkdir -p "$(dirname "$RECORD")"
  cat >"$RECORD.new" <<RECORD_END
kernel=$1
driver_version=$DRIVER_VERSION
driver_kind=$DRIVER_KIND
arch=$(uname -m)
RECORD_END
  chmod 0644 "$RECORD.new"
  mv "$RECORD.new" "$RECORD"
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

newest_kernel() {
  local headers
  for headers in /lib/modules/*/build; do
    [ ! -d "$headers" ] || basename "$(dirname "$headers")"
  done | sort --version-sort | tail -n 1
}

install_programs() {
  local program
  for program in "$PAYLOAD"/bin/*; do
    install -m 0755 "$program" /usr/bin/ || return
  done
  chmod 4755 /usr/bin/nvidia-modprobe || return
  rm -rf "$LIBRARIES"
  mkdir -p "$LIBRARIES"
  cp -P "$PAYLOAD"/lib/* "$LIBRARIES/" || return
  echo "$LIBRARIES" >"$LINKER_CONFIGURATION"
  ldconfig
}

# build_driver KERNEL: by DKMS, from the source in the driver's image. The record of an earlier
# driver goes first: from then on it may be wrong.
build_driver() {
  local kernel=$1 module=nvidia/$DRIVER_VERSION
  rm -f "$RECORD"
  run_image copy || return
  rm -rf "/usr/src/nvidia-$DRIVER_VERSION"
  cp -R "$PAYLOAD/module" "/usr/src/nvidia-$DRIVER_VERSION" || return
  [ -e "$DKMS_TREE/$module/source" ] || dkms add "$module" || return
  dkms install "$module" -k "$kernel" || return
  install_programs || return
  write_record "$kernel"
}

build_with_retries() {
  install_packages || return
  retry 5 10 build_driver "$1" || return "$ERR_DRIVER"
}

# A baked driver gets one attempt; what fails falls through to a full build.
install_driver() {
  local action=$1
  if [ "$action" = install-skip-build ]; then
    if event startBakedDriver start_device; then
      return 0
    fi
    log "the baked driver did not start; building it again"
  fi
  event pullImage pull_image || return
  event buildDriver build_with_retries "$(uname -r)" || return
  remove_image
  retry 3 5 start_device || return "$ERR_DRIVER"
}

start_device() {
  modprobe nvidia || return
  nvidia-modprobe -u -c0 || return
  nvidia-smi >/dev/null
}

validate_driver() {
  lsmod | awk '{ print $1 }' | grep -qx nvidia || return "$ERR_DRIVER"
  [ "$(modinfo -F version nvidia)" = "$DRIVER_VERSION" ] || return "$ERR_DRIVER"
}

#
# Removing
#

# Unload all of the driver's modules, or none where one is in use by something else.
unload_modules() {
  local module loaded count holder holders=0
  loaded=$(lsmod)
  for module in "${MODULES[@]}"; do
    count=$(awk -v name="$module" '$1 == name { print $3 }' <<<"$loaded")
    holders=$(awk -v name="$module" '$1 == name { print gsub(/[a-z_]+/, "", $4) }' <<<"$loaded")
    if [ -n "$count" ] && [ "$count" -gt "${holders:-0}" ]; then
      log "module $module is in use"
      return 1
    fi
    # shellcheck disable=SC2013 # names of modules hold no blanks
    for holder in $(awk -v name="$module" '$1 == name { gsub(",", " ", $4); print $4 }' <<<"$loaded"); do
      if [[ " ${MODULES[*]} " != *" $holder "* ]]; then
        log "module $module is in use by $holder"
        return 1
      fi
    done
  done
  for module in "${MODULES[@]}"; do
    if awk '{ print $1 }' <<<"$loaded" | grep -qx "$module"; then
      rmmod "$module" || return 1
    fi
  done
}

has_residue() {
  local path
  for path in "$DKMS_TREE/nvidia" "$LIBRARIES" "$LINKER_CONFIGURATION" "${PROGRAMS[@]}"; do
    [ ! -e "$path" ] || return 0
  done
  compgen -G '/lib/modules/*/updates/dkms/nvidia*.ko*' >/dev/null && return 0
  lsmod | awk '{ print $1 }' | grep -qx nvidia
}

# Remove the baked driver; the record stays until all of it is gone, so that a next run goes on.
teardown() {
  [ -f "$RECORD" ] || return 0
  unload_modules
  rm -rf "$DKMS_TREE/nvidia"
  rm -f /lib/modules/*/updates/dkms/nvidia*.ko*
  rm -rf "$LIBRARIES" /usr/src/nvidia-[0-9]*
  rm -f "$LINKER_CONFIGURATION" "${PROGRAMS[@]}"
  ldconfig
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
  systemctl enable nvidia-device-plugin nvidia-dcgm nvidia-dcgm-exporter
  write_device_plugin_drop_in
  systemctl daemon-reload
  retry "$PLUGIN_ATTEMPTS" 5 systemctl restart nvidia-device-plugin || return "$ERR_DEVICE_PLUGIN"
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
  local action=$1
  if [[ $action = teardown-* ]]; then
    event teardown teardown || log "the old driver is not gone; installing over it"
    action=install
  fi
  event installDriver install_driver "$action" || return
  event restartContainerd restart_containerd || return
  event validateDriver validate_driver
}

# A node that must have no driver is ready even if one is not quite gone.
remove_driver() {
  stop_managed_services
  event teardown teardown
  return 0
}

# Sets ACTION and REASON.
decide_for_node() {
  if has_gpu; then
    event fetchTags fetch_tags || return
  fi
  if has_gpu && ! has_tag SkipGpuDriverInstall; then
    read -r ACTION REASON < <(decide)
  elif [ -e "$RECORD" ]; then
    ACTION=teardown REASON=opted_out
  else
    ACTION=nothing REASON=-
  fi
  log "event=decision action=$ACTION reason=$REASON"
}

start_kubelet() {
  retry 3 5 systemctl restart kubelet || return "$ERR_KUBELET"
  systemctl enable kubelet
}

boot() {
  decide_for_node || return
  case $ACTION in
    install* | teardown-install) provision_gpu "$ACTION" || return ;;
    *) remove_driver ;;
  esac
  if [[ $ACTION = *install* ]] && has_tag EnableManagedGPUExperience; then
    event startManagedServices start_managed_services || return
  fi
  event startKubelet start_kubelet || return
  log "the node is ready"
}

bake() {
  event pullImage pull_image || return
  event buildDriver build_with_retries "$(newest_kernel)"
}

main() {
  mkdir -p "$(dirname "$OUTCOME")" "$EVENTS"
  case ${1:-boot} in
    boot | bake) "${1:-boot}" ;;
    plan) decide_for_node ;;
    # The next run goes on with one that is incomplete.
    teardown) event teardown teardown || true ;;
    *)
      log "unknown command '$1': it is boot, plan, bake or teardown"
      return "$ERR_USAGE"
      ;;
  esac
}

[ "${BASH_SOURCE[0]}" != "$0" ] || main "$@"
