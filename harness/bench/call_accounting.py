"""Measures the CPU time of each call that the shells of a run make to given commands."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_SOURCE = Path(__file__).with_name("wait4_accounting.c")
_COMPILE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a command; `cpu_s` is the user and system time of the command's process since the fork."""

    name: str
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class CallAccounting:
    """The environment with which a run records its calls of commands, and the recorded calls."""

    folder: Path
    names: Sequence[str]

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables that load the library by LD_PRELOAD, which statically linked shells ignore."""
        return {
            "LD_PRELOAD": str(self.library),
            "HARNESS_BENCH_NAMES": f":{':'.join(self.names)}:",
            "HARNESS_BENCH_CALLS": str(self._records),
        }

    @property
    def library(self) -> Path:
        return self.folder / "wait4_accounting.so"

    def calls(self) -> Sequence[Call]:
        """Return the calls of commands that a shell has waited for, in the order of their ends.

        Raises HarnessError if there was no call.
        """
        text = self._records.read_text() if self._records.exists() else ""
        running: dict[str, str] = {}
        found = []
        for line in text.splitlines():
            event, pid, value = line.split()
            if event == "exec":
                running[pid] = value
            elif pid in running:
                found.append(Call(name=running.pop(pid), cpu_s=int(value) / 1e6))
        if not found:
            raise HarnessError(
                "No shell of the run called a measured command. Perhaps the shell is linked statically, and "
                "therefore does not load the library that measures calls."
            )
        return found

    @property
    def _records(self) -> Path:
        return self.folder / "calls"


@contextlib.contextmanager
def call_accounting(names: Iterable[str]) -> Iterator[CallAccounting]:
    """Compile the library that records each call of the commands `names` by a shell.

    Raises RequirementError if there is no C compiler.
    """
    with tempfile.TemporaryDirectory(prefix="harness-calls.") as name:
        accounting = CallAccounting(folder=Path(name), names=tuple(names))
        _compile(accounting.library)
        yield accounting


def _compile(library: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        raise RequirementError(
            "The library that measures calls has to be compiled, but there is no C compiler 'cc' on "
            "PATH; install a compiler (apt-get install gcc libc6-dev)."
        )
    ran = LocalRunner().run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)],
        timeout_s=_COMPILE_S,
    )
    if not ran.ok:
        raise HarnessError(f"The C compiler failed.\n{ran.render()}")
