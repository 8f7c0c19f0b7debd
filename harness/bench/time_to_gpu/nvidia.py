"""NVIDIA's own driver as the payload: its image, and the time that an emulated node needs to compile it.

The provisioner gives an attempt to install the driver ten minutes, as AKS does. An emulated
processor compiles this driver for longer, and would begin again at the limit until its time is up.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.node_tools import TOOLS
from harness.cloudinit import GuestFile

if TYPE_CHECKING:
    from harness.provisioner import Provisioner

#: Its recipe compiles the module for the newest kernel while the image is built: it is a prebaked one.
NVIDIA_IMAGE = "debian-12-nvidia-identity"
#: What an attempt to install the driver may take on an emulated node, in seconds.
INSTALL_LIMIT_S = 4 * 3600.0
#: Of the provisioner's time on the host, to be multiplied by the patience with an emulated node.
_TIMEOUT_KVM_S = 1500.0
_LIMITS = f"{TOOLS}/longer_limit.py"
#: `python3 -I -S`, before the provisioner's program.
_INTERPRETER_WORDS = 3


def with_longer_limit(provisioner: Provisioner) -> Provisioner:
    """Return the harness's provisioner with `INSTALL_LIMIT_S` for an attempt to install the driver."""
    interpreter, program = (
        provisioner.run[:_INTERPRETER_WORDS],
        provisioner.run[_INTERPRETER_WORDS:],
    )
    file = GuestFile(
        path=_LIMITS, content=Path(__file__).with_name("longer_limit.py").read_bytes(), mode=0o755
    )
    return replace(
        provisioner,
        files=[*provisioner.files, file],
        run=[*interpreter, _LIMITS, f"{INSTALL_LIMIT_S:g}", *program],
        timeout_s=_TIMEOUT_KVM_S,
    )
