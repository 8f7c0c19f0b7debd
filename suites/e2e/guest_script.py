"""Commands that a node runs before its provisioning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.api import Argv

_IMAGES = "ctr -n k8s.io images"
#: Shell code that gives the driver image the name of the image for GRID.
TAG_AS_GRID = (
    f"name=$({_IMAGES} ls -q | grep aks-gpu-cuda-lts); "
    f'{_IMAGES} tag $name "$(echo $name | sed s/aks-gpu-cuda-lts/aks-gpu-grid/)"'
)


def shell(script: str) -> Argv:
    """Return the command that runs `script` and stops at the first command that fails."""
    return ["sh", "-euc", script]
