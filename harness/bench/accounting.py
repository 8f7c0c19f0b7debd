"""Measures the CPU time and the wall time of a command with all its processes."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROGRAM = Path(__file__).with_name("accounted_command.py")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The resources that a command used; `cpu_s` is the user and system time of all its processes."""

    cpu_s: float
    wall_s: float
    stdout: str


def run_accounted(
    argv: Sequence[str],
    *,
    cwd: Path,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    may_fail: bool = False,
) -> Usage:
    """Run the command `argv` in the folder `cwd`, and return the resources that the command used.

    Raises HarnessError if the command fails, unless `may_fail` is true.
    """
    with tempfile.TemporaryDirectory(prefix="harness-accounting.") as folder:
        result = Path(folder) / "cpu_s"
        ran = LocalRunner().run(
            [
                *("env", "-C", str(cwd)),
                *(sys.executable, "-I", "-S", str(_PROGRAM), str(result)),
                *argv,
            ],
            timeout_s=timeout_s,
            env=env,
        )
        if ran.timed_out or not result.exists() or not (ran.ok or may_fail):
            raise HarnessError(f"The measured command failed.\n{ran.render()}")
        return Usage(cpu_s=float(result.read_text()), wall_s=ran.duration_s, stdout=ran.stdout)
