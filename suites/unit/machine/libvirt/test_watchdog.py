"""The watchdog over calls that can't be interrupted, and the receiver of a call's result."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness.machine.libvirt.watchdog import LibvirtHangsError, watched

if TYPE_CHECKING:
    from collections.abc import Callable

LONG_S = 20.0


class Hang:
    """A call that hangs until the test releases it, and the results that arrived late."""

    def __init__(self, finish: Callable[[], int]) -> None:
        self._finish = finish
        self._has_begun = threading.Event()
        self._release = threading.Event()
        self.late: list[int] = []

    def __call__(self) -> int:
        self._thread = threading.current_thread()
        self._has_begun.set()
        assert self._release.wait(LONG_S)
        return self._finish()

    def end(self) -> None:
        """Release the call, and wait until its thread has ended."""
        assert self._has_begun.wait(LONG_S)
        self._release.set()
        self._thread.join(LONG_S)


def fail() -> NoReturn:
    raise ValueError("refused")


def test_result_within_the_limit_is_returned_without_the_late_callback() -> None:
    late: list[int] = []

    assert watched("a call", lambda: 7, LONG_S, late=late.append) == 7
    assert late == []


def test_error_within_the_limit_is_raised_to_the_caller() -> None:
    with pytest.raises(ValueError, match="refused"):
        watched("a call", fail, LONG_S)


def test_result_after_the_limit_is_passed_to_the_late_callback() -> None:
    call = Hang(lambda: 7)
    with pytest.raises(LibvirtHangsError):
        watched("a call", call, 0.02, late=call.late.append)
    assert call.late == []

    call.end()

    assert call.late == [7]


def test_error_after_the_limit_is_discarded() -> None:
    """The thread ends without an exception, which pytest would report."""
    call = Hang(fail)
    with pytest.raises(LibvirtHangsError):
        watched("a call", call, 0.02, late=call.late.append)

    call.end()

    assert call.late == []


def test_result_after_an_interrupt_is_passed_to_the_late_callback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C ends the wait. The call itself continues."""
    call = Hang(lambda: 7)

    def interrupted(_: object, timeout: float) -> NoReturn:
        del timeout
        raise KeyboardInterrupt

    monkeypatch.setattr(concurrent.futures.Future, "exception", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watched("a call", call, LONG_S, late=call.late.append)

    call.end()

    assert call.late == [7]
