"""A GPU model is served by the chosen transport, with the BARs that this transport allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.gpu.catalogue import load_catalogue
from harness.gpu.gsp.device import GspDevice
from harness.gpu.mpqemu import MpqemuServer
from harness.gpu.serving import serve_gpu
from harness.gpu.transport import Transport
from harness.gpu.vfio_user import VfioUserServer
from harness.settings import GpuEmulation

if TYPE_CHECKING:
    from pathlib import Path


def test_gpu_for_mpqemu_has_32bit_bars_and_a_conventional_configuration_space(
    tmp_path: Path,
) -> None:
    model = load_catalogue().get("h200-sxm5-141gb").emulated_as(GpuEmulation.GSP)
    server = serve_gpu(model, Transport.MPQEMU, folder=tmp_path, number=4)

    assert isinstance(server, MpqemuServer)
    assert isinstance(server.gpu.engine, GspDevice)
    assert server.gpu.engine.state.number == 4
    assert {bar.bits for bar in server.gpu.bars.values()} == {32}
    assert server.gpu.config_size == 256


def test_gpu_for_vfio_user_has_bars_that_fit_the_aperture_and_an_express_configuration_space(
    tmp_path: Path,
) -> None:
    server = serve_gpu(
        load_catalogue().get("h200-sxm5-141gb").emulated_as(GpuEmulation.GSP),
        Transport.VFIO_USER,
        folder=tmp_path,
        device_id="gpu3",
        number=4,
        aperture_mib=64 << 10,
    )

    assert isinstance(server, VfioUserServer)
    assert server.gpu.bars[2].mib == 32 << 10
    engine = server.gpu.engine
    assert isinstance(engine, GspDevice)
    assert engine.state.bars == server.gpu.bars
    assert engine.state.number == 4
    assert server.gpu.config_size == 4096
    assert server.socket_path == tmp_path / "gpu3.sock"
