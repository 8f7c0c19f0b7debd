"""Makes the server of a GPU model for a transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.gpu import shrink_to_aperture, shrink_to_window
from harness.gpu.emulated import EmulatedGpu
from harness.gpu.mpqemu import MpqemuServer
from harness.gpu.transport import Transport

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gpu import GpuModel
    from harness.gpu.server import DeviceServer


def serve_gpu(
    model: GpuModel,
    transport: Transport,
    *,
    folder: Path,
    device_id: str = "gpu0",
    window_mib: int = 64,
    aperture_mib: int = 0,
) -> DeviceServer[Any]:
    """Return a server, not yet started, of a new GPU of this model.

    `folder` is the working folder of QEMU. For vfio-user, the root port reserves `window_mib` for 32-bit
    BARs and `aperture_mib` for 64-bit ones; larger BARs are made to fit.
    """
    if transport is Transport.MPQEMU:
        return MpqemuServer(EmulatedGpu(model, bars=model.bars.mpqemu), device_id=device_id)
    from harness.gpu.vfio_user import VfioUserServer  # noqa: PLC0415 - a clone starts in less time

    bars = shrink_to_aperture(shrink_to_window(model.bars.vfio_user, window_mib), aperture_mib)
    gpu = EmulatedGpu(model, bars=bars, is_express=True)
    return VfioUserServer(gpu, folder=folder, device_id=device_id)
