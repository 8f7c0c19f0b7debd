#!/bin/sh
# Makes the payload of the driver image from the stand-ins for a driver; runs inside the root file
# system while the node's image is built, with GPU_DRIVER_VERSION set.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
payload=$here/../../driver-payload
version=$GPU_DRIVER_VERSION

fill_in() { sed "s/@VERSION@/$version/g" "$1" >"$2"; }

mkdir "$payload" "$payload/module" "$payload/bin" "$payload/lib"
install -m 0644 "$here"/module/*.c "$here"/module/*.h "$here/module/Kbuild" "$payload/module/"
fill_in "$here/module/dkms.conf.in" "$payload/module/dkms.conf"
cat >"$payload/module/nv-version.h" <<VERSION
#define NV_VERSION_STRING "$version"
#define NV_BUILD_DATE "Sat Aug  1 00:00:00 UTC 2026"
#define NV_COMPILER "gcc version $(gcc -dumpfullversion)"
VERSION

gcc -O2 -Wall -Wextra -Werror -static -s -o "$payload/bin/nvidia-modprobe" \
    "$here/userspace/nvidia-modprobe.c"
fill_in "$here/userspace/nvidia-smi.in" "$payload/bin/nvidia-smi"
cp "$here/userspace/nvidia-bug-report.sh" "$payload/bin/"
for program in nvidia-debugdump nvidia-persistenced nvidia-cuda-mps-control nvidia-cuda-mps-server \
    nvidia-powerd nvidia-ngx-updater nvidia-sleep.sh; do
    cp "$here/userspace/placeholder.sh" "$payload/bin/$program"
done
chmod 0755 "$payload"/bin/*
for library in libcuda libnvidia-ml; do
    gcc -O2 -Wall -shared -fPIC -s "-DNV_VERSION_STRING=\"$version\"" "-Wl,-soname,$library.so.1" \
        -o "$payload/lib/$library.so.$version" "$here/userspace/library.c"
    ln -s "$library.so.$version" "$payload/lib/$library.so.1"
done
