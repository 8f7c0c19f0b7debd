#!/bin/sh
# The actions of the driver image on the node, in the mount namespace of the node's init.
#
# usage: install.sh build-only|install-skip-build|install
#
#   build-only          compile for the newest kernel that has headers, register with DKMS, stage
#                       the libraries, write the prebake record; touches no device
#   install-skip-build  start the device with the module that is there, set up the runtime
#   anything else       compile for the running kernel, then as install-skip-build
set -eu
action=${1-}
config=/opt/gpu/config.sh
record=/opt/azure/aks-gpu/dkms-marker
staged=/usr/bin/lib64/lib64

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export DEBIAN_FRONTEND=noninteractive

say() { echo "gpuinstall: $*"; }
fail() {
    say "$*" >&2
    exit 1
}

[ -r "$config" ] || fail "$config: No such file or directory"
# shellcheck source=/dev/null
. "$config"

overlay=
clean() {
    status=$?
    trap - EXIT
    if [ -n "$overlay" ]; then
        if mountpoint --quiet "$LIBRARY_FOLDER"; then
            # A lazy unmount: processes that started meanwhile have the libraries open.
            umount --lazy "$LIBRARY_FOLDER"
        fi
        rm -rf "$overlay"
    fi
    exit "$status"
}
trap clean EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

newest_kernel() {
    for build in /lib/modules/*/build; do
        [ ! -d "$build" ] || basename "$(dirname "$build")"
    done | sort --version-sort | tail -n 1
}

# The installer writes its libraries into the system's folder. An overlay on that folder catches the
# libraries, so that they can be moved to a folder of their own, which a teardown removes as a
# whole.
catch_libraries() {
    overlay=$(mktemp -d /run/gpuinstall.XXXXXXXX)
    mkdir "$overlay/upper" "$overlay/work"
    mount -t overlay overlay -o "lowerdir=$LIBRARY_FOLDER,upperdir=$overlay/upper,workdir=$overlay/work" \
        "$LIBRARY_FOLDER"
}

stage_libraries() {
    rm -rf "$staged"
    mkdir -p "$staged"
    cp -a "$overlay/upper/." "$staged/"
    umount --lazy "$LIBRARY_FOLDER"
    rm -rf "$overlay"
    overlay=
    echo "$staged" >/etc/ld.so.conf.d/nvidia.conf
    ldconfig
}

write_record() {
    mkdir -p "$(dirname "$record")"
    {
        echo "kernel=$1"
        echo "driver_version=$DRIVER_VERSION"
        echo "driver_kind=$DRIVER_KIND"
        echo "arch=$(uname -m)"
    } >"$record.new"
    mv "$record.new" "$record"
    say "recorded the driver $DRIVER_VERSION for the kernel $1 in $record"
}

build() {
    kernel=$1
    # From here on an earlier record may be wrong.
    rm -f "$record"
    say "building the driver $DRIVER_VERSION for the kernel $kernel"
    catch_libraries
    sh /opt/gpu/nvidia-installer -s "-k=$kernel" \
        "--log-file-name=/var/log/nvidia-installer-$(date +%s).log" -a --no-drm --dkms
    stage_libraries
    dkms status "nvidia/$DRIVER_VERSION"
    modinfo -k "$kernel" nvidia
    write_record "$kernel"
}

start_device() {
    [ -x /usr/bin/nvidia-modprobe ] || fail "nvidia-modprobe is not installed: nothing was built here"
    nvidia-modprobe -u -c0
    [ -n "$(ls -A "$staged" 2>/dev/null)" ] || fail "no libraries are staged in $staged"
    ldconfig
    nvidia-smi
}

# Done only after nvidia-smi has worked: with a container runtime but no GPU, pods would start and
# fail.
set_up_runtime() {
    install -m 0755 /opt/gpu/toolkit/nvidia-container-runtime /usr/bin/
    say "the container toolkit is installed"
}

case $action in
    build-only)
        kernel=$(newest_kernel)
        build "${kernel:-$(uname -r)}"
        ;;
    install-skip-build)
        start_device
        set_up_runtime
        ;;
    *)
        build "$(uname -r)"
        start_device
        set_up_runtime
        ;;
esac
say "'$action' is done"
