"""An emulated GPU behind a real, stock QEMU; needs no image and no guest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.gpu.catalogue import load_catalogue
from harness.gpu.emulated import EmulatedGpu
from harness.gpu.mpqemu import EndKind, MpqemuServer
from harness.gpu.trace import AccessKind
from harness.gpu.transport import Transport, choose_transport, parse_qemu_version
from harness.provisioning.command import LocalRunner, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.e2e.gpu.pausedqemu import BAR_0, PausedQemu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.gpu import GpuModel

_QEMU = "qemu-system-x86_64"
_END_S = 20.0
_FIRMWARE_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def _stock_qemu() -> None:
    """Skip where this host's QEMU cannot take the device, except under CI."""
    try:
        assert _transport() is Transport.MPQEMU
    except RequirementError as refusal:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(refusal))


def _transport() -> Transport:
    runner = LocalRunner()
    version = runner.run([_QEMU, "--version"], timeout_s=_END_S)
    if not version.ok:
        raise RequirementError(
            "There is no QEMU on this host; install it with `apt-get install qemu-system-x86`."
        )
    return choose_transport(
        device_help=runner.run([_QEMU, "-device", "help"], timeout_s=_END_S).stdout,
        version=parse_qemu_version(version.stdout),
        accelerator="tcg",
    )


@pytest.fixture(params=["h100-sxm5-80gb", "a100-sxm4-40gb"])
def model(request: pytest.FixtureRequest) -> GpuModel:
    return load_catalogue().get(request.param)


@pytest.fixture
def h100() -> GpuModel:
    return load_catalogue().get("h100-sxm5-80gb")


@pytest.fixture
def server(h100: GpuModel) -> Iterator[MpqemuServer]:
    with MpqemuServer(EmulatedGpu(h100, bars=h100.bars.mpqemu)) as running:
        yield running


def test_guest_finds_the_model_and_its_boot_registers(model: GpuModel, tmp_path: Path) -> None:
    gpu = EmulatedGpu(model, bars=model.bars.mpqemu)
    with (
        MpqemuServer(gpu) as server,
        PausedQemu(tmp_path, server.attachment()) as qemu,
    ):
        qemu.place_gpu()

        assert qemu.gpu_config_read(0x00) == model.pci.device << 16 | model.pci.vendor
        assert qemu.gpu_config_read(0x2C) == model.pci.subsystem << 16 | model.pci.subsystem_vendor
        for offset, value in model.boot_registers.items():
            assert qemu.memory_read(BAR_0 + offset) == value
        assert [one.offset for one in gpu.trace.bar_accesses()] == list(model.boot_registers)


def test_register_written_through_qemu_reads_back(server: MpqemuServer, tmp_path: Path) -> None:
    with PausedQemu(tmp_path, server.attachment()) as qemu:
        qemu.place_gpu()

        qemu.memory_write(BAR_0 + 0xFFFFFC, 0xCAFEF00D)

        assert qemu.memory_read(BAR_0 + 0xFFFFFC) == 0xCAFEF00D


def test_gpu_that_falls_off_the_bus_reads_all_ones(server: MpqemuServer, tmp_path: Path) -> None:
    with PausedQemu(tmp_path, server.attachment()) as qemu:
        qemu.place_gpu()
        server.gpu.fall_off_bus()

        assert (qemu.memory_read(BAR_0), qemu.gpu_config_read(0)) == (0xFFFFFFFF, 0xFFFFFFFF)

        server.gpu.return_to_bus()
        assert qemu.memory_read(BAR_0) == 0x180000A1


def test_guest_memory_is_not_held_on_to(server: MpqemuServer, tmp_path: Path) -> None:
    """QEMU hands over its memory's descriptors again and again; in a clone they are precious."""
    with PausedQemu(tmp_path, server.attachment()) as qemu:
        qemu.place_gpu()
        assert "Bad file descriptor" not in qemu.stderr()

        held = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        assert not [file for file in held if str(file).startswith("/memfd:")]


def test_qemu_outlives_the_gpus_server(server: MpqemuServer, tmp_path: Path) -> None:
    with PausedQemu(tmp_path, server.attachment()) as qemu:
        qemu.place_gpu()
        server.close()

        assert (qemu.memory_read(BAR_0), qemu.gpu_config_read(0)) == (0xFFFFFFFF, 0xFFFFFFFF)
        assert qemu.is_running()


def test_killed_qemu_ends_the_gpus_server(server: MpqemuServer, tmp_path: Path) -> None:
    with PausedQemu(tmp_path, server.attachment()) as qemu:
        qemu.place_gpu()

        qemu.kill()

        assert server.wait_for_end(_END_S).kind is EndKind.PEER_CLOSED


def test_gpu_is_hot_plugged_over_qmp(server: MpqemuServer, tmp_path: Path) -> None:
    with PausedQemu(tmp_path) as qemu:
        qemu.plug(server.attachment())

        sized = {
            one.offset for one in server.gpu.trace.config_accesses() if one.value == 2**32 - 1
        }
        assert sized == set(range(0x10, 0x2C, 4))
        assert len(server.gpu.trace.resets()) == 1
        assert server.state.ending is None


def test_firmware_gives_every_bar_an_address(server: MpqemuServer, tmp_path: Path) -> None:
    """SeaBIOS on one running vCPU takes the GPU for a device like any other."""
    attachment = server.attachment()
    window_mib = attachment.root_port_window_mib
    root_port = f"pcie-root-port,id=rp0,chassis=1,slot=1,mem-reserve={window_mib}M"
    with (tmp_path / "stderr.log").open("wb") as stderr:
        process = spawn(
            [
                *(_QEMU, "-nodefaults", "-no-user-config"),
                *("-machine", "q35,memory-backend=ram"),
                *("-object", "memory-backend-memfd,id=ram,size=128M,share=on"),
                *("-m", "128M"),
                *("-smp", "1"),
                *("-accel", "tcg,thread=single"),
                *("-display", "none"),
                *("-device", root_port),
                *("-device", attachment.to_device_argv("rp0")),
            ],
            stderr=stderr,
            pass_fds=[attachment.fd],
        )

    def look() -> Observation[dict[int, int]]:
        assert process.poll() is None, (tmp_path / "stderr.log").read_text()
        trace = server.gpu.trace
        written = {
            one.offset: one.value
            for one in trace.config_accesses()
            if one.kind is AccessKind.CONFIG_WRITE
        }
        decodes = written.get(0x04, 0) & 0x0002
        return Observation(written if decodes else None, trace.render()[-500:])

    try:
        written = wait_for("firmware to place the BARs", look, Deadline.after(_FIRMWARE_S))
    finally:
        process.kill()
        process.wait(_END_S)
    bases = [written[0x10 + 4 * bar] for bar in server.gpu.bars]
    assert all(base and base % (16 << 20) == 0 for base in bases)
    assert len(set(bases)) == len(bases)
    assert server.wait_for_end(_END_S).kind is EndKind.PEER_CLOSED
