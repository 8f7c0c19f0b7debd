"""Requests and answers, with a fake process table."""

from __future__ import annotations

import errno
import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from harness.agent import frames, units
from suites.unit.agent.fakes import Bench, error_of, passes, result_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def show(active: str, sub: str = "x", load: str = "loaded") -> bytes:
    return f"ActiveState={active}\nSubState={sub}\nResult=success\nLoadState={load}\n".encode()


def answer(bench: Bench, said: bytes, number: int, exit_code: int = 0) -> None:
    bench.turns()
    assert len(bench.processes.started) == number
    process = bench.processes.started[-1]
    process.says(said)
    os.write(process.stderr, b"Warning: ")
    process.ends(exit_code)


def test_unit_is_queried_until_it_is_in_the_wanted_state(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "PRIVATE_SOCKET", "/nowhere")
    bench.sends(frames.WAIT_UNIT, 2, {"unit": "a.service", "active": "active"})
    answer(bench, show("activating"), 1)
    assert [kind for kind, _, _ in bench.gets()] == [frames.DATA]
    passes(bench, monkeypatch, 0.5)
    answer(bench, show("activating"), 2)
    assert bench.gets() == []
    passes(bench, monkeypatch, 0.5)
    answer(bench, show("active"), 3, exit_code=1)
    assert [payload for _, _, payload in bench.gets()] == [
        b'{"trouble":"systemctl ended with exit code 1"}'
    ]
    passes(bench, monkeypatch, 0.5)
    answer(bench, show("active", "running"), 4)

    assert result_of(bench.gets()) == {
        "ActiveState": "active",
        "SubState": "running",
        "Result": "success",
        "LoadState": "loaded",
    }
    assert bench.processes.started[0].argv[-2:] == ["--", "a.service"]


@pytest.fixture
def systemd(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[socket.socket]:
    """Begin a wait, and return systemd's end of its connection."""
    monkeypatch.setattr(units, "PRIVATE_SOCKET", str(tmp_path / "private"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(units.PRIVATE_SOCKET)
        listener.listen()
        bench.sends(frames.WAIT_UNIT, 2, {"unit": "a.service", "active": "active"})
        bench.turns()
        connection, _ = listener.accept()
        with connection:
            connection.send(b"signal")
            yield connection


def test_frequent_signals_of_systemd_do_not_delay_the_query(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, systemd: socket.socket
) -> None:
    """Systemd sends signals more often than the agent queries a unit."""
    answer(bench, show("activating"), 1)
    for _ in range(5):
        passes(bench, monkeypatch, 0.02)
        systemd.send(b"signal")
        bench.turns()
    answer(bench, show("active"), 2)

    assert result_of(bench.gets())["ActiveState"] == "active"


def test_unchanged_unit_is_queried_at_growing_intervals_even_if_no_signal_arrives(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, systemd: socket.socket
) -> None:
    for number, active in enumerate(["activating"] * 7 + ["inactive"], 1):
        bench.turns()
        systemd.send(b"during the query")
        bench.turns()
        answer(bench, show(active), number)
        bench.turns()
        if number == 4:
            passes(bench, monkeypatch, 0.2)
        assert len(bench.processes.started) == number
        # Each interval is twice as long as the previous interval, up to 0.8 s.
        passes(bench, monkeypatch, 0.06 if number in {1, 8} else 0.85)
    answer(bench, show("inactive"), 9)
    bench.turns()
    passes(bench, monkeypatch, 4)
    assert len(bench.processes.started) == 9, "No signal came."
    passes(bench, monkeypatch, 1.1)
    answer(bench, show("active"), 10)

    kinds = [kind for kind, _, _ in bench.gets()]
    assert kinds == [frames.DATA, frames.DATA, frames.RESULT], "Two states, each told once."


def test_unit_is_queried_without_signals_after_systemd_reexecutes_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, systemd: socket.socket
) -> None:
    answer(bench, show("activating"), 1)
    bench.turns()
    systemd.close()
    for number in (2, 3):
        bench.turns()
        passes(bench, monkeypatch, 0.5)
        answer(bench, show("activating"), number)


def test_query_is_retried_after_a_lack_of_memory_and_killed_when_it_is_cancelled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, systemd: socket.socket
) -> None:
    bench.processes.refusal = OSError(errno.ENOMEM, "Cannot allocate memory")
    assert bench.gets() == []
    bench.processes.refusal = None
    passes(bench, monkeypatch, 0.5)
    (query,) = bench.processes.started
    bench.sends(frames.CANCEL, 2)

    assert result_of(bench.gets()) == {"cancelled": True}
    assert query.signals == [signal.SIGKILL]
    assert systemd.recv(1000).startswith(b"\0AUTH")
    assert systemd.recv(1) == b""
    query.ends(-9)
    passes(bench, monkeypatch, 60)
    assert len(bench.processes.started) == 1


@pytest.mark.parametrize("wanted", ["active", "failed"])
def test_failed_unit_ends_the_wait(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setattr(units, "PRIVATE_SOCKET", "/nowhere")
    bench.sends(frames.WAIT_UNIT, 2, {"unit": "a.service", "active": wanted})
    answer(bench, show("failed"), 1)

    assert result_of(bench.gets())["ActiveState"] == "failed"


def test_system_without_systemd_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "PRIVATE_SOCKET", "/nowhere")
    bench.processes.refusal = FileNotFoundError(2, "No such file or directory")
    bench.sends(frames.WAIT_UNIT, 2, {"unit": "a.service", "active": "active"})

    assert "There is no 'systemctl' on this system" in error_of(bench.gets())
