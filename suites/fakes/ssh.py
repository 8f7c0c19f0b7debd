"""The fake ssh program of all suites."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.provisioning.command import CommandResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass
class FakeSsh:
    """A Runner in the place of ssh; '{nonce}' in `stderr` becomes the nonce of the command.

    The remote shell prints the nonce and then the exit status on standard error.
    """

    stdout: str = ""
    stderr: str = "\n{nonce} 0\n"
    exit_code: int = 0
    duration_s: float = 0.5
    timed_out: bool = False
    calls: list[Sequence[str]] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    stdins: list[str | None] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert env is None, "ssh runs in the environment of the user."
        self.calls.append(argv)
        self.timeouts.append(timeout_s)
        self.stdins.append(stdin)
        found = re.search(r" ([0-9a-f]{16}) \$\? >&2", argv[-1])
        assert found is not None
        return CommandResult(
            argv=tuple(argv),
            exit_code=self.exit_code,
            stdout=self.stdout,
            stderr=self.stderr.replace("{nonce}", found[1]),
            duration_s=self.duration_s,
            timed_out=self.timed_out,
        )
