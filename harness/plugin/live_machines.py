"""Saves a test's machines, keeps them running, or opens a shell in them."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.lab.machine_bundle import CHECKPOINT, prune
from harness.machine.entrance.client import run_in
from harness.machine.entrance.roster import HELD, Roster, roster_folder
from harness.plugin.progress import terminal_left
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for
from harness.settings import FailureCheckpoint, MachineKeep
from harness.visible_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pytest

    from harness.lab.machine import LabMachine
    from harness.lab.machine_bundle import MachineBundle
    from harness.settings import Settings

NOT_SAVED = "not-saved.txt"
_START_S = 20.0
_HELD_S = 180.0
#: Starts a process that outlives this process and keeps a machine running, until the machine's time
#: limit or until `harness gc` ends the machine.
_DETACH = 'exec </dev/null >"$1" 2>&1; shift; "$@"; echo "ended: $?"'
_ENDED = re.compile(r"^ended: (\d+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class SavedMachine:
    """A machine's saved state; `sentence` says how to resume the machine, or why it was not saved."""

    sentence: str
    kept: str | None = None


def is_to_be_saved(settings: Settings, *, has_failed: bool) -> bool:
    """Return whether the machines of a test that has ended will be saved or kept."""
    if settings.machine_keep is MachineKeep.ALL:
        return True
    wanted = (
        settings.failure_checkpoint is FailureCheckpoint.ON_FAILURE
        or settings.machine_keep is MachineKeep.FAILED
    )
    return has_failed and wanted


def save_machine(
    machine: LabMachine, evidence: Path, settings: Settings, *, test: str, has_failed: bool
) -> SavedMachine:
    """Save a machine into the test's evidence; if requested, resume the machine in another process."""
    folder = evidence / CHECKPOINT
    try:
        bundle = machine.save_bundle(folder, purpose=test)
    except (HarnessError, WaitTimeoutError, OSError) as error:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / NOT_SAVED).write_text(f"{error}\n", errors="backslashreplace")
        return SavedMachine(sentence=f"the machine could not be saved: {error}")
    prune(
        settings.evidence_folder,
        limit_mib=settings.failure_checkpoint_limit_mib,
        newest=bundle.folder,
    )
    sentence = f"resume the machine ({bundle.size_mib:.0f} MiB): harness resume '{evidence}'"
    is_kept = settings.machine_keep is MachineKeep.ALL or (
        settings.machine_keep is MachineKeep.FAILED and has_failed
    )
    if not is_kept:
        return SavedMachine(sentence=sentence)
    try:
        held = hold(bundle, evidence, settings)
    except (HarnessError, WaitTimeoutError) as error:
        return SavedMachine(sentence=f"{sentence}; the machine could not be kept running: {error}")
    enter = f"harness shell --machine {held}"
    return SavedMachine(
        sentence=sentence, kept=f"{enter}  # {settings.machine_keep_hours:g} h at most"
    )


def hold(bundle: MachineBundle, evidence: Path, settings: Settings) -> str:
    """Continue a saved machine in a process that outlives this process; return the machine's id.

    Raises HarnessError or WaitTimeoutError if the machine does not start.
    """
    log = evidence / "holder.log"
    log.unlink(missing_ok=True)
    started = LocalRunner().run(
        [
            *("setsid", "--fork", "sh", "-c", _DETACH, "hold", str(log)),
            *(sys.executable, "-m", "harness.cli", "resume", str(bundle.folder)),
            *("--hold", str(settings.machine_keep_hours), "--qemu", settings.qemu),
            *(() if settings.machine_uri is None else ("--machine-uri", settings.machine_uri)),
            *(word for models in settings.gpu_models for word in ("--gpu-models", str(models))),
        ],
        timeout_s=_START_S,
    )
    if not started.ok:
        raise HarnessError(
            f"The process that keeps the machine running could not be started.\n{started.render()}"
        )

    def poll() -> Observation[str]:
        said = log.read_text(errors="replace") if log.exists() else ""
        ids = [line[len(HELD) :] for line in said.splitlines() if line.startswith(HELD)]
        if not ids and (ended := _ENDED.search(said)):
            raise HarnessError(
                f"The process that keeps the machine running ended with exit code {ended[1]}, and printed: "
                f"{said[: ended.start()].strip() or '-'}"
            )
        return Observation(ids[0] if ids else None, f"its process printed: {said.strip() or '-'}")

    return wait_for("the kept machine", poll, Deadline.after(_HELD_S))


def ways_in(machines: Iterable[LabMachine]) -> list[str]:
    """Return, for each running machine, the command that opens a shell in the machine."""
    return [f"harness shell --machine {each.folder.name}" for each in machines if each.has_vm]


def run_command(config: pytest.Config, machine: LabMachine, command: str) -> int:
    """Run a command in a machine, with this process's input and output; return the command's exit code."""
    with _own_terminal(config):
        return run_in(Roster(roster_folder()).find(machine.folder.name), shlex.split(command))


@contextlib.contextmanager
def _own_terminal(config: pytest.Config) -> Iterator[None]:
    """Suspend progress and pytest's capture, so that the code in the context can use the terminal."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with contextlib.ExitStack() as left:
        left.enter_context(terminal_left(config))
        if capture is not None:
            capture.suspend(in_=True)
            left.callback(capture.resume)
        yield


def open_shell(config: pytest.Config, machine: LabMachine, words: str) -> None:
    """Open a shell in a machine, at this process's terminal; the run continues when the shell ends."""
    with _own_terminal(config):
        sys.stderr.write(
            f"\n{visible(words)}: a shell in machine '{machine.name}'; the run continues when the shell ends\n"
        )
        try:
            run_in(Roster(roster_folder()).find(machine.folder.name))
        except HarnessError as error:
            sys.stderr.write(f"{error}\n")
