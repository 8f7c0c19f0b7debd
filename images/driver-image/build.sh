#!/bin/sh
# Makes the driver's container image, as an archive that the node imports at its first boot and in
# the storage of the node's own registry; runs inside the root file system while the node's image is
# built, with GPU_DRIVER_REPOSITORY, GPU_DRIVER_VERSION and GPU_IMAGE_SHA set.
#
# An earlier script has written the files to install (a module, programs, libraries) to
# 'driver-payload'.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
oci=$here/../oci.py
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
version=$GPU_DRIVER_VERSION

# A small root file system with the programs that entrypoint.sh calls.
mkdir -p "$root/bin" "$root/opt/actions" "$root/opt/gpu" "$root/mnt/gpu" "$root/mnt/actions" "$root/tmp"
cp /bin/busybox "$root/bin/"
for applet in sh cp mv rm nsenter; do
    ln -s busybox "$root/bin/$applet"
done
install -m 0755 "$here/entrypoint.sh" "$root/entrypoint.sh"
install -m 0755 "$here/actions/install.sh" "$root/opt/actions/"

# The payload.
gpu=$root/opt/gpu
mkdir "$gpu/toolkit"
cp -a "$here/../driver-payload/." "$gpu/"
sed "s/@VERSION@/$version/g" "$here/payload/config.sh.in" >"$gpu/config.sh"
install -m 0755 "$here/payload/nvidia-installer" "$gpu/"
install -m 0755 "$here/toolkit/nvidia-container-runtime" "$gpu/toolkit/"

python3 "$oci" --root "$root" --entrypoint /entrypoint.sh \
    --reference "$GPU_DRIVER_REPOSITORY:$version-$GPU_IMAGE_SHA" \
    --archive /usr/lib/gpu-node/driver-image.tar --registry /var/lib/docker-registry
chown -R docker-registry: /var/lib/docker-registry
echo "I: made the driver image $GPU_DRIVER_REPOSITORY:$version-$GPU_IMAGE_SHA"

# containerd imports the image now, since this took 9 s under emulation at a node's first boot. If a
# build can't run containerd (an overlay inside a user's namespace), a unit of the node imports the
# image.
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
