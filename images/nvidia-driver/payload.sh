#!/bin/sh
# Makes the payload of the driver image from NVIDIA's own driver; runs inside the root file system
# while the node's image is built, with GPU_DRIVER_VERSION set.
#
# The driver is that of Debian's packages, unpacked and not installed: what a node gets lies where
# the contract's driver image puts it and where a teardown looks, DKMS knows it as 'nvidia'
# (Debian: 'nvidia-current'), and no alternatives and firmware come along.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
payload=$here/../driver-payload
version=$GPU_DRIVER_VERSION
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$work"
for package in nvidia-kernel-dkms nvidia-smi nvidia-modprobe; do
    # apt takes a pattern for the Debian revision.
    apt-get download --quiet=2 "$package=$version-*" || {
        echo "E: The archives have no $package of version $version; set 'driver.version' to one of:" >&2
        apt-cache madison "$package" | cut -d'|' -f2 >&2
        exit 1
    }
done
for package in *.deb; do
    dpkg-deb --extract "$package" unpacked
    echo "I: unpacked $(dpkg-deb --show --showformat '${Package} ${Version}' "$package")"
done

mkdir "$payload" "$payload/bin" "$payload/lib"
mv "unpacked/usr/src/nvidia-current-$version" "$payload/module"
sed "s/@VERSION@/$version/g" "$here/dkms.conf.in" >"$payload/module/dkms.conf"
# Its terms go with it wherever it goes.
cp unpacked/usr/share/doc/nvidia-kernel-dkms/copyright "$payload/module/copyright"
install -m 0755 unpacked/usr/lib/nvidia/current/nvidia-smi unpacked/usr/bin/nvidia-modprobe "$payload/bin/"

sh "$here/nvml/build.sh" "$version" "$payload/lib"
echo "I: made a payload of NVIDIA's driver $version"
