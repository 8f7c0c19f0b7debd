"""The load of `harness bench gpu` accesses an emulated GPU as QEMU does, and prints the rate."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

from harness.bench.gpu_load import ask, main, render_load
from harness.gpu.catalogue import load_catalogue
from harness.gpu.serving import serve_gpu
from harness.gpu.trace import AccessKind
from harness.gpu.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.gpu.emulated import EmulatedGpu

_APERTURE_MIB = 256 << 10


@contextlib.contextmanager
def _asked(transport: Transport, folder: Path) -> Iterator[tuple[EmulatedGpu, socket.socket]]:
    model = load_catalogue().get("h100-sxm5-80gb")
    with serve_gpu(model, transport, folder=folder, aperture_mib=_APERTURE_MIB) as server:
        fd = server.attachment().fd
        if fd is None:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(folder / "gpu0.sock"))
        else:
            sock = socket.socket(fileno=os.dup(fd))
        with sock:
            yield server.gpu, sock


@pytest.mark.parametrize("transport", Transport)
def test_benchmark_load_reads_registers_through_each_transport(
    transport: Transport, tmp_path: Path
) -> None:
    with _asked(transport, tmp_path) as (gpu, sock):
        assert ask(sock, render_load(transport, "bar"), 0.0) >= 0

        values = {one.value for one in gpu.trace.bar_accesses(0)}
    assert values == {0x180000A1}


@pytest.mark.parametrize("transport", Transport)
def test_benchmark_load_reads_configuration_space_through_each_transport(
    transport: Transport, tmp_path: Path
) -> None:
    with _asked(transport, tmp_path) as (gpu, sock):
        ask(sock, render_load(transport, "config"), 0.0)

        reads = [one for one in gpu.trace.config_accesses() if one.kind is AccessKind.CONFIG_READ]
    assert {one.value for one in reads} == {0x233010DE}


def test_closed_connection_to_a_gpu_is_an_error(tmp_path: Path) -> None:
    with _asked(Transport.MPQEMU, tmp_path) as (_, sock):
        sock.sendall(b"\xff" * 64)
        load = render_load(Transport.MPQEMU, "bar")

        with pytest.raises(ConnectionError):
            ask(sock, load, 0.0)


def test_rate_of_accesses_to_a_bar_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_catalogue().get("h100-sxm5-80gb")
    with serve_gpu(model, Transport.VFIO_USER, folder=tmp_path, aperture_mib=_APERTURE_MIB):
        main(["vfio-user-pci", "bar", "0.01", str(tmp_path / "gpu0.sock")])

    assert float(capsys.readouterr().out) > 0
