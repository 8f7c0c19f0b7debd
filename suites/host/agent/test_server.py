"""Requests and answers, with a fake process table."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from harness.agent import frames, units
from suites.unit.agent.fakes import Bench, error_of, passes, result_of

if TYPE_CHECKING:
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


def test_busy_systemd_does_not_put_the_query_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It sends signals more often than a unit is queried."""
    monkeypatch.setattr(units, "PRIVATE_SOCKET", str(tmp_path / "private"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(units.PRIVATE_SOCKET)
        listener.listen()
        bench.sends(frames.WAIT_UNIT, 2, {"unit": "a.service", "active": "active"})
        bench.turns()
        systemd, _ = listener.accept()
        with systemd:
            systemd.send(b"signal")
            answer(bench, show("activating"), 1)
            for _ in range(5):
                passes(bench, monkeypatch, 0.02)
                systemd.send(b"signal")
                bench.turns()
            answer(bench, show("active"), 2)

    assert result_of(bench.gets())["ActiveState"] == "active"


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
