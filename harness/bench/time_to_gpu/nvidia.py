"""NVIDIA's own driver as the measured driver: its image, and a longer limit for its compilation.

The provisioner limits an attempt to install the driver to ten minutes, as AKS does. On an emulated
processor, the compilation takes longer, so each attempt would end at the limit of ten minutes, and
the next attempt would start the compilation again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.node_tools import TOOLS
from harness.cloudinit import GuestFile

if TYPE_CHECKING:
    from harness.provisioner import Provisioner

#: The image's recipe compiles the module for the newest kernel during the build, so the image is prebaked.
NVIDIA_IMAGE = "debian-12-nvidia-identity"
#: The time limit in seconds of an attempt to install the driver on an emulated node.
INSTALL_LIMIT_S = 4 * 3600.0
#: The provisioner's time limit under KVM; for an emulated node, the limit is multiplied by TCG's
#: factor.
_TIMEOUT_KVM_S = 1500.0
_LIMITS = f"{TOOLS}/longer_limit.py"
#: How many words precede the provisioner's program on the command line: `python3 -I -S`.
_INTERPRETER_WORDS = 3


def with_longer_limit(provisioner: Provisioner) -> Provisioner:
    """Return the harness's provisioner with the time limit `INSTALL_LIMIT_S` for installing the driver."""
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
