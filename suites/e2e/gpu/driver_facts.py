"""A script that shows which facts of a driver, the stand-in or NVIDIA's own, provisioning can see."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.machine.channels.guest import Guest

#: The script opens no GPU's device node: NVIDIA's driver cannot open an emulated GPU without an
#: engine.
SCRIPT = r"""
set -u
fact() { printf '%s: %s\n' "$1" "$(echo $2)"; }
nodes() { find /dev -maxdepth 1 -name 'nvidia*' -printf '%f %m %y\n' | sort; }
unload() {
    for module in nvidia_drm nvidia_modeset nvidia_uvm nvidia; do
        [ ! -e "/sys/module/$module" ] || rmmod "$module" || return
    done
}
word() { if "$@" >/dev/null 2>&1; then echo yes; else echo no; fi; }
holders() { ls /sys/module/nvidia/holders | grep -c uvm; }

unload || exit
rm -rf /dev/nvidia*
modprobe nvidia || exit
fact 'nodes after modprobe' "$(nodes)"
fact 'classes' "$(ls /sys/class | grep '^nvidia$')"
fact 'major 195 in /proc/devices' "$(word grep -q '^195 ' /proc/devices)"
fact 'version, params, a GPU in /proc' \
    "$(word ls /proc/driver/nvidia/version /proc/driver/nvidia/params /proc/driver/nvidia/gpus/*/information)"
fact 'device files may be made, their owner and mode' \
    "$(grep -E '^(ModifyDeviceFiles|DeviceFile(UID|GID|Mode)):' /proc/driver/nvidia/params)"
fact 'references when idle' "$(cat /sys/module/nvidia/refcnt)"
nvidia-modprobe
fact 'nodes after nvidia-modprobe' "$(nodes)"
nvidia-modprobe -u -c0
fact 'exit code of nvidia-modprobe -u -c0' "$?"
fact 'nodes after nvidia-modprobe -u -c0' "$(nodes)"
fact 'holders of nvidia, uvm among them' "$(holders)"
fact 'nvidia unloads below nvidia_uvm' "$(word rmmod nvidia)"
nvidia-modprobe -c0
fact 'nodes after nvidia-modprobe -c0' "$(nodes)"
rm /dev/nvidia0
nvidia-smi -L >/dev/null
fact 'exit code of nvidia-smi -L' "$?"
fact 'nodes after nvidia-smi -L' "$(nodes)"
fact 'numbers' "$(stat -c '%n %t:%T' /dev/nvidia0 /dev/nvidiactl)"
unload
fact 'exit code of rmmod, nobody having a node open' "$?"
fact 'nodes after rmmod' "$(nodes)"
rm -f /dev/nvidia*
nvidia-smi -L >/dev/null
fact 'exit code of nvidia-smi -L, unloaded' "$?"
fact 'nodes after that' "$(nodes)"
exec 4</dev/nvidiactl
fact 'nvidia unloads while its control device is open' "$(word unload)"
exec 4<&-
fact 'nvidia unloads after that' "$(word unload)"
"""

_UVM = "nvidia-uvm 666 c nvidia-uvm-tools 666 c"
_ALL = f"{_UVM} nvidia0 666 c nvidiactl 666 c"
_WITHOUT_UVM = "nvidia0 666 c nvidiactl 666 c"

FACTS: Mapping[str, str] = {
    "nodes after modprobe": "",
    "classes": "",
    "major 195 in /proc/devices": "yes",
    "version, params, a GPU in /proc": "yes",
    "device files may be made, their owner and mode": (
        "ModifyDeviceFiles: 1 DeviceFileUID: 0 DeviceFileGID: 0 DeviceFileMode: 438"
    ),
    "references when idle": "0",
    "nodes after nvidia-modprobe": "",
    "exit code of nvidia-modprobe -u -c0": "0",
    "nodes after nvidia-modprobe -u -c0": _UVM,
    "holders of nvidia, uvm among them": "1",
    "nvidia unloads below nvidia_uvm": "no",
    "nodes after nvidia-modprobe -c0": f"{_UVM} nvidia0 666 c",
    "exit code of nvidia-smi -L": "0",
    "nodes after nvidia-smi -L": _ALL,
    "numbers": "/dev/nvidia0 c3:0 /dev/nvidiactl c3:ff",
    "exit code of rmmod, nobody having a node open": "0",
    "nodes after rmmod": _ALL,
    "exit code of nvidia-smi -L, unloaded": "0",
    "nodes after that": _WITHOUT_UVM,
    "nvidia unloads while its control device is open": "no",
    "nvidia unloads after that": "yes",
}

#: The facts for a driver that opens the GPU: NVIDIA's NVML also makes the folder of MIG
#: capabilities, and loads `nvidia_uvm` if nothing is loaded.
FACTS_WHERE_IT_OPENS: Mapping[str, str] = {
    **FACTS,
    "nodes after nvidia-smi -L": f"nvidia-caps 755 d {_ALL}",
    "nodes after rmmod": f"nvidia-caps 755 d {_ALL}",
    "nodes after that": f"nvidia-caps 755 d {_ALL}",
}


def driver_facts(guest: Guest, *, timeout_s: float) -> dict[str, str]:
    """Return the facts that the script prints about a node's driver; afterwards no module is loaded."""
    said = guest.output_of("sh", "-c", SCRIPT, timeout_s=timeout_s)
    return {
        name: value.strip()
        for name, _, value in (line.partition(": ") for line in said.splitlines())
    }
