"""What `harness logs` prints of a machine's console."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.cli import machines, main

if TYPE_CHECKING:
    from pathlib import Path

PRINTED = b"\x1b[32mok\x1b[0m \x1b]52;c;ZXZpbA==\x07\x1b[6n\x1b]0;owned\x07 caf\xc3\xa9\n"


class _Terminal(io.TextIOWrapper):
    is_terminal = True

    @override
    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "expected"),
    [(True, b"\x1b[32mok\x1b[0m  caf\xc3\xa9\n"), (False, PRINTED)],
    ids=["terminal", "pipe"],
)
def test_console_on_a_terminal_only_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, expected: bytes
) -> None:
    """Its guest would set the title and the clipboard, and type answers into the shell."""
    log = tmp_path / "serial.log"
    log.write_bytes(PRINTED)
    machine = SimpleNamespace(id="one", serial_log=log)
    roster = SimpleNamespace(find=lambda _: machine, machines=lambda: [machine])
    monkeypatch.setattr(machines, "Roster", lambda _: roster)
    raw = io.BytesIO()
    terminal = _Terminal(raw, write_through=True)
    terminal.is_terminal = is_terminal
    monkeypatch.setattr("sys.stdout", terminal)

    assert main(["logs", "one"]) == 0

    assert raw.getvalue() == expected
