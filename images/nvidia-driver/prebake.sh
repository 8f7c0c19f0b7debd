#!/bin/sh
# Builds the driver for the image's newest kernel by the driver image's own action, like a bake, but
# on the processors of the building host: under emulation it would take half an hour. Runs inside
# the root file system while the node's image is built.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

image=$here/../driver-image
mkdir -p /opt/gpu
cp -a "$here/../driver-payload/." "$image/payload/nvidia-installer" /opt/gpu/
sed "s/@VERSION@/$GPU_DRIVER_VERSION/g" "$image/payload/config.sh.in" >/opt/gpu/config.sh
sh "$image/actions/install.sh" build-only || {
    tail --lines=50 "/var/lib/dkms/nvidia/$GPU_DRIVER_VERSION/build/make.log"
    exit 1
}
echo "I: $(dkms status nvidia)"
# The driver image copies it to the node again.
rm -rf /opt/gpu
