#!/bin/sh
# Makes the payload of NVIDIA's proprietary modules; see payload.sh.
set -eu
sh "$(dirname "$0")/payload.sh" nvidia-kernel-dkms nvidia-current
# By itself it uses the GPU's system processor with some GPUs only; an emulated GPU has nothing else.
cat >/etc/modprobe.d/nvidia-gsp.conf <<CONF
options nvidia NVreg_EnableGpuFirmware=1
CONF
