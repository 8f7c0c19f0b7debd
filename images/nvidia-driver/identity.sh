#!/bin/sh
# Makes the payload of NVIDIA's proprietary modules for GPUs that no driver can open: a stand-in,
# which answers from /proc/driver/nvidia and the PCI tree, replaces the library NVML.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
sh "$here/payload.sh" nvidia-kernel-dkms nvidia-current
rm "$here/../driver-payload/lib"/libnvidia-ml.so.*
sh "$here/nvml/build.sh" "$GPU_DRIVER_VERSION" "$here/../driver-payload/lib"
