"""Keeps shell code under test from changing the host.

Best is a throw-away root: the code writes where it likes, and all of it is gone with the shell.
Where the host forbids that, the kernel refuses writes outside the test's own places. The work is
done by the program beside this module, in the process that becomes the shell.
"""

from __future__ import annotations

import enum
import functools
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RequirementError
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.provisioning.command import Runner

_PROGRAM = Path(__file__).with_name("sandbox_enter.py")
_PROBE_TIMEOUT_S = 20.0
CANNOT_ENTER = 251
TOO_MANY_PROCESSES = 250


class SandboxKind(enum.Enum):
    """How code under test is held; `off` runs it on the host as it is."""

    THROWAWAY = "throwaway"
    REFUSE = "refuse"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """A way to hold code under test, and the limits it runs under."""

    kind: SandboxKind
    size_mib: int = 2048
    process_limit: int = 1000
    why: str = ""

    def argv(self, command: Sequence[str], *, cwd: Path, scratch: Path) -> tuple[str, ...]:
        """Return what to run so that `command` runs held, in `cwd`.

        `scratch` must exist; the throw-away root is built upon an empty directory in it, and
        under refusal it may be written to, as may `cwd` and the directory for temporary files.
        """
        if self.kind is SandboxKind.OFF:
            return tuple(command)
        staging = scratch / ".staging"
        staging.mkdir(exist_ok=True)
        settings = {
            "kind": self.kind.value,
            "cwd": str(cwd),
            "staging": str(staging),
            "size_mib": self.size_mib,
            "process_limit": self.process_limit,
            "writable": [str(scratch), str(cwd), tempfile.gettempdir()],
        }
        return (sys.executable, "-I", "-S", str(_PROGRAM), json.dumps(settings), *command)


def choose_sandbox(wanted: str) -> Sandbox:
    """Return the sandbox called `wanted`; `auto` takes the best that this host allows.

    Raises RequirementError where the host does not allow it.
    """
    if wanted == "off":
        return Sandbox(kind=SandboxKind.OFF)
    if wanted != "auto":
        kind = SandboxKind(wanted)
        obstacle = find_obstacle(kind)
        if obstacle:
            raise RequirementError(_refusal(kind, obstacle))
        return Sandbox(kind=kind)
    obstacle = find_obstacle(SandboxKind.THROWAWAY)
    if not obstacle:
        return Sandbox(kind=SandboxKind.THROWAWAY)
    second = find_obstacle(SandboxKind.REFUSE)
    if second:
        raise RequirementError(
            f"{_refusal(SandboxKind.THROWAWAY, obstacle)} Nor can the kernel refuse writes "
            f"({second}); run on a machine of your own to throw away with --shell-sandbox=off."
        )
    return Sandbox(
        kind=SandboxKind.REFUSE,
        why=f"{_refusal(SandboxKind.THROWAWAY, obstacle)} "
        "Writes outside the project and the temporary directory are refused instead.",
    )


def _refusal(kind: SandboxKind, obstacle: str) -> str:
    remedy = (
        "allow user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, "
        "user.max_user_namespaces)"
        if kind is SandboxKind.THROWAWAY
        else "boot a kernel with Landlock (lsm=landlock)"
    )
    return f"This host gives shell tests no sandbox '{kind.value}' ({obstacle}); {remedy}."


@functools.cache
def find_obstacle(kind: SandboxKind) -> str:
    """Return what keeps `kind` from working here; empty where it works. Tries it once."""
    return probe(kind, LocalRunner())


def probe(kind: SandboxKind, runner: Runner) -> str:
    """Run a command in the sandbox that proves that a deletion does not reach the host."""
    with tempfile.TemporaryDirectory(prefix="harness-sandbox.") as folder:
        scratch = Path(folder)
        outside = kind is SandboxKind.THROWAWAY
        proof = scratch / "proof"
        proof.mkdir()
        (proof / "file").touch()
        script = 'rm -rf "$1" && mkdir "$1" && [ ! -e "$1/file" ]' if outside else ":"
        argv = Sandbox(kind=kind).argv(
            ["sh", "-c", script, "sh", str(proof)], cwd=scratch, scratch=scratch
        )
        result = runner.run(argv, timeout_s=_PROBE_TIMEOUT_S)
        if not result.ok:
            return result.stderr.strip() or f"exit code {result.exit_code}"
        if outside and not (proof / "file").exists():
            return "a deletion inside reached the host"
    return ""
