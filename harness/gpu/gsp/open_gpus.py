"""Open each GPU of NVIDIA's driver, without NVIDIA's libraries, and print the driver's answers.

This is a separate program for nodes: `python3 open_gpus.py`. It uses only the standard library.
Opening the device node makes the driver boot the GPU. The exit code is 1 if a GPU did not open, or
if there is no GPU.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

_MAJOR = 195
_CONTROL_MINOR = 255
_GPUS = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/dev")


def main(gpus: Path = _GPUS, devices: Path = _DEVICES) -> int:
    """Print one line of JSON for each GPU."""
    folders = sorted(gpus.iterdir()) if gpus.is_dir() else []
    if not folders:
        _complain(f"{gpus} has no GPU: the driver is not loaded, or it accepted no GPU.")
        return 1
    with _node(devices / "nvidiactl", _CONTROL_MINOR).open("rb"):
        return max(_open(folder, devices) for folder in folders)


def _open(folder: Path, devices: Path) -> int:
    """Open one GPU, read the driver's facts about the open GPU, and print the facts."""
    minor = int(_information(folder)["Device Minor"])
    try:
        with _node(devices / f"nvidia{minor}", minor).open("r+b", buffering=0):
            known = {"address": folder.name, **_information(folder)}
    except OSError as error:
        _complain(
            f"GPU {folder.name} did not open: {error.strerror}. The kernel's log has the driver's reason."
        )
        return 1
    sys.stdout.write(json.dumps(known) + "\n")
    return 0


def _complain(words: str) -> None:
    sys.stderr.write(f"{words}\n")


def _information(folder: Path) -> dict[str, str]:
    lines = (folder / "information").read_text().splitlines()
    return {
        name.strip(): value.strip()
        for name, colon, value in (each.partition(":") for each in lines)
        if colon
    }


def _node(path: Path, minor: int) -> Path:
    """Return the path of a device node; create the node unless `nvidia-modprobe` created it."""
    if not path.exists():
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(_MAJOR, minor))
    return path


if __name__ == "__main__":
    sys.exit(main())
