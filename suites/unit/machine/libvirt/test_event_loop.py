"""libvirt's event loop: one thread of the process, or none."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from harness.machine.libvirt.event_loop import EventLoop
from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt, FakeLibvirtError

LONG_S = 20.0


class LoopLibvirt(FakeLibvirt):
    """The part of the module that is a loop; it refuses a given number of times."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals
        self.has_turned = threading.Event()

    def virEventRegisterDefaultImpl(self) -> None:  # noqa: N802
        if self.refusals:
            self.refusals -= 1
            raise FakeLibvirtError("no loop", code=1)

    def virEventAddTimeout(self, _ms: int, _callback: Any, _opaque: object) -> int:  # noqa: N802
        return 1

    def virEventUpdateTimeout(self, _timer: int, _ms: int) -> None:  # noqa: N802
        pass

    def virEventRunDefaultImpl(self) -> None:  # noqa: N802
        self.has_turned.set()
        raise FakeLibvirtError("one turn is enough", code=1)


def test_loop_that_failed_to_start_is_started_by_the_next_user() -> None:
    """Else all waits for events would last to their deadlines, and nobody would know why."""
    libvirt, loop = LoopLibvirt(refusals=1), EventLoop()
    with pytest.raises(FakeLibvirtError, match="no loop"):
        loop.start(libvirt)

    loop.start(libvirt)

    assert libvirt.has_turned.wait(LONG_S)
