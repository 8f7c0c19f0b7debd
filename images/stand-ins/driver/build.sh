#!/bin/sh
# Makes the driver's container image, as an archive that the node imports at its first boot and in
# the storage of the node's own registry; runs inside the root file system while the node's image is
# built, with GPU_DRIVER_REPOSITORY, GPU_DRIVER_VERSION and GPU_IMAGE_SHA set.
#
# What it installs is the stand-in, unless an earlier script has left a folder 'driver-payload' with
# a module, programs (bin) and libraries (lib) of another driver.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
oci=$here/../../oci.py
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
version=$GPU_DRIVER_VERSION

fill_in() { sed "s/@VERSION@/$version/g" "$1" >"$2"; }

# A small system of its own: what entrypoint.sh calls.
mkdir -p "$root/bin" "$root/opt/actions" "$root/opt/gpu" "$root/mnt/gpu" "$root/mnt/actions" "$root/tmp"
cp /bin/busybox "$root/bin/"
for applet in sh cp mv rm nsenter; do
    ln -s busybox "$root/bin/$applet"
done
install -m 0755 "$here/entrypoint.sh" "$root/entrypoint.sh"
install -m 0755 "$here/actions/install.sh" "$root/opt/actions/"

# The payload.
gpu=$root/opt/gpu
other=$here/../../driver-payload
mkdir "$gpu/toolkit"
fill_in "$here/payload/config.sh.in" "$gpu/config.sh"
install -m 0755 "$here/payload/nvidia-installer" "$gpu/"
install -m 0755 "$here/toolkit/nvidia-container-runtime" "$gpu/toolkit/"

make_stand_in() {
    mkdir "$gpu/module" "$gpu/bin" "$gpu/lib"
    install -m 0644 "$here"/module/*.c "$here"/module/*.h "$here/module/Kbuild" "$gpu/module/"
    fill_in "$here/module/dkms.conf.in" "$gpu/module/dkms.conf"
    cat >"$gpu/module/nv-version.h" <<VERSION
#define NV_VERSION_STRING "$version"
#define NV_BUILD_DATE "Sat Aug  1 00:00:00 UTC 2026"
#define NV_COMPILER "gcc version $(gcc -dumpfullversion)"
VERSION

    gcc -O2 -Wall -Wextra -Werror -static -s -o "$gpu/bin/nvidia-modprobe" \
        "$here/userspace/nvidia-modprobe.c"
    fill_in "$here/userspace/nvidia-smi.in" "$gpu/bin/nvidia-smi"
    cp "$here/userspace/nvidia-bug-report.sh" "$gpu/bin/"
    for program in nvidia-debugdump nvidia-persistenced nvidia-cuda-mps-control \
        nvidia-cuda-mps-server nvidia-powerd nvidia-ngx-updater nvidia-sleep.sh; do
        cp "$here/userspace/placeholder.sh" "$gpu/bin/$program"
    done
    chmod 0755 "$gpu"/bin/*
    for library in libcuda libnvidia-ml; do
        gcc -O2 -Wall -shared -fPIC -s "-DNV_VERSION_STRING=\"$version\"" \
            "-Wl,-soname,$library.so.1" -o "$gpu/lib/$library.so.$version" "$here/userspace/library.c"
        ln -s "$library.so.$version" "$gpu/lib/$library.so.1"
    done
}

if [ -d "$other" ]; then
    cp -a "$other/." "$gpu/"
else
    make_stand_in
fi

python3 "$oci" --root "$root" --entrypoint /entrypoint.sh \
    --reference "$GPU_DRIVER_REPOSITORY:$version-$GPU_IMAGE_SHA" \
    --archive /usr/lib/gpu-node/driver-image.tar --registry /var/lib/docker-registry
chown -R docker-registry: /var/lib/docker-registry
echo "I: made the driver image $GPU_DRIVER_REPOSITORY:$version-$GPU_IMAGE_SHA"

# containerd takes the image in now: at a node's first boot that took 9 s under emulation. Where a
# build may not run it (an overlay inside a user's namespace), the node's unit does the same.
imported=/var/lib/gpu-node/driver-image-imported
state=$(mktemp -d)
cat >"$state/config.toml" <<CONFIG
version = 2
state = "$state/run"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "$state/containerd.sock"
CONFIG
containerd --config "$state/config.toml" >"$state/log" 2>&1 &
containerd=$!
tries=50
until ctr --address "$state/containerd.sock" version >/dev/null 2>&1 || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    sleep 0.2
done
if ctr --address "$state/containerd.sock" --namespace k8s.io images import \
    /usr/lib/gpu-node/driver-image.tar; then
    mkdir -p "$(dirname "$imported")"
    touch "$imported"
else
    cat "$state/log"
    echo "I: the node will import its driver image itself, at its first boot"
    rm -rf /var/lib/containerd
fi
kill "$containerd"
wait "$containerd" || true
rm -rf "$state"
systemctl enable gpu-driver-image.service
