"""Makes the server that emulates a GPU of a given model over a given transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.gpu import shrink_to_aperture, shrink_to_window
from harness.gpu.emulated import EmulatedGpu
from harness.gpu.mpqemu import MpqemuServer
from harness.gpu.transport import Transport
from harness.settings import GpuEmulation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.gpu import Bars, GpuModel
    from harness.gpu.config_space import ConfigSpace
    from harness.gpu.emulated import Engine
    from harness.gpu.server import DeviceServer


def serve_gpu(
    model: GpuModel,
    transport: Transport,
    *,
    folder: Path,
    device_id: str = "gpu0",
    window_mib: int = 64,
    aperture_mib: int = 0,
    number: int = 1,
    model_folders: tuple[Path, ...] = (),
) -> DeviceServer[Any]:
    """Return a server for a new GPU of this model; the caller starts the server.

    `folder` is the working folder of QEMU. For vfio-user, the root port reserves `window_mib` for
    32-bit BARs and `aperture_mib` for 64-bit BARs; larger BARs are halved until they fit. With
    `GpuEmulation.GSP` NVIDIA's own driver can open the GPU; `number` is part of the GPU's invented
    UUID. `model_folders` are the user's folders of GPU models, which may have data of further
    driver releases. Raises RequirementError if the harness can't do this emulation for the model.
    """
    if transport is Transport.MPQEMU:
        bars = model.bars.mpqemu
        engine = _engine(model, bars, number, model_folders)
        return MpqemuServer(EmulatedGpu(model, bars=bars, engine=engine), device_id=device_id)
    from harness.gpu.vfio_user import VfioUserServer  # noqa: PLC0415 - a clone starts faster without it

    bars = shrink_to_aperture(shrink_to_window(model.bars.vfio_user, window_mib), aperture_mib)
    engine = _engine(model, bars, number, model_folders)
    gpu = EmulatedGpu(model, bars=bars, is_express=True, engine=engine)
    return VfioUserServer(gpu, folder=folder, device_id=device_id)


def _engine(
    model: GpuModel, bars: Bars, number: int, model_folders: tuple[Path, ...]
) -> Callable[[ConfigSpace], Engine] | None:
    if model.emulation is GpuEmulation.IDENTITY:
        return None
    from harness.gpu.gsp.making import make_engine  # noqa: PLC0415 - only nodes with such GPUs load it

    return make_engine(model, bars, number, model_folders)
