"""How `harness replay` plays a console: pauses, interruption, refused arguments."""

from __future__ import annotations

import io
import json
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from harness.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    lines = [{"version": 2}, [1.0, "o", "\x1b[31ma"], [1.5, "o", "b"], [60.0, "o", "c"]]
    place = tmp_path / "test/node/host"
    place.mkdir(parents=True)
    (place / "serial.cast").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return place


def test_replay_repeats_the_pauses_of_the_console_but_shortens_long_pauses(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(
        "harness.provisioning.wait.SystemClock.sleep", lambda _, seconds: sleeps.append(seconds)
    )

    assert main(["replay", "--speed=2", str(recording)]) == 0

    assert capsys.readouterr().out == "\x1b[31mabc"
    assert sleeps == [0.5, 0.25, 1.0]


def test_replay_plays_characters_that_stdout_cannot_encode(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (recording / "serial.cast").write_text('{"version": 2}\n[0, "o", "caf\\u00e9"]\n')
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))

    assert main(["replay", "--speed=0", str(recording.parents[1])]) == 0

    assert raw.getvalue() == "caf\xe9".encode()


def test_interrupted_replay_restores_the_terminal(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.provisioning.wait.SystemClock.sleep", interrupt)
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)

    assert main(["replay", str(recording.parents[1])]) == 130

    assert capsys.readouterr().out.startswith("\x1b[0m\x1b[?25h")


def test_replay_of_several_machines_requires_the_folder_of_one_machine(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = recording.parents[1]
    shutil.copytree(test / "node", test / "other")

    assert main(["replay", str(test)]) == 2

    assert "several machines" in capsys.readouterr().err
    assert main(["replay", "--speed=0", str(test / "other")]) == 0
    assert main(["replay", str(test / "other/none")]) == 2


def test_invalid_replay_speed_is_refused() -> None:
    for speed in ("-1", "nan", "fast", "1e-300"):
        with pytest.raises(SystemExit):
            main(["replay", f"--speed={speed}", "x"])
