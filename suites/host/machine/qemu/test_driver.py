"""The driver that starts QEMU itself, as far as tests without QEMU can check it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.gpu.transport import Transport
from harness.machine.description.spec import Accelerator
from harness.machine.qemu.driver import QemuDriver

if TYPE_CHECKING:
    from pathlib import Path


def test_transport_of_qemu_is_queried_only_once(program: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    found = [
        QemuDriver(str(program), cache=cache).transport(Accelerator.KVM),
        QemuDriver(str(program), cache=cache).transport(Accelerator.KVM),
    ]

    assert found == [Transport.MPQEMU, Transport.MPQEMU]
    assert (tmp_path / "calls").read_text() == "--version\n-device help\n"
