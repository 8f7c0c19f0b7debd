"""An emulated GPU behind a real, stock QEMU; needs no image and no guest."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.gpu.server import EndKind
from harness.gpu.serving import serve_gpu
from harness.gpu.transport import Transport, find_transport
from harness.machine.qemu.driver import require_qemu
from harness.plugin.select import requirements
from harness.provisioning.command import LocalRunner, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.e2e.gpu.paused_qemu import PausedQemu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.gpu import GpuModel
    from harness.gpu.catalogue import Catalogue
    from harness.gpu.server import DeviceServer
    from harness.settings import Settings

pytestmark = pytest.mark.vm_driver(
    "qemu", reason="the transports are tried on a bare QEMU, without a guest"
)

_END_S = 20.0
_FIRMWARE_S = 60.0
#: Room for the aperture of an H100, rounded up as its root port does.
_APERTURE_MIB = 256 << 10


@pytest.fixture(scope="module")
def transport(settings: Settings) -> Transport:
    """Return this QEMU's transport. If QEMU has no transport, skip the test, or under CI fail it."""
    with requirements(settings):
        require_qemu(settings.qemu)
        return find_transport(settings.qemu, "tcg", LocalRunner())


@pytest.fixture
def serve(transport: Transport, tmp_path: Path) -> Callable[[GpuModel], DeviceServer[Any]]:
    """Return a function that makes servers for a QEMU whose working folder is `tmp_path`."""
    return functools.partial(
        serve_gpu, transport=transport, folder=tmp_path, aperture_mib=_APERTURE_MIB
    )


@pytest.fixture
def server(
    serve: Callable[[GpuModel], DeviceServer[Any]], h100: GpuModel
) -> Iterator[DeviceServer[Any]]:
    with serve(h100) as running:
        yield running


class Plugged:
    """A GPU in a paused QEMU, with mapped BARs."""

    def __init__(self, qemu: PausedQemu, server: DeviceServer[Any]) -> None:
        self.qemu = qemu
        self.gpu = server.gpu
        self.bars = qemu.place_gpu(server.gpu.bars)

    def read(self, offset: int) -> int:
        """Read 32 bits of BAR 0."""
        return self.qemu.memory_read(self.bars[0] + offset)

    def write(self, offset: int, value: int) -> None:
        """Write 32 bits of BAR 0."""
        self.qemu.memory_write(self.bars[0] + offset, value)


@pytest.fixture
def plugged(server: DeviceServer[Any], settings: Settings, tmp_path: Path) -> Iterator[Plugged]:
    with PausedQemu(settings.qemu, tmp_path, server.attachment()) as qemu:
        yield Plugged(qemu, server)


@pytest.mark.parametrize("name", ["a100-sxm4-40gb", "h100-sxm5-80gb", "t4-16gb"])
def test_guest_finds_the_model_and_its_boot_registers(
    name: str,
    gpu_catalogue: Catalogue,
    serve: Callable[[GpuModel], DeviceServer[Any]],
    settings: Settings,
    tmp_path: Path,
) -> None:
    model = gpu_catalogue.get(name)
    with (
        serve(model) as server,
        PausedQemu(settings.qemu, tmp_path, server.attachment()) as qemu,
    ):
        plugged = Plugged(qemu, server)

        assert qemu.gpu_config_read(0x00) == model.pci.device << 16 | model.pci.vendor
        assert qemu.gpu_config_read(0x2C) == model.pci.subsystem << 16 | model.pci.subsystem_vendor
        for offset, value in model.boot_registers.items():
            assert plugged.read(offset) == value
        seen = [one.offset for one in server.gpu.trace.bar_accesses()]
        assert seen == list(model.boot_registers)


def test_last_register_of_every_bar_can_be_written_and_read(plugged: Plugged) -> None:
    for bar, address in plugged.bars.items():
        last = plugged.gpu.bars[bar].size - 4
        plugged.qemu.memory_write(address + last, 0xCAFE0000 + bar)

        assert plugged.qemu.memory_read(address + last) == 0xCAFE0000 + bar

    written = {one.bar: one.offset for one in plugged.gpu.trace.bar_accesses()}
    assert written == {bar: plugged.gpu.bars[bar].size - 4 for bar in plugged.bars}


def test_bars_are_as_wide_as_the_transport_allows(plugged: Plugged, transport: Transport) -> None:
    """Over vfio-user, the frame buffer of an H100 is a BAR of 128 GiB above all memory."""
    kind = plugged.qemu.gpu_config_read(0x18) & 0xF
    if transport is Transport.VFIO_USER:
        assert plugged.gpu.bars[2].size == 128 << 30
        assert plugged.gpu.address_of(2) == plugged.bars[2] > 1 << 32
        assert kind == 0xC
    else:
        assert max(plugged.bars.values()) < 1 << 32
        assert kind == 0


def test_gpu_has_a_pci_express_capability_only_over_vfio_user(
    plugged: Plugged, transport: Transport
) -> None:
    pointer = plugged.qemu.gpu_config_read(0x34) & 0xFF
    if transport is Transport.VFIO_USER:
        assert plugged.qemu.gpu_config_read(pointer) & 0xFF == 0x10
    else:
        assert pointer == 0


def test_gpu_that_falls_off_the_bus_reads_all_ones(plugged: Plugged) -> None:
    plugged.gpu.fall_off_bus()

    assert plugged.read(0) == 0xFFFFFFFF
    # The revision and the header type, by which lspci shows such a GPU, read all ones too.
    assert plugged.qemu.gpu_config_read(0x08) == 0xFFFFFFFF
    assert plugged.qemu.gpu_config_read(0x0C) == 0xFFFFFFFF

    plugged.gpu.return_to_bus()
    assert plugged.read(0) == 0x180000A1


def test_stalled_gpu_answers_after_the_stall_ends(plugged: Plugged) -> None:
    plugged.gpu.stall(0.2)

    assert plugged.read(0) == 0x180000A1


def test_server_of_a_gpu_keeps_no_descriptor_of_guest_memory_open(plugged: Plugged) -> None:
    """QEMU sends descriptors of its memory repeatedly; the server must keep none of them open."""
    assert "Bad file descriptor" not in plugged.qemu.stderr()

    held = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert not [file for file in held if str(file).startswith("/memfd:")]


def test_qemu_keeps_running_after_the_server_of_its_gpu_is_closed(
    plugged: Plugged, server: DeviceServer[Any]
) -> None:
    server.close()

    assert plugged.read(0) == 0xFFFFFFFF
    assert plugged.qemu.is_running()


def test_server_of_a_gpu_ends_after_qemu_is_killed(
    plugged: Plugged, server: DeviceServer[Any]
) -> None:
    plugged.qemu.kill()

    assert server.wait_for_end(_END_S).kind is EndKind.PEER_CLOSED


def test_gpu_is_hot_plugged_over_qmp(
    server: DeviceServer[Any], settings: Settings, tmp_path: Path
) -> None:
    with PausedQemu(settings.qemu, tmp_path) as qemu:
        qemu.plug(server.attachment())

        assert len(server.gpu.trace.resets()) == 1
        assert server.state.ending is None
        assert Plugged(qemu, server).read(0) == 0x180000A1


def test_plugged_gpu_leaves_no_socket_behind(plugged: Plugged, tmp_path: Path) -> None:
    assert plugged.read(0) == 0x180000A1
    assert not [entry for entry in tmp_path.iterdir() if entry.is_socket()]


def test_firmware_gives_every_bar_an_address(
    server: DeviceServer[Any], settings: Settings, tmp_path: Path
) -> None:
    """SeaBIOS on one running vCPU treats the GPU as any other device."""
    attachment = server.attachment()
    root_port = (
        "pcie-root-port,id=rp0,chassis=1,slot=1,"
        f"mem-reserve={attachment.root_port_window_mib}M,"
        f"pref64-reserve={attachment.aperture_mib}M"
    )
    with (tmp_path / "stderr.log").open("wb") as stderr:
        process = spawn(
            [
                *(settings.qemu, "-nodefaults", "-no-user-config"),
                *("-machine", "q35,memory-backend=ram"),
                *("-object", "memory-backend-memfd,id=ram,size=128M,share=on"),
                *("-m", "128M"),
                *("-smp", "1"),
                *("-accel", "tcg,thread=single"),
                *("-cpu", "max"),
                *("-display", "none"),
                *("-device", root_port),
                *("-device", *attachment.to_device_argv("rp0")),
            ],
            stderr=stderr,
            pass_fds=[] if attachment.fd is None else [attachment.fd],
            cwd=tmp_path,
        )

    def poll() -> Observation[dict[int, int]]:
        assert process.poll() is None, (tmp_path / "stderr.log").read_text()
        addresses = {bar: server.gpu.address_of(bar) or 0 for bar in server.gpu.bars}
        return Observation(
            addresses if all(addresses.values()) else None, server.gpu.trace.render()[-500:]
        )

    try:
        addresses = wait_for("firmware to place the BARs", poll, Deadline.after(_FIRMWARE_S))
    finally:
        process.kill()
        process.wait(_END_S)
    for bar, address in addresses.items():
        assert address % server.gpu.bars[bar].size == 0
    assert len(set(addresses.values())) == len(addresses)
    assert server.wait_for_end(_END_S).kind is EndKind.PEER_CLOSED
