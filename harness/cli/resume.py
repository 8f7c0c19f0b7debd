"""`harness resume`: continues the machine of a failed test."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.command_words import add_command_words
from harness.cli.options import add_gpu_options, settings_of
from harness.cli.progress import show_event
from harness.evidence.archive import opened
from harness.lab import Lab
from harness.lab.machine_bundle import read_bundle
from harness.machine.entrance.client import run_in
from harness.machine.entrance.roster import HELD
from harness.provisioning.wait import SYSTEM_CLOCK
from harness.settings import (
    URI_VARIABLE,
    AcceleratorOption,
    MachineDriver,
    Settings,
    machine_driver,
    require_keep_hours,
)
from harness.visible_text import visible_line

if TYPE_CHECKING:
    import argparse
    from types import FrameType

    from harness.cli.options import Commands
    from harness.lab.machine_bundle import MachineBundle
    from harness.provisioning.command import Argv

_HOLD_INTERVAL_S = 1.0


def add_parser(commands: Commands) -> None:
    """Add `resume` to the commands of `harness`."""
    parser = commands.add_parser("resume")
    parser.add_argument(
        "bundle",
        type=Path,
        metavar="BUNDLE",
        help="the evidence folder of the test or of its machine, or an archive of the folder",
    )
    add_command_words(parser, metavar="CMD", about="a command, after --")
    parser.add_argument(
        "--base",
        type=Path,
        metavar="FILE",
        help="the base image of the machine's disk (default: the cached image with the recorded digest)",
    )
    parser.add_argument(
        "--qemu",
        default=Settings().qemu,
        metavar="PROGRAM",
        help="a QEMU of the same version as the QEMU that saved the machine (default: %(default)s)",
    )
    parser.add_argument(
        "--machine-uri",
        # The bundle says which driver ran the machine; only that driver can use the URI.
        dest="uri",
        metavar="URI",
        help=f"libvirt's URI, for a machine that ran under libvirt (default: {URI_VARIABLE})",
    )
    add_gpu_options(parser)
    parser.add_argument(
        "--hold",
        type=float,
        metavar="HOURS",
        help="open no shell; keep the machine running for at most this time, so that "
        "`harness shell --machine` can enter the machine",
    )
    parser.set_defaults(run=_resume)


def _resume(arguments: argparse.Namespace) -> int:
    until = None
    if arguments.hold is not None:
        require_keep_hours(arguments.hold, source="--hold")
        until = time.time() + 3600 * arguments.hold
        # The parent of this process has ended, and `harness gc` ends this process by SIGTERM.
        signal.signal(signal.SIGTERM, _end)
    return resume(
        settings_of(arguments),
        arguments.bundle,
        arguments.argv,
        # A relative path would be wrong: a disk names its base image relative to the disk's own
        # folder.
        base=None if arguments.base is None else arguments.base.absolute(),
        uri=arguments.uri,
        until=until,
    )


def resume(
    settings: Settings,
    bundle: Path,
    argv: Argv,
    *,
    base: Path | None = None,
    uri: str | None = None,
    until: float | None = None,
) -> int:
    """Continue the machine that a test saved in a folder or an archive, and enter the machine.

    `uri` is libvirt's URI, for a machine that ran under libvirt. If `until` is given, the machine
    runs until the time `until`, and the command does not enter the machine.
    """
    with opened(bundle.absolute(), settings.runs_folder, has_machine=True) as folder:
        saved = read_bundle(folder)
        return _continue(_settings_for(saved, settings, uri), saved, argv, base=base, until=until)


def _settings_for(bundle: MachineBundle, settings: Settings, uri: str | None) -> Settings:
    """Return `settings` with the accelerator and the VM driver under which the saved machine ran."""
    driver = machine_driver(bundle.driver)
    if uri is None and driver is not MachineDriver.QEMU:
        uri = settings.machine_uri
    return dataclasses.replace(
        settings,
        accelerator=AcceleratorOption(bundle.spec.accelerator.accel),
        machine_driver=driver,
        machine_uri=uri,
    )


def _continue(
    settings: Settings,
    bundle: MachineBundle,
    argv: Argv,
    *,
    base: Path | None,
    until: float | None,
) -> int:
    with (
        Lab.open(settings, show_event) as lab,
        lab.resume(bundle, base=base, kept_until=until) as machine,
    ):
        if until is None:
            said = f"'{bundle.name}' as it was at {bundle.made} in {bundle.purpose}"
            print(visible_line(said), file=sys.stderr)
            return run_in(lab.roster.find(machine.folder.name), argv)
        # The process that started this process waits for this line.
        print(f"{HELD}{machine.folder.name}", flush=True)
        while time.time() < until and machine.vm.is_running:
            SYSTEM_CLOCK.sleep(_HOLD_INTERVAL_S)
    return 0


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
