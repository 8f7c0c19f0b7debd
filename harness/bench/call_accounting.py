"""The CPU time of each call of some commands, wherever in a run it is made."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_SOURCE = Path(__file__).with_name("wait4_shim.c")
_COMPILE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a command; `cpu_s` is its user and system time."""

    name: str
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class CallAccounting:
    """What a run needs so that its calls are accounted for, and what it left."""

    folder: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables to run with."""
        return {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "HARNESS_BENCH_SHIMS": str(self.folder),
            "HARNESS_BENCH_CPU_US": str(self._output),
        }

    def calls(self) -> Sequence[Call]:
        """Return the calls so far; raises HarnessError where there was none."""
        if not self._output.exists():
            raise HarnessError(
                "None of the accounted commands was called; does the run reset PATH?"
            )
        lines = (line.split() for line in self._output.read_text().splitlines())
        return [Call(name=name, cpu_s=int(us) / 1e6) for name, us in lines]

    @property
    def _output(self) -> Path:
        return self.folder / "cpu_us"


@contextlib.contextmanager
def call_accounting(names: Iterable[str]) -> Iterator[CallAccounting]:
    """Prepare a folder of programs that run the commands `names` and account for each call.

    Raises RequirementError where there is no C compiler or no such command.
    """
    with tempfile.TemporaryDirectory(prefix="harness-calls.") as name:
        folder = Path(name)
        (folder / "real").mkdir()
        shim = folder / "real" / ".shim"
        _compile(shim)
        for command in names:
            program = shutil.which(command)
            if program is None:
                raise RequirementError(f"'{command}' is to be accounted for, but is not on PATH.")
            (folder / "real" / command).symlink_to(program)
            (folder / command).symlink_to(shim)
        yield CallAccounting(folder=folder)


def _compile(shim: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        raise RequirementError(
            "Calls are accounted for by a small program, and there is no C compiler 'cc' on PATH to "
            "build it; install one (apt-get install gcc libc6-dev)."
        )
    ran = LocalRunner().run([compiler, "-O2", "-o", str(shim), str(_SOURCE)], timeout_s=_COMPILE_S)
    if not ran.ok:
        raise HarnessError(f"The C compiler failed.\n{ran.render()}")
