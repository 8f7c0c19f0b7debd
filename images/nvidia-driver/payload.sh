#!/bin/sh
# Makes the payload of the driver image from NVIDIA's own driver; runs inside the root file system
# while the node's image is built, with GPU_DRIVER_VERSION set.
#
# usage: payload.sh PACKAGE FLAVOUR
#
# PACKAGE has the module's source in /usr/src/FLAVOUR-VERSION.
#
# The driver is from Debian's packages, which are unpacked but not installed. So the node gets the
# files at the paths of the contract's driver image, where a teardown looks for them; the module is
# called 'nvidia' in DKMS (Debian: 'nvidia-current' and 'nvidia-current-open'); and there are no
# alternatives.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
module=$1
flavour=$2
payload=$here/../driver-payload
version=$GPU_DRIVER_VERSION
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$work"
# The user space has the driver's version; apt accepts a pattern for the Debian revision.
for package in "$module" firmware-nvidia-gsp nvidia-smi libnvidia-ml1 libnvidia-cfg1; do
    apt-get download --quiet=2 "$package=$version-*" || {
        echo "E: The archives have no $package of version $version; set 'driver.version' to one of:" >&2
        apt-cache madison "$package" | cut -d'|' -f2 >&2
        exit 1
    }
done
# These packages work with any release of the driver.
apt-get download --quiet=2 nvidia-modprobe nvidia-persistenced
for package in *.deb; do
    dpkg-deb --extract "$package" unpacked
    echo "I: unpacked $(dpkg-deb --show --showformat '${Package} ${Version}' "$package")"
done

mkdir "$payload" "$payload/bin" "$payload/lib"
mv "unpacked/usr/src/$flavour-$version" "$payload/module"
sed "s/@VERSION@/$version/g" "$here/dkms.conf.in" >"$payload/module/dkms.conf"
# The licence has to accompany the driver.
cp "unpacked/usr/share/doc/$module/copyright" "$payload/module/copyright"
install -m 0755 unpacked/usr/lib/nvidia/current/nvidia-smi unpacked/usr/bin/nvidia-modprobe \
    unpacked/usr/bin/nvidia-persistenced "$payload/bin/"
for name in libnvidia-ml libnvidia-cfg; do
    library=$(find unpacked -type f -name "$name.so.$version")
    cp "$library" "$payload/lib/"
    ln -s "$name.so.$version" "$payload/lib/$name.so.1"
done

# The firmware of the GPU's system processor; neither installation nor teardown of the driver
# changes it.
mkdir -p /usr/lib/firmware/nvidia
firmware=$(find unpacked -type d -path "*/firmware/nvidia/$version")
cp -a "$firmware" /usr/lib/firmware/nvidia/
echo "I: made a payload of NVIDIA's driver $version"
