"""Lists the running machines. An entry ends with the process that runs its machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError, listed
from harness.foreign_json import parse_json
from harness.reservation_folder import ReservationFolder
from harness.shared_folder import private_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The name of the socket in a machine's folder.
ENTRANCE = "entrance"
#: The text that the holder of a kept machine prints before the machine's id.
HELD = "held: "
_LONGEST_PURPOSE = 1000
#: The folder is the same for every run of a user, like the folder of the broker's reservations.
_SHARED = Path("/tmp")  # noqa: S108 - a folder below it is used only if it is ours alone


def roster_folder() -> Path:
    """Return the folder of this user's list, and create the folder if it is missing."""
    return private_folder(_SHARED, "gpu-node-harness-machines")


@dataclass(frozen=True, kw_only=True)
class RunningMachine:
    """A machine that a process of this user runs.

    `id` is unique on the host. `name` is the name in the test's request. `process` is the PID of
    the process that runs the machine, and `user` is QEMU's PID, if QEMU runs on this host. `since` and `until`
    are in seconds since the epoch. A machine that was kept ends at `until`.
    """

    id: str
    name: str
    purpose: str
    process: int
    since: float
    memory_mib: int
    folder: Path
    gpus: tuple[str, ...] = ()
    user: int | None = None
    until: float | None = None
    #: The reservation protocol needs this field. An entry of this list never waits.
    is_granted: bool = True

    @property
    def who(self) -> str:
        return self.id

    @property
    def is_kept(self) -> bool:
        """Return whether the machine was kept after its test.

        `harness gc` or the time `until` ends a kept machine.
        """
        return self.until is not None

    @property
    def serial_log(self) -> Path:
        return self.folder / "serial.log"

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "folder": str(self.folder)})

    @classmethod
    def from_json(cls, text: str) -> RunningMachine:
        """Return the machine that `text` describes.

        Raises ValueError, KeyError or TypeError if `text` describes no machine.
        """
        fields = parse_json(text)
        user, until = fields["user"], fields["until"]
        return cls(
            id=str(fields["id"]),
            name=str(fields["name"]),
            purpose=str(fields["purpose"]),
            process=_process(fields["process"]),
            since=float(fields["since"]),
            memory_mib=int(fields["memory_mib"]),
            folder=Path(fields["folder"]),
            gpus=tuple(str(gpu) for gpu in fields["gpus"]),
            user=None if user is None else _process(user),
            until=None if until is None else float(until),
        )


def _process(number: object) -> int:
    """Return a PID. Raises ValueError unless `number` names a single process that can get signals."""
    if type(number) is not int or number < 1:
        raise ValueError(f"{number!r} is not a process")
    return number


class Roster:
    """The list of running machines in `folder`, which all processes of a user share."""

    def __init__(self, folder: Path) -> None:
        self._entries = ReservationFolder(folder, RunningMachine.from_json, owner="machine list")

    def entered(self, machine: RunningMachine) -> contextlib.AbstractContextManager[str]:
        """List a machine until the context ends, or until this process ends."""
        return self._entries.enter(machine)

    def update(self, name: str, machine: RunningMachine) -> None:
        """Update the facts of a machine that still runs. `entered` has yielded `name`."""
        with self._entries.open() as book, contextlib.suppress(FileNotFoundError):
            book.write(name, machine)

    def machines(self) -> list[RunningMachine]:
        """Return the machines that run, the oldest first."""
        with self._entries.open() as book:
            return [entry for _, entry in book.entries()]

    def find(self, word: str) -> RunningMachine:
        """Return the machine with this id, or the only machine with this name.

        Raises BadInputError if no machine fits, or if several machines fit. The message names the
        running machines.
        """
        machines = self.machines()
        for each in machines:
            if each.id == word:
                return each
        named = [each for each in machines if each.name == word]
        if len(named) == 1:
            return named[0]
        running = listed(each.id for each in named or machines)
        problem = (
            f"several machines have the name '{word}': {running}"
            if named
            else f"no running machine has the id or name '{word}'; the running machines are: {running}"
        )
        raise BadInputError(f"{problem}. `harness ps` lists them.", source="MACHINE")


def purpose_of_process(argv: Sequence[str]) -> str:
    """Return why this process runs a machine: the name of the test, or the command `argv`."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    text = test or " ".join((Path(argv[0]).name, *argv[1:]))
    return "".join(each if each.isprintable() else "?" for each in text[:_LONGEST_PURPOSE])
