"""`harness doctor`: what this host has of what machines need, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from harness.cli.options import add_machine_options, settings_of
from harness.errors import HarnessError
from harness.gpu.transport import find_transport
from harness.image.catalogue import Recipe, load_catalogue
from harness.image.source import LocalImage
from harness.lab.drivers import examine_driver
from harness.lease import make_private_folder
from harness.machine.accelerator import choose_accelerator
from harness.machine.broker import Broker, host_folder
from harness.machine.finding import Finding
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands
    from harness.machine.broker import Entry
    from harness.machine.spec import Accelerator
    from harness.provisioning.command import Runner
    from harness.settings import Settings

#: An image takes 2 GiB in its making and 1 GiB afterwards; a bake and the overlays come on top.
DISK_GIB = 6.0
#: One node has 1.5 GiB; QEMU's own use and the translation buffer come on top.
MEMORY_GIB = 2.5
_QUERY_S = 20.0
_MEMORY_INFO = Path("/proc/meminfo")


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("doctor", help="what this host has of what machines need")
    add_machine_options(parser)
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    findings = examine(settings_of(arguments), LocalRunner())
    if arguments.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        # Folded and not cut: the end of a path is what a person has to know.
        table = Table("requirement", "", Column("found, or what to do", overflow="fold"))
        for finding in findings:
            state = "[green]ok[/]" if finding.is_met else "[red]missing[/]"
            remedy = f" {finding.remedy}" if finding.remedy else ""
            table.add_row(finding.requirement, state, escape(f"{finding.found}{remedy}"))
        Console().print(table)
    return 0 if all(finding.is_met for finding in findings) else 2


def examine(settings: Settings, runner: Runner) -> list[Finding]:
    """Look for every requirement; one that is missing never hides another."""
    accelerator, chosen = _accelerator(settings, runner)
    return [
        _program("QEMU", settings.qemu, "qemu-system-x86", runner),
        accelerator,
        _transport(settings, chosen, runner),
        _program("qemu-img", "qemu-img", "qemu-utils", runner),
        _program("mmdebstrap", "mmdebstrap", "mmdebstrap", runner),
        _program("mke2fs", "mke2fs", "e2fsprogs", runner, version="-V"),
        *_user_namespaces(runner),
        _program("OpenSSH client", "ssh", "openssh-client", runner, version="-V"),
        _program("setpriv", "setpriv", "util-linux", runner),
        *examine_driver(settings, chosen),
        *(_image(settings, name) for name in settings.images),
        _disk(settings),
        _memory(),
    ]


def _program(
    requirement: str, name: str, package: str, runner: Runner, *, version: str = "--version"
) -> Finding:
    # mke2fs lies in /usr/sbin, which a user's PATH lacks on Debian.
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if path is None:
        return Finding(
            requirement=requirement,
            is_met=False,
            found=f"There is no '{name}' on PATH.",
            remedy=f"Run `apt-get install --no-install-recommends {package}`, or `./dev setup`.",
        )
    answer = runner.run([path, version], timeout_s=_QUERY_S)
    # Not every program has an exit code of 0 for this; these mean that it did not run at all.
    if answer.timed_out or answer.exit_code < 0 or answer.exit_code in {126, 127}:
        return Finding(
            requirement=requirement,
            is_met=False,
            found=f"'{path} {version}' ended with {answer.exit_code}: {answer.stderr.strip()}",
            remedy=f"Run `apt-get install --reinstall {package}`.",
        )
    lines = (answer.stdout or answer.stderr).strip().splitlines()
    return Finding(
        requirement=requirement, is_met=True, found=f"{path}: {lines[0] if lines else '?'}"
    )


def _user_namespaces(runner: Runner) -> list[Finding]:
    """Look for what building an image takes where the user is not root."""
    if os.geteuid() == 0:
        return []
    return [_program("newuidmap", "newuidmap", "uidmap", runner, version="--help")]


def _accelerator(settings: Settings, runner: Runner) -> tuple[Finding, Accelerator | None]:
    name = "accelerator"
    if shutil.which(settings.qemu) is None:
        missing = Finding(
            requirement=name,
            is_met=False,
            found="KVM can't be proved without QEMU.",
            remedy="Install QEMU first.",
        )
        return missing, None
    try:
        choice = choose_accelerator(
            settings.accelerator, qemu=settings.qemu, runner=runner, cache=settings.cache
        )
    except HarnessError as error:
        return Finding(requirement=name, is_met=False, found=str(error)), None
    return Finding(requirement=name, is_met=True, found=choice.reason), choice.accelerator


def _transport(settings: Settings, accelerator: Accelerator | None, runner: Runner) -> Finding:
    name = "emulated-GPU transport"
    if accelerator is None:
        return Finding(
            requirement=name,
            is_met=False,
            found="It depends on QEMU and its accelerator, which are missing.",
            remedy="Mend those first.",
        )
    try:
        transport = find_transport(settings.qemu, accelerator.accel, runner)
    except HarnessError as error:
        return Finding(requirement=name, is_met=False, found=str(error))
    return Finding(
        requirement=name,
        is_met=True,
        found=f"{transport.value}, which this QEMU has and takes without harm.",
    )


def _image(settings: Settings, name: str) -> Finding:
    """Look whether an image can be had at all; the first run makes what of it is not here yet."""
    found = f"'{name}' is made or fetched where the cache has none."
    try:
        source = load_catalogue(settings.images_folder).get(name)
        if isinstance(source, Recipe):
            source.require_acceptance(settings.accepted_licences)
    except HarnessError as error:
        return Finding(requirement="image", is_met=False, found=str(error))
    if isinstance(source, LocalImage):
        found = f"'{name}' is a file."
        if not source.path.is_file():
            return Finding(
                requirement="image",
                is_met=False,
                found=f"There is no file '{name}'.",
                remedy="Name one that is there, or an image of the catalogue.",
            )
    return Finding(requirement="image", is_met=True, found=found)


def _disk(settings: Settings) -> Finding:
    try:
        folder = make_private_folder(settings.cache)
    except HarnessError as error:
        return Finding(requirement="disk", is_met=False, found=str(error))
    free_gib = shutil.disk_usage(folder).free / 2**30
    found = f"{free_gib:.1f} GiB free for '{folder}'; {DISK_GIB:.0f} GiB are needed."
    remedy = "Free some, or set XDG_CACHE_HOME to a folder on a larger disk."
    enough = free_gib >= DISK_GIB
    return Finding(
        requirement="disk", is_met=enough, found=found, remedy=None if enough else remedy
    )


def _memory() -> Finding:
    available_kib = 0
    for line in _MEMORY_INFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available_kib = int(line.split()[1])
    available_gib = available_kib / 2**20
    enough = available_gib >= MEMORY_GIB
    try:
        claims = _claims()
    except HarnessError as error:
        return Finding(requirement="memory", is_met=False, found=str(error))
    holders = ", ".join(str(claim) for claim in claims if claim.is_granted) or "nobody"
    return Finding(
        requirement="memory",
        is_met=enough,
        found=f"{available_gib:.1f} GiB available; a node needs {MEMORY_GIB} GiB. "
        f"Claimed by {holders}.",
        remedy=None if enough else "End other programs, or run fewer workers (`-n 1`).",
    )


def _claims() -> list[Entry]:
    return Broker(host_folder()).claims()
