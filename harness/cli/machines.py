"""`harness ps`, `logs` and `gc`: list machines, print console output, remove leftovers of killed runs."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import datetime as dt
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness import lease
from harness.cli.columns import duration, print_columns
from harness.cli.console_text import AS_BEFORE, without_commands
from harness.cli.options import add_json_option, settings_of
from harness.errors import BadInputError, listed
from harness.machine.entrance.roster import Roster, roster_folder
from harness.options import add_to_command
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline, Observation, wait_for
from harness.settings import Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from harness.cli.options import Commands
    from harness.evidence.retention import Bundle
    from harness.machine.entrance.roster import RunningMachine

_FOLLOW_INTERVAL_S = 0.2
_END_S = 30.0


def add_parser(commands: Commands) -> None:
    """Add `ps`, `logs` and `gc` to the commands of `harness`."""
    ps = commands.add_parser("ps")
    logs = commands.add_parser("logs")
    logs.add_argument(
        "machine", metavar="MACHINE", help="the machine's id or name, as `harness ps` shows it"
    )
    logs.add_argument(
        "--follow", action="store_true", help="keep printing new lines until the machine ends"
    )
    gc = commands.add_parser("gc")
    gc.add_argument(
        "machine",
        nargs="*",
        metavar="MACHINE",
        help="the id of a kept machine: end only this machine (default: end all kept machines, and remove "
        "the folders of killed runs and old bundles)",
    )
    gc.add_argument(
        "--evidence-dir",
        type=Path,
        default=Settings().evidence_folder,
        metavar="DIR",
        help="folder in which failed tests left their bundles (default: %(default)s)",
    )
    add_to_command(gc, "--bundle-limit-days", "--bundle-limit-mib")
    gc.add_argument(
        "--dry-run", action="store_true", help="only print the list; end and remove nothing"
    )
    add_json_option(ps)
    ps.set_defaults(run=_ps)
    logs.set_defaults(run=_logs)
    gc.set_defaults(run=_gc)


def _ps(arguments: argparse.Namespace) -> int:
    machines = Roster(roster_folder()).machines()
    if arguments.json:
        print(json.dumps([_facts(each) for each in machines], indent=2))
        return 0
    if not machines:
        print("No machine runs.")
        return 0
    now = time.time()
    print_columns(
        ("MACHINE", "SINCE", "MIB", "GPUS", "KEPT", "FOR"),
        [
            (
                each.id,
                f"{duration(now - each.since)} ago",
                f"{resident_mib(each)} of {each.memory_mib}",
                ", ".join(each.gpus) or "-",
                "-" if each.until is None else f"for {duration(each.until - now)}",
                each.purpose,
            )
            for each in machines
        ],
    )
    last = machines[-1].id
    print(
        f"\nEnter a machine: harness shell --machine {last}, harness console {last}, harness ssh {last}"
    )
    return 0


def _facts(machine: RunningMachine) -> dict[str, object]:
    fields = dataclasses.asdict(machine)
    del fields["is_granted"]
    return {
        **fields,
        "folder": str(machine.folder),
        "resident_mib": resident_mib(machine),
        "enter": ["harness", "shell", "--machine", machine.id],
    }


def resident_mib(machine: RunningMachine) -> int:
    """Return the resident memory of a machine's QEMU in MiB, without file-backed pages; 0 if unknown."""
    if machine.user is None:
        return 0
    kib = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{machine.user}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in {"RssAnon", "RssShmem"}:
                kib += int(value.split()[0])
    return kib >> 10


def _logs(arguments: argparse.Namespace) -> int:
    roster = Roster(roster_folder())
    machine = roster.find(arguments.machine)
    chunks = _chunks(roster, machine, follow=arguments.follow)
    if not sys.stdout.isatty():
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        return 0
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        for _, text in without_commands((0.0, decoder.decode(chunk)) for chunk in chunks):
            # On a terminal, keep the console's colours and cursor movements.
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
    finally:
        sys.stdout.buffer.write(AS_BEFORE.encode())
    return 0


def _chunks(roster: Roster, machine: RunningMachine, *, follow: bool) -> Iterator[bytes]:
    """Yield the output of a machine's console; if `follow`, wait for more output until the machine ends."""
    with machine.serial_log.open("rb") as log:
        while True:
            is_running = any(each.id == machine.id for each in roster.machines())
            while chunk := log.read(1 << 16):
                yield chunk
            if not follow or not is_running:
                return
            SYSTEM_CLOCK.sleep(_FOLLOW_INTERVAL_S)


def _gc(arguments: argparse.Namespace) -> int:
    """List kept machines, folders of killed runs, and old bundles; end the machines and remove the files."""
    runs = settings_of(arguments).runs_folder
    named = set(arguments.machine)
    kept = [each for each in Roster(roster_folder()).machines() if each.is_kept]
    if missing := named - {each.id for each in kept}:
        raise BadInputError(
            (
                f"There is no kept machine {listed(missing)}; the kept machines are "
                f"{listed((each.id for each in kept))}."
            ),
            source="MACHINE",
        )
    kept = [each for each in kept if not named or each.id in named]
    left = [] if named else lease.abandoned(runs)
    old = [] if named else _old_bundles(arguments)
    for each in kept:
        until = dt.datetime.fromtimestamp(each.until or 0.0).astimezone()
        print(f"kept machine '{each.id}', until {until:%H:%M}, of {each.purpose}")
    for folder in left:
        print(f"folder of a killed run: '{folder}'")
    for bundle in old:
        made = dt.datetime.fromtimestamp(bundle.made_s).astimezone()
        size = f"{bundle.size_bytes / (1 << 20):.0f} MiB"
        print(f"bundle of {made:%Y-%m-%d}, {size}: '{arguments.evidence_dir / bundle.name}'")
    if not kept and not left and not old:
        print("There is nothing to remove.")
    if arguments.dry_run:
        return 0
    for each in kept:
        _end(each)
    removed = [] if named else lease.sweep(runs)
    for bundle in old:
        bundle.remove()
    if kept or removed or old:
        print(
            f"Ended {len(kept)} machines, and removed {len(removed)} folders and {len(old)} bundles."
        )
    return 0


def _old_bundles(arguments: argparse.Namespace) -> list[Bundle]:
    from harness.evidence.retention import beyond_limits, bundles_in  # noqa: PLC0415 - only here

    folder: Path = arguments.evidence_dir
    if folder != Settings().evidence_folder and not folder.is_dir():
        raise BadInputError(
            f"'{folder}' is not a folder; name the folder in which failed tests left their bundles.",
            source="--evidence-dir",
        )
    return beyond_limits(
        bundles_in(folder),
        limit_mib=arguments.bundle_limit_mib,
        limit_days=arguments.bundle_limit_days,
        now_s=time.time(),
    )


def _end(machine: RunningMachine) -> None:
    """End a kept machine by ending its holder process.

    Raises WaitTimeoutError if the process does not end.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(machine.process, signal.SIGTERM)

    def poll() -> Observation[bool]:
        running = any(each.id == machine.id for each in Roster(roster_folder()).machines())
        return Observation(None if running else True, "it still runs")

    wait_for(f"the end of machine '{machine.id}'", poll, Deadline.after(_END_S))
