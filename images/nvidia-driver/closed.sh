#!/bin/sh
# Makes the payload of NVIDIA's proprietary modules; see payload.sh.
set -eu
sh "$(dirname "$0")/payload.sh" nvidia-kernel-dkms nvidia-current
# By default the module uses the GPU's system processor only with some GPUs, but an emulated GPU
# needs it.
cat >/etc/modprobe.d/nvidia-gsp.conf <<CONF
options nvidia NVreg_EnableGpuFirmware=1
CONF
