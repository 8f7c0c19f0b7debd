#!/bin/sh
# Makes the payload of the driver image from NVIDIA's own driver; runs inside the root file system
# while the node's image is built, with GPU_DRIVER_VERSION set.
#
# usage: payload.sh PACKAGE FLAVOUR
#
# PACKAGE has the module's source in /usr/src/FLAVOUR-VERSION.
#
# The driver is that of Debian's packages, unpacked and not installed: what a node gets lies where
# the contract's driver image puts it and where a teardown looks, DKMS knows it as 'nvidia'
# (Debian: 'nvidia-current' and 'nvidia-current-open'), and no alternatives come along.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
module=$1
flavour=$2
payload=$here/../driver-payload
version=$GPU_DRIVER_VERSION
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$work"
# The user space is of the driver's version; apt takes a pattern for the Debian revision.
for package in "$module" firmware-nvidia-gsp nvidia-smi libnvidia-ml1 libnvidia-cfg1; do
    apt-get download --quiet=2 "$package=$version-*" || {
        echo "E: The archives have no $package of version $version; set 'driver.version' to one of:" >&2
        apt-cache madison "$package" | cut -d'|' -f2 >&2
        exit 1
    }
done
# These work with any release.
apt-get download --quiet=2 nvidia-modprobe nvidia-persistenced
for package in *.deb; do
    dpkg-deb --extract "$package" unpacked
    echo "I: unpacked $(dpkg-deb --show --showformat '${Package} ${Version}' "$package")"
done

mkdir "$payload" "$payload/bin" "$payload/lib"
mv "unpacked/usr/src/$flavour-$version" "$payload/module"
sed "s/@VERSION@/$version/g" "$here/dkms.conf.in" >"$payload/module/dkms.conf"
# Its terms go with it wherever it goes.
cp "unpacked/usr/share/doc/$module/copyright" "$payload/module/copyright"
install -m 0755 unpacked/usr/lib/nvidia/current/nvidia-smi unpacked/usr/bin/nvidia-modprobe \
    unpacked/usr/bin/nvidia-persistenced "$payload/bin/"
for name in libnvidia-ml libnvidia-cfg; do
    library=$(find unpacked -type f -name "$name.so.$version")
    cp "$library" "$payload/lib/"
    ln -s "$name.so.$version" "$payload/lib/$name.so.1"
done

# The GPU's system processor loads it. No installation or teardown of the driver touches it.
mkdir -p /usr/lib/firmware/nvidia
firmware=$(find unpacked -type d -path "*/firmware/nvidia/$version")
cp -a "$firmware" /usr/lib/firmware/nvidia/
echo "I: made a payload of NVIDIA's driver $version"
