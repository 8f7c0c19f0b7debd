"""A VM driver that runs machines as QEMU's driver does, and reports when it is open."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from harness.machine.qemu.driver import QemuDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.api import Settings, VmDriver


@contextlib.contextmanager
def open_driver(settings: Settings, report: Callable[[str], None]) -> Iterator[VmDriver]:
    """Open Acme's cloud."""
    report("Acme's cloud is open")
    yield QemuDriver(settings.qemu, cache=settings.cache)
