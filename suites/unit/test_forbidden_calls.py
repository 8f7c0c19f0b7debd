"""Which calls the plug-in of the unit suites refuses."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess  # noqa: TID251 - it must be refused
import threading
import time
from typing import TYPE_CHECKING

import pytest

from suites.unit.forbidden_calls import CALLS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _bind() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("/nowhere")


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: subprocess.Popen(["true"]), "started a process"),
        (lambda: os.system("true"), "started a process"),  # noqa: S605
        (os.fork, "started a process"),
        (lambda: os.posix_spawn("/bin/true", ["true"], {}), "started a process"),
        (lambda: os.execv("/bin/true", ["true"]), "started a process"),  # noqa: S606
        (lambda: socket.socket(socket.AF_INET), "used a socket"),
        (lambda: socket.getaddrinfo("localhost", 80), "used a socket"),
        (_bind, "used a socket"),
        (lambda: time.sleep(0.001), "slept for 0.001 s"),  # noqa: TID251
    ],
)
def test_forbidden_call_is_refused_and_noted(call: Callable[[], object], what: str) -> None:
    with CALLS.watched() as seen:
        with pytest.raises(pytest.fail.Exception, match=what):
            call()

        assert [each.partition(" (")[0] for each in seen] == [what]


def test_thread_and_socket_pair_are_not_forbidden_calls(tmp_path: Path) -> None:
    with CALLS.watched() as seen:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.socket(fileno=ours.detach()).close()
        thread = threading.Thread(target=(tmp_path / "file").touch)
        thread.start()
        thread.join()

        assert seen == []


def test_test_fails_even_if_a_thread_suppresses_the_refusal() -> None:
    """The conftest.py of the suite checks every test, including this one."""

    def connect() -> None:
        with contextlib.suppress(BaseException), socket.socket(socket.AF_UNIX) as client:
            client.connect("/nowhere")

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()

    with pytest.raises(pytest.fail.Exception, match=r"it used a socket .*suites/host"):
        CALLS.check()
