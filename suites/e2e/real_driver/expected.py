"""The name that driver 535 gives to each model of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The driver's name for a GPU that is missing in its table of device and subsystem ids.
UNKNOWN = "Unknown"

#: The observed name of each model; None for a model that the driver refuses. Appendix A of the
#: driver's README, 'Supported NVIDIA GPU Products', lists the same names, but neither H200 nor T4.
NAMES: Mapping[str, str | None] = {
    "a10-24gb": "NVIDIA A10",
    "a100-sxm4-40gb": "NVIDIA A100-SXM4-40GB",
    "a100-sxm4-80gb": "NVIDIA A100-SXM4-80GB",
    "h100-sxm5-80gb": "NVIDIA H100 80GB HBM3",
    "h200-sxm5-141gb": UNKNOWN,
    "l4-24gb": "NVIDIA L4",
    "l40s-48gb": "NVIDIA L40S",
    "rtx-pro-6000-server-96gb": None,
    "t4-16gb": UNKNOWN,
    "v100-pcie-16gb": "Tesla V100-PCIE-16GB",
}
