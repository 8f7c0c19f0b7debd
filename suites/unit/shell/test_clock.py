"""Virtual time: its variables and commands, and the log of sleeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.shell.clock import Sleep, clock_environment, read_sleeps

if TYPE_CHECKING:
    from pathlib import Path


def test_sleeps_in_the_log_are_read_in_order_and_in_seconds() -> None:
    assert read_sleeps("sleep 1500 at 0\nsleep 20 at 1500\n") == [
        Sleep(seconds=1.5, at_s=0.0),
        Sleep(seconds=0.02, at_s=1.5),
    ]


def test_error_names_the_missing_command_for_virtual_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == "date" else name)

    with pytest.raises(RequirementError, match="needs 'date'; install coreutils"):
        clock_environment(tmp_path, "/bin")
