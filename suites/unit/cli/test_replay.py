"""How fast `harness replay` plays a console."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from harness.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_pauses_are_those_of_the_console_but_for_long_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(
        "harness.provisioning.wait.SystemClock.sleep", lambda _, seconds: sleeps.append(seconds)
    )
    lines = [{"version": 2}, [1.0, "o", "a"], [1.5, "o", "b"], [60.0, "o", "c"]]
    (tmp_path / "serial.cast").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    assert main(["replay", "--speed=2", str(tmp_path)]) == 0

    assert capsys.readouterr().out == "abc"
    assert sleeps == [0.5, 0.25, 1.0]
