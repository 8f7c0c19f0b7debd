"""Fails a unit test that starts a process, uses a socket other than a pair, or sleeps.

A refused call has no effect. Product code can't hide a refusal by catching it, and a refusal in a
thread fails the test too.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

_SUITE = Path(__file__).parent
_SLEEP_S = 0.001
_PROCESS, _SOCKET = "started a process", "used a socket"
_NEW_SOCKET = "socket.__new__"
#: Events of Python's audit hooks, and what a test did that raises one.
_EVENTS = {
    "os.exec": _PROCESS,
    "os.fork": _PROCESS,
    "os.forkpty": _PROCESS,
    "os.posix_spawn": _PROCESS,
    "os.system": _PROCESS,
    "subprocess.Popen": _PROCESS,
    "socket.bind": _SOCKET,
    "socket.connect": _SOCKET,
    "socket.getaddrinfo": _SOCKET,
    "socket.gethostbyaddr": _SOCKET,
    "socket.gethostbyname": _SOCKET,
}
#: Those of a pair; a socket that takes over a descriptor may have -1.
_FAMILIES_OF_PAIRS = (socket.AF_UNIX, -1)


class ForbiddenCalls:
    """Refuses and records forbidden calls while a test is watched."""

    def __init__(self) -> None:
        self._seen: list[str] | None = None

    def install(self) -> None:
        """Install the hooks for the rest of this process, since Python can't remove an audit hook."""
        events = frozenset({*_EVENTS, _NEW_SOCKET})

        def audit(event: str, arguments: tuple[object, ...]) -> None:
            # Each file that is opened, and much else, raises an event.
            if event in events and self._seen is not None:
                self._audit(event, arguments)

        sys.addaudithook(audit)
        sleep = time.sleep  # noqa: TID251 - other suites sleep

        def sleep_unless_watched(seconds: float) -> None:
            if self._seen is None:
                sleep(seconds)
            elif seconds >= _SLEEP_S:  # pexpect pauses for less after each read
                self._refuse(f"slept for {seconds} s")

        time.sleep = sleep_unless_watched  # type: ignore[assignment]  # noqa: TID251

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[str]]:
        """Refuse forbidden calls in the block, and yield the list of refused calls."""
        outer = self._seen
        self._seen = seen = list[str]()
        try:
            yield seen
        finally:
            self._seen = outer

    def check(self) -> None:
        """Fail the test if a call was refused, even if the caller caught the refusal."""
        if self._seen:
            seen = "; ".join(dict.fromkeys(self._seen))
            self._seen.clear()
            pytest.fail(_sentence(seen), pytrace=False)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        what = _EVENTS.get(event)
        if event == _NEW_SOCKET and arguments[1] not in _FAMILIES_OF_PAIRS:
            what = _SOCKET
        if what is not None:
            self._refuse(f"{what} ({event}: {_shown(arguments)})")

    def _refuse(self, what: str) -> None:
        if self._seen is not None:
            self._seen.append(what)
        raise pytest.fail.Exception(_sentence(what))


def _sentence(what: str) -> str:
    return (
        f"A unit test was expected to start no process, to use no socket but a pair and not to sleep, but "
        f"it {what}. Pass it a runner or a clock of the test, or move it to suites/host."
    )


def _shown(arguments: tuple[object, ...]) -> str:
    most = 160
    return ", ".join(str(each) for each in arguments)[:most]


CALLS = ForbiddenCalls()
CALLS.install()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch a unit test and its fixtures; pytest calls this hook for tests of other folders too."""
    is_unit_test = item.path.is_relative_to(_SUITE)
    with CALLS.watched() if is_unit_test else contextlib.nullcontext():
        return (yield)


def _checked() -> Generator[None, object, object]:
    result = yield
    CALLS.check()
    return result


#: Each part of a test's run fails by what was refused in it.
pytest_runtest_setup: Callable[[], Generator[None, object, object]]
pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = pytest.hookimpl(
    wrapper=True
)(_checked)
