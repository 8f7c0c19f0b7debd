"""Tests of the wait for a unit; the tests answer in place of systemd on a socket."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from harness.agent import frames, units
from suites.unit.agent.fakes import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACTIVATING = b"ActiveState=activating\nSubState=start\nResult=success\nLoadState=loaded\n"
ACTIVE = b"ActiveState=active\nSubState=running\nResult=success\nLoadState=loaded\n"


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = str(tmp_path / "private")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        monkeypatch.setattr(units, "PRIVATE_SOCKET", path)
        yield listener


def rounds(bench: Bench) -> None:
    for _ in range(20):
        bench.server.loop.run_once(0.01)


def test_unit_is_queried_again_after_a_signal_of_systemd(listener: socket.socket) -> None:
    bench = Bench()
    bench.greets()
    bench.sends(frames.WAIT_UNIT, 2, {"unit": "a.service", "active": "active"})
    bench.turns()
    systemd, _ = listener.accept()
    said = systemd.recv(4096)
    assert said.startswith(b"\0AUTH EXTERNAL ")
    assert said.endswith(b"\r\nBEGIN\r\n")
    assert bench.processes.started == []

    systemd.sendall(b"OK 0123\r\n")
    rounds(bench)
    (question,) = bench.processes.started
    # A change while `systemctl` runs may come too late for its output.
    systemd.sendall(b"a signal")
    rounds(bench)
    assert len(bench.processes.started) == 1
    question.says(ACTIVATING)
    question.ends()
    rounds(bench)
    assert len(bench.processes.started) == 2
    bench.processes.started[1].says(ACTIVE)
    bench.processes.started[1].ends()

    kinds = [kind for kind, _, _ in bench.gets()]
    assert kinds == [frames.RESULT, frames.DATA, frames.RESULT]
    systemd.settimeout(5)
    assert systemd.recv(1) == b""
    systemd.close()
    bench.close()


def test_unit_is_polled_after_systemd_closes_the_connection(listener: socket.socket) -> None:
    bench = Bench()
    bench.greets()
    bench.sends(frames.WAIT_UNIT, 2, {"unit": "a.service", "active": "active"})
    bench.turns()
    systemd, _ = listener.accept()
    systemd.close()
    rounds(bench)

    bench.processes.started[0].says(ACTIVE)
    bench.processes.started[0].ends()
    assert [kind for kind, _, _ in bench.gets()] == [frames.RESULT, frames.RESULT]
    bench.close()
