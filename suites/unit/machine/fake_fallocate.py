"""A fake of the one command that checkpoints are made with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.provisioning.command import CommandResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class FakeFallocate:
    """Takes calls of `fallocate --dig-holes`; digging fails, which has to do no harm."""

    def __init__(self) -> None:
        self.dug: list[str] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert argv[:2] == ["fallocate", "--dig-holes"]
        assert timeout_s > 0
        assert stdin is None
        assert env is None
        self.dug.append(Path(argv[2]).name)
        return CommandResult(argv=tuple(argv), exit_code=1, stdout="", stderr="not supported")
