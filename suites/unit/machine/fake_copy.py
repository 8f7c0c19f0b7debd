"""A fake of `cp`, the only command that the checkpoint store runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.provisioning.command import CommandResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class FakeCopy:
    """Replaces `cp --sparse=always`. Each copy fails, and the failure must do no harm.

    `leaves` is the partial copy that remains, or None if no file remains.
    """

    def __init__(self) -> None:
        self.copied: list[str] = []
        self.limits_s: list[float] = []
        self.leaves: bytes | None = b"half"

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert argv[:2] == ["cp", "--sparse=always"]
        self.limits_s.append(timeout_s)
        assert stdin is None
        assert env is None
        self.copied.append(Path(argv[2]).name)
        if self.leaves is not None:
            Path(argv[3]).write_bytes(self.leaves)
        return CommandResult(argv=tuple(argv), exit_code=1, stdout="", stderr="no space left")
