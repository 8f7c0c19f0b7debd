#!/bin/sh
# Makes the payload of NVIDIA's open modules; see payload.sh.
#
# DKMS patches one call in the kernel interface layer. Since the stable update 6.12.107 at the
# latest, pci_resize_resource() has a fourth argument in Debian's kernels, so Debian's driver 550
# does not compile without the patch. The rest of the driver is unchanged.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
sh "$here/payload.sh" nvidia-open-kernel-dkms nvidia-current-open

module=$here/../driver-payload/module
patch=pci-resize-resource.patch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/a/nvidia" "$work/b/nvidia" "$module/patches"
cp "$module/nvidia/nv-pci.c" "$work/a/nvidia/"
sed 's/\(= pci_resize_resource([^();]*\));/\1, 0);/' "$work/a/nvidia/nv-pci.c" >"$work/b/nvidia/nv-pci.c"
(cd "$work" && diff -u a/nvidia/nv-pci.c b/nvidia/nv-pci.c) >"$module/patches/$patch" || [ $? -eq 1 ]
if [ "$(grep -c '^+ ' "$module/patches/$patch")" -ne 1 ]; then
    echo "E: The driver was expected to have one call of pci_resize_resource() in nv-pci.c." >&2
    exit 1
fi
echo "PATCH[0]=\"$patch\"" >>"$module/dkms.conf"
