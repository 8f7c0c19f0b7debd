"""`harness doctor`: checks whether this host can run virtual machines, and names remedies."""

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

from harness import debian_packages
from harness.cli.host_gpu_checks import examine_host_gpus
from harness.cli.options import (
    add_host_gpu_options,
    add_json_option,
    add_machine_options,
    settings_of,
)
from harness.errors import HarnessError
from harness.gpu.transport import find_transport
from harness.host_programs import find_program
from harness.image.catalogue import Recipe, load_catalogue
from harness.image.cloud.source import LocalImage, is_url
from harness.image.cloud.store import require_image
from harness.lab.plugins import examine_plugins
from harness.lab.vm_drivers import examine_driver
from harness.lease import make_private_folder
from harness.machine.accelerator import choose_accelerator
from harness.machine.capacity.broker import Broker, host_folder
from harness.machine.requirement_check import RequirementCheck
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands
    from harness.machine.capacity.broker import Entry
    from harness.machine.description.spec import Accelerator
    from harness.provisioning.command import Runner
    from harness.settings import Settings

#: An image takes 2 GiB while it is built and 1 GiB afterwards; a bake and overlays need the rest.
DISK_GIB = 6.0
#: One node has 1.5 GiB; QEMU itself and its translation buffer need the rest.
MEMORY_GIB = 2.5
_QUERY_S = 20.0
_MEMORY_INFO = Path("/proc/meminfo")


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("doctor")
    add_machine_options(parser)
    add_host_gpu_options(parser)
    add_json_option(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    findings = examine(settings_of(arguments), LocalRunner())
    if arguments.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        # Long text is folded, not truncated, because people need the end of a path.
        table = Table("requirement", "state", Column("found, or what to do", overflow="fold"))
        for finding in findings:
            state = "[red]missing[/]" if finding.is_needed else "[yellow]optional[/]"
            if finding.is_met:
                state = "[green]ok[/]"
            remedy = f" {finding.remedy}" if finding.remedy else ""
            table.add_row(escape(finding.requirement), state, escape(f"{finding.found}{remedy}"))
        console = Console()
        console.print(table)
        if packages := [each.package for each in findings if each.package is not None]:
            # In a minimal container, root has no sudo.
            sudo = "" if os.geteuid() == 0 else "sudo "
            console.print(
                f"To install all that is missing: {sudo}apt-get install --no-install-recommends "
                + " ".join(dict.fromkeys(packages)),
                soft_wrap=True,
            )
    return 0 if all(finding.is_met or not finding.is_needed for finding in findings) else 2


def examine(settings: Settings, runner: Runner) -> list[RequirementCheck]:
    """Check every requirement of machines, even if an earlier check has failed."""
    accelerator, chosen = _accelerator(settings, runner)
    return [
        _program("QEMU", settings.qemu, "qemu-system-x86", runner),
        accelerator,
        _transport(settings, chosen, runner),
        _program("qemu-img", "qemu-img", "qemu-utils", runner),
        _program("mmdebstrap", "mmdebstrap", "mmdebstrap", runner),
        _keyring(),
        _program("mke2fs", "mke2fs", "e2fsprogs", runner, version="-V"),
        *_user_namespaces(runner),
        _program("OpenSSH client", "ssh", "openssh-client", runner, version="-V"),
        _program("setpriv", "setpriv", "util-linux", runner),
        *examine_driver(settings, chosen),
        *(_image(settings, name) for name in settings.images),
        _disk(settings),
        _memory(),
        *examine_host_gpus(settings),
        *_plugins(),
    ]


def _program(
    requirement: str, name: str, package: str, runner: Runner, *, version: str = "--version"
) -> RequirementCheck:
    path = find_program(name)
    if path is None:
        return RequirementCheck(
            requirement=requirement,
            is_met=False,
            found=f"'{name}' is not on PATH.",
            remedy=f"Run `apt-get install --no-install-recommends {package}`.",
            package=package,
        )
    answer = runner.run([path, version], timeout_s=_QUERY_S)
    # Some programs print their version and exit with a code other than 0. Only the codes below
    # mean that the program did not run.
    if answer.timed_out or answer.exit_code < 0 or answer.exit_code in {126, 127}:
        return RequirementCheck(
            requirement=requirement,
            is_met=False,
            found=f"'{path} {version}' ended with exit code {answer.exit_code}: {answer.stderr.strip()}",
            remedy=f"Run `apt-get install --reinstall {package}`.",
        )
    lines = (answer.stdout or answer.stderr).strip().splitlines()
    return RequirementCheck(
        requirement=requirement, is_met=True, found=f"{path}: {lines[0] if lines else '?'}"
    )


def _keyring() -> RequirementCheck:
    requirement = "Debian's keys"
    if debian_packages.KEYRING.exists():
        return RequirementCheck(
            requirement=requirement, is_met=True, found=str(debian_packages.KEYRING)
        )
    package = debian_packages.KEYRING_PACKAGE
    return RequirementCheck(
        requirement=requirement,
        is_met=False,
        found=f"'{debian_packages.KEYRING}' does not exist; the harness verifies the packages of images "
        "with this keyring.",
        remedy=f"Run `apt-get install --no-install-recommends {package}`.",
        package=package,
    )


def _user_namespaces(runner: Runner) -> list[RequirementCheck]:
    """Check the requirements of building an image as a user other than root."""
    if os.geteuid() == 0:
        return []
    return [_program("newuidmap", "newuidmap", "uidmap", runner, version="--help")]


def _accelerator(
    settings: Settings, runner: Runner
) -> tuple[RequirementCheck, Accelerator | None]:
    name = "accelerator"
    if shutil.which(settings.qemu) is None:
        missing = RequirementCheck(
            requirement=name,
            is_met=False,
            found="The accelerator can't be tried without QEMU.",
            remedy="Install QEMU first.",
        )
        return missing, None
    try:
        choice = choose_accelerator(
            settings.accelerator, qemu=settings.qemu, runner=runner, cache=settings.cache
        )
    except HarnessError as error:
        return RequirementCheck(requirement=name, is_met=False, found=str(error)), None
    return RequirementCheck(requirement=name, is_met=True, found=choice.reason), choice.accelerator


def _transport(
    settings: Settings, accelerator: Accelerator | None, runner: Runner
) -> RequirementCheck:
    name = "emulated-GPU transport"
    if accelerator is None:
        return RequirementCheck(
            requirement=name,
            is_met=False,
            found="The transport depends on QEMU and the accelerator, and one of the two is missing.",
            remedy="Install what is missing first.",
        )
    try:
        transport = find_transport(settings.qemu, accelerator.accel, runner)
    except HarnessError as error:
        return RequirementCheck(requirement=name, is_met=False, found=str(error))
    return RequirementCheck(
        requirement=name,
        is_met=True,
        found=f"{transport.value}, which this QEMU supports.",
    )


def _image(settings: Settings, name: str) -> RequirementCheck:
    """Check that the first run that needs the image can build or download the image."""
    try:
        source = load_catalogue(*settings.image_folders).get(name)
        if isinstance(source, Recipe):
            source.require_acceptance(settings.accepted_licences)
        if isinstance(source, LocalImage):
            require_image(source)
            found = f"'{source.path}' is an image file."
        elif is_url(name):
            found = f"'{name}' is fetched when it is first used."
        else:
            found = f"'{name}' is in the catalogue; it is built or fetched when it is first used."
    except HarnessError as error:
        return RequirementCheck(requirement="image", is_met=False, found=str(error))
    return RequirementCheck(requirement="image", is_met=True, found=found)


def _plugins() -> list[RequirementCheck]:
    """Check all entry points that extend the harness, even entry points that this run does not need."""
    return [
        RequirementCheck(
            requirement="plug-in",
            is_met=check.error is None,
            found=f"'{check.plugin.name}' of {check.plugin.distribution} ({check.noun})."
            if check.error is None
            else str(check.error),
        )
        for check in examine_plugins()
    ]


def _disk(settings: Settings) -> RequirementCheck:
    try:
        folder = make_private_folder(settings.cache)
    except HarnessError as error:
        return RequirementCheck(requirement="disk", is_met=False, found=str(error))
    free_gib = shutil.disk_usage(folder).free / 2**30
    found = f"{free_gib:.1f} GiB free for '{folder}'; {DISK_GIB:.0f} GiB are needed."
    remedy = "Free some space, or set XDG_CACHE_HOME to a folder on a larger disk."
    enough = free_gib >= DISK_GIB
    return RequirementCheck(
        requirement="disk", is_met=enough, found=found, remedy=None if enough else remedy
    )


def _memory() -> RequirementCheck:
    available_kib = 0
    for line in _MEMORY_INFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available_kib = int(line.split()[1])
    available_gib = available_kib / 2**20
    enough = available_gib >= MEMORY_GIB
    try:
        reservations = _reservations()
    except HarnessError as error:
        return RequirementCheck(requirement="memory", is_met=False, found=str(error))
    holders = (
        ", ".join(str(reservation) for reservation in reservations if reservation.is_granted)
        or "no process"
    )
    return RequirementCheck(
        requirement="memory",
        is_met=enough,
        found=f"{available_gib:.1f} GiB available; a node needs {MEMORY_GIB} GiB. "
        f"Reserved by {holders}.",
        remedy=None if enough else "End other programs, or run fewer workers (`-n 1`).",
    )


def _reservations() -> list[Entry]:
    return Broker(host_folder()).entries()
