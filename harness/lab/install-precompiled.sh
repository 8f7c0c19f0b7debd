#!/bin/sh
# Installs a precompiled driver image on a node, in the mount namespace of the node's init. The image
# contains the modules for one kernel, and compiles nothing. Its programs and libraries are those of the
# driver image. The script writes a record, by which a later teardown removes everything.
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. /opt/gpu/config.sh

kernel=$(cat /opt/gpu/precompiled/kernel)
if [ "$kernel" != "$(uname -r)" ]; then
    echo "this image is for the kernel $kernel" >&2
    exit 1
fi
modules=/lib/modules/$kernel/updates/dkms
mkdir -p "$modules" /usr/bin/lib64/lib64 /opt/azure/aks-gpu
cp /opt/gpu/precompiled/nvidia*.ko* "$modules/"
depmod -a "$kernel"
install -m 0755 /opt/gpu/bin/* /usr/bin/
chmod u+s /usr/bin/nvidia-modprobe
cp -P /opt/gpu/lib/* /usr/bin/lib64/lib64/
echo /usr/bin/lib64/lib64 >/etc/ld.so.conf.d/nvidia.conf
ldconfig
printf 'kernel=%s\ndriver_version=%s\ndriver_kind=%s\narch=%s\n' \
    "$kernel" "$DRIVER_VERSION" "$DRIVER_KIND" "$(uname -m)" >/opt/azure/aks-gpu/dkms-marker
nvidia-modprobe -u -c0
nvidia-smi
install -m 0755 /opt/gpu/toolkit/nvidia-container-runtime /usr/bin/
