"""libvirt's event loop, which runs in at most one thread of the process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from harness.machine.libvirt.connection import EventLoop
from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt, FakeLibvirtError

if TYPE_CHECKING:
    from collections.abc import Callable

    from suites.unit.machine.libvirt.conftest import Log

LONG_S = 20.0


class LoopLibvirt(FakeLibvirt):
    """A fake of libvirt's event loop, whose registration fails `refusals` times."""

    def __init__(self, *, refusals: int = 0, is_broken: bool = False) -> None:
        super().__init__()
        self.refusals = refusals
        self.is_broken = is_broken
        self.timeouts: list[tuple[int, int]] = []
        self.has_turned, self.is_woken = threading.Event(), threading.Event()

    def virEventRegisterDefaultImpl(self) -> None:  # noqa: N802
        if self.refusals:
            self.refusals -= 1
            raise FakeLibvirtError("no loop", code=1)

    def virEventAddTimeout(self, ms: int, callback: Any, _opaque: object) -> int:  # noqa: N802
        assert ms < 0, "The timer never fires by itself."
        callback(7, None)
        return 7

    def virEventUpdateTimeout(self, timer: int, ms: int) -> None:  # noqa: N802
        self.timeouts.append((timer, ms))
        self.is_woken.set()

    def virEventRunDefaultImpl(self) -> None:  # noqa: N802
        self.thread = threading.current_thread()
        self.has_turned.set()
        if self.is_broken:
            raise FakeLibvirtError("the loop is broken", code=1)
        assert self.is_woken.wait(LONG_S)


@pytest.fixture(autouse=True)
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return the functions that were registered to run at the exit of the process."""
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", registered.append)
    return registered


def test_event_loop_ends_at_the_exit_of_its_process(at_exit: list[Callable[[], None]]) -> None:
    """If Python ends a thread inside a callback, the locks of libvirt stay locked."""
    libvirt = LoopLibvirt()
    EventLoop().start(libvirt)
    assert libvirt.has_turned.wait(LONG_S)
    (end,) = at_exit
    assert libvirt.thread.daemon, "Else Python would wait for it before it calls `end`."

    end()

    assert libvirt.timeouts == [(7, 0)]
    libvirt.thread.join(LONG_S)
    assert not libvirt.thread.is_alive()


def test_exit_of_a_forked_process_does_not_end_the_event_loop(
    at_exit: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread does not exist in the child, and libvirt's locks may be held there for ever."""
    libvirt = LoopLibvirt()
    EventLoop().start(libvirt)
    (end,) = at_exit
    with monkeypatch.context() as fork:
        fork.setattr("os.getpid", lambda: 8)

        end()

    assert libvirt.timeouts == []
    end()
    libvirt.thread.join(LONG_S)


def test_event_loop_is_started_only_once(at_exit: list[Callable[[], None]]) -> None:
    libvirt, loop = LoopLibvirt(), EventLoop()
    loop.start(libvirt)
    loop.start(libvirt)
    assert libvirt.has_turned.wait(LONG_S)

    (end,) = at_exit
    end()


def test_end_of_the_event_loop_is_logged_with_the_reason(log: Log) -> None:
    libvirt = LoopLibvirt(is_broken=True)
    EventLoop().start(libvirt)
    assert libvirt.has_turned.wait(LONG_S)

    libvirt.thread.join(LONG_S)

    (record,) = log.records
    assert record.getMessage() == "libvirt's event loop ended; no further event will be received"
    assert record.exc_info
    assert str(record.exc_info[1]) == "the loop is broken"


def test_event_loop_that_failed_to_start_is_started_by_the_next_caller() -> None:
    """Otherwise all waits for events would last until their deadlines without a reason."""
    libvirt, loop = LoopLibvirt(refusals=1, is_broken=True), EventLoop()
    with pytest.raises(FakeLibvirtError, match="no loop"):
        loop.start(libvirt)

    loop.start(libvirt)

    assert libvirt.has_turned.wait(LONG_S)
