#!/bin/sh
# Compiles NVIDIA's open kernel modules of Debian's contrib archive for the image's newest kernel, and
# installs the free program nvidia-modprobe. Nothing from the non-free archive is used: the firmware
# is a file of our own in root/. Runs inside the root file system while the node's image is built.
#
# As in nvidia-driver/open.sh, pci_resize_resource() gets a fourth argument, since Debian's package
# does not compile with Debian's present kernels. The rest of the driver is unchanged.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$work"
apt-get download --quiet=2 nvidia-open-kernel-dkms nvidia-modprobe
for package in *.deb; do
    dpkg-deb --extract "$package" unpacked
    echo "I: unpacked $(dpkg-deb --show --showformat '${Package} ${Version}' "$package")"
done
source=$(find "$work/unpacked/usr/src" -mindepth 1 -maxdepth 1 -name 'nvidia-current-open-*')
version=${source##*-}
if [ ! -d "/usr/lib/firmware/nvidia/$version" ]; then
    echo "E: The image has no firmware for $version; 'harness gpu firmware $version' makes it." >&2
    exit 1
fi

kernel=$(basename "$(dirname "$(find /lib/modules -mindepth 2 -maxdepth 2 -name build | sort --version-sort | tail -n 1)")")
sed -i 's/\(= pci_resize_resource([^();]*\));/\1, 0);/' "$source/nvidia/nv-pci.c"
make -C "$source" -j"$(nproc)" modules "KERNEL_UNAME=$kernel" \
    NV_EXCLUDE_KERNEL_MODULES='nvidia-drm nvidia-modeset nvidia-peermem' >"$work/make.log" 2>&1 || {
    tail --lines=50 "$work/make.log"
    exit 1
}
install -D --mode=0644 --target-directory="/lib/modules/$kernel/updates" \
    "$source/nvidia.ko" "$source/nvidia-uvm.ko"
depmod "$kernel"
install --mode=4755 unpacked/usr/bin/nvidia-modprobe /usr/bin/
for package in nvidia-open-kernel-dkms nvidia-modprobe; do
    install -D --mode=0644 "unpacked/usr/share/doc/$package/copyright" "/usr/share/doc/$package/copyright"
done
echo "I: compiled NVIDIA's open modules $version for the kernel $kernel"
