"""Keeps shell code under test from changing the host.

Shell code under test runs in a throw-away root (overlays over the host's files), where the code can
write anywhere and signal each visible process. All changes to files are gone when the shell ends.
If the kernel does not let an ordinary user create namespaces, a weaker sandbox refuses writes
outside the working directory and the temporary directories. The sandbox that only refuses writes is
never used for code of the user root. The programs `throwaway_root.py` and `write_refusal.py` set up
the isolation, and then start the shell. Before `throwaway_root.py` executes the shell, the child
process checks once more that its namespaces and its root directory are not the host's.
"""

from __future__ import annotations

import enum
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError
from harness.lease import temporary_folder
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.provisioning.command import Runner

#: The programs beside this module use these exit codes and this prefix on stderr, or on the
#: descriptor `report_fd`, to report why a command did not run. The programs import nothing from the
#: harness, and only tests import the programs.
CANNOT_ENTER, TOO_MANY_PROCESSES, KERNEL_REFUSES = 251, 250, 249
MARK = "harness sandbox:"
_PROGRAMS = {"throwaway": "throwaway_root.py", "refuse": "write_refusal.py"}
_PROBE_TIMEOUT_S = 60.0
_START = """\
import os, sys
del sys.argv[0]
folder, _, file = sys.argv[0].rpartition("/")
sys.path.append(folder)
os._exit(__import__(file.removesuffix(".py")).main())
"""
"""Runs a program as a module: Python caches the bytecode of a module, but not of a script.

The code ends with `os._exit`: Python's shutdown is not needed, and takes a tenth of the program's
own time.
"""


class SandboxKind(enum.Enum):
    """The ways to protect the host from code under test; `off` does not protect the host."""

    THROWAWAY = "throwaway"
    REFUSE = "refuse"
    OFF = "off"


class Network(enum.Enum):
    """The network of code under test: the host's network, or only a private loopback interface."""

    LOOPBACK = "loopback"
    HOST = "host"


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """A kind of isolation for code under test, with limits on memory for files and on the number of processes.

    `why` says which protection is missing; `why` is empty for the throw-away root.
    """

    kind: SandboxKind
    network: Network = Network.LOOPBACK
    size_mib: int = 2048
    process_limit: int = 1000
    why: str = ""

    def argv(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        scratch: Path,
        layer: Path | None = None,
        shared: Path | None = None,
        control_fd: int | None = None,
        report_fd: int | None = None,
    ) -> tuple[str, ...]:
        """Return the command that runs `command` in this sandbox, with the working directory `cwd`.

        The files below the directory `layer` replace the files with the same paths in the
        throw-away root. Through the socket `control_fd`, a `RootControl` can replace the whole
        throw-away root, except the content of the directory `shared`. The sandbox's program writes
        its reports to the descriptor `report_fd` instead of stderr. The command does not inherit
        the descriptor `report_fd`, so the command can't write a false report.

        The directory `scratch` must exist; the throw-away root is built in an empty directory below
        `scratch`. With `SandboxKind.REFUSE`, the command may write to `scratch`, `cwd` and the
        directory for temporary files.
        """
        if self.kind is SandboxKind.OFF:
            return tuple(command)
        staging = scratch / ".staging"
        staging.mkdir(exist_ok=True)
        settings = {
            "cwd": cwd,
            "staging": staging,
            "size_mib": self.size_mib,
            "process_limit": self.process_limit,
            "layer": layer,
            "shared": shared,
            "control_fd": control_fd,
            "report_fd": report_fd,
            "network": None if self.network is Network.LOOPBACK else self.network.value,
        }
        words = [f"{name}={value}" for name, value in settings.items() if value is not None]
        words += [f"writable={place}" for place in (scratch, cwd, tempfile.gettempdir())]
        program = Path(__file__).with_name(_PROGRAMS[self.kind.value])
        return (*_python(), "-c", _START, str(program), *words, "--", *command)


def _python() -> tuple[str, ...]:
    """Return the command that starts Python in isolated mode (`-I`), with the same bytecode cache as this process."""
    options = ["-I", "-S"]
    if sys.dont_write_bytecode:
        options.append("-B")
    if sys.pycache_prefix is not None:
        options += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return (sys.executable, *options)


def choose_sandbox(
    wanted: str, *, network: Network = Network.LOOPBACK, is_root: bool | None = None
) -> Sandbox:
    """Return the sandbox that `wanted` names; `auto` is the strongest sandbox that this kernel allows.

    `network` applies only to the throw-away root; other sandboxes have the host's network.

    For the user root, `auto` always names the throw-away root. If the kernel refuses the throw-away
    root to the user root, the first shell reports the refusal and no code runs. Raises
    RequirementError if the host does not allow the sandbox, and HarnessError if the check whether
    the host allows the sandbox failed.
    """
    if wanted == "off":
        return Sandbox(
            kind=SandboxKind.OFF,
            why="Shell code ran without a sandbox: nothing protected this host from the code.",
        )
    is_root = os.geteuid() == 0 if is_root is None else is_root
    if wanted == SandboxKind.REFUSE.value:
        if is_root:
            raise RequirementError(
                "The tests run as root, and '--shell-sandbox=refuse' is not enough for root: shell code "
                "of root could signal every process of this host. Run the tests as an ordinary user, "
                "or with '--shell-sandbox=throwaway'."
            )
        return _refusing_writes(LocalRunner(), "as --shell-sandbox asks")
    if wanted == SandboxKind.THROWAWAY.value or is_root:
        return Sandbox(kind=SandboxKind.THROWAWAY, network=network)
    return choose_for_user(LocalRunner(), network)


def choose_for_user(runner: Runner, network: Network = Network.LOOPBACK) -> Sandbox:
    """Return the sandbox with a throw-away root, or else the sandbox that refuses writes.

    The kernel may refuse the throw-away root.
    """
    refusal = find_refusal(SandboxKind.THROWAWAY, runner, network)
    if not refusal:
        return Sandbox(kind=SandboxKind.THROWAWAY, network=network)
    return _refusing_writes(runner, f"since this kernel refuses namespaces ({refusal})")


def _refusing_writes(runner: Runner, reason: str) -> Sandbox:
    refusal = find_refusal(SandboxKind.REFUSE, runner)
    if refusal:
        raise RequirementError(
            f"Writes of shell code have to be refused, {reason}, but this kernel does not support "
            f"that ({refusal}). Allow user namespaces (sysctl "
            "kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces), boot a "
            "kernel with Landlock (lsm=landlock), or use a throw-away machine with "
            "--shell-sandbox=off."
        )
    return Sandbox(
        kind=SandboxKind.REFUSE,
        why=f"Writes of shell code outside the project and the temporary directory were "
        f"refused, {reason}. The code could still signal your other processes, write to these "
        "two directories, change the modes and times of your files elsewhere, and reach the host's "
        "network and daemons; processes that it left running were not ended.",
    )


def find_refusal(kind: SandboxKind, runner: Runner, network: Network = Network.LOOPBACK) -> str:
    """Return the kernel's message if the kernel refuses the sandbox `kind`, and otherwise ''.

    This function runs a command in the sandbox; in the throw-away root, this command deletes a
    file, which must stay on the host. Raises HarnessError for any error except a refusal, because
    an error of a busy host must not disable the sandbox.
    """
    with temporary_folder("harness-sandbox") as scratch:
        is_thrown_away = kind is SandboxKind.THROWAWAY
        proof = scratch / "proof"
        proof.mkdir()
        (proof / "file").touch()
        script = 'rm -rf "$1" && mkdir "$1" && [ ! -e "$1/file" ]' if is_thrown_away else ":"
        argv = Sandbox(kind=kind, network=network).argv(
            ["sh", "-c", script, "sh", str(proof)], cwd=scratch, scratch=scratch
        )
        result = runner.run(argv, timeout_s=_PROBE_TIMEOUT_S)
        if result.exit_code == KERNEL_REFUSES and result.stderr.startswith(MARK):
            return result.stderr.removeprefix(MARK).strip()
        if result.timed_out:
            raise HarnessError(
                f"The check whether this host allows the sandbox '{kind.value}' took longer than "
                f"{_PROBE_TIMEOUT_S:g} s; run the tests again when the host is less busy."
            )
        if not result.ok:
            raise HarnessError(
                f"The check whether this host allows the sandbox '{kind.value}' failed.\n"
                f"{result.render()}"
            )
        if is_thrown_away and not (proof / "file").exists():
            raise HarnessError(
                f"A deletion in the sandbox '{kind.value}' reached the host, so shell tests "
                "can't run with this kernel; please report the kernel's version to the project."
            )
    return ""


def check_entered(exit_code: int, report: str) -> None:
    """Raise an error if a shell could not enter its sandbox and therefore ran no code.

    `report` is the text that the sandbox's program wrote to the descriptor `report_fd` or, without
    this descriptor, to stderr.
    """
    if not report.startswith(MARK) or exit_code not in {KERNEL_REFUSES, CANNOT_ENTER}:
        return
    said = report.removeprefix(MARK).strip()
    if exit_code == KERNEL_REFUSES:
        raise RequirementError(
            f"Shell code runs in a throw-away root, which this kernel refuses here ({said}); run "
            "the tests as an ordinary user where user namespaces are allowed, or give this "
            "container CAP_SYS_ADMIN. Nothing was run."
        )
    raise HarnessError(
        f"The sandbox for shell code could not be entered: {said}. Nothing was run."
    )
