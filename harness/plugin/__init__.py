"""Adds the harness's hooks and options to pytest."""

from __future__ import annotations

import harness.plugin.plain_imports  # noqa: F401 - it changes the imports below

# isort: split
import shlex
import shutil
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, HarnessError
from harness.options import OPTIONS, settings_from
from harness.plugin import (
    comparisons,
    first_use,
    fixture_modules,
    machine_drivers,
    progress,
    report,
    report_files,
    select,
    unread_ini,
    visible_reports,
)
from harness.settings import (
    DURATIONS_FILE,
    PROVISIONER,
    TESTED_IMAGES,
    FailureCheckpoint,
    MachineShell,
    Settings,
)

if TYPE_CHECKING:
    from pathlib import Path

#: The key under which fixtures find the settings of this run.
SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu-node-harness", "gpu-node-harness: virtual machines")
    for option in OPTIONS.values():
        group.addoption(option.name, **option.arguments(option.tested))
        if option.ini in {"paths", "args"}:
            what = f"{option.help.partition(';')[0]}; added to {option.name}"
            parser.addini(option.destination, what, type=option.ini, default=[])  # type: ignore[arg-type]
        elif option.ini is not None:
            parser.addini(option.destination, f"default of {option.name}", default="")
    group.addoption(
        "--nvidia-smi",
        action="store_true",
        help="with --machine-driver=node: also run `nvidia-smi -q` on the node; this command loads "
        "the driver's module",
    )
    group.addoption(
        "--machine-debug",
        action="store_const",
        dest="machine_shell",
        const=MachineShell.FAILED.value,
        help="the same as --machine-shell=failed",
    )
    group.addoption(
        "--machine-shell-command",
        metavar="COMMAND",
        help="with --machine-shell=instead: run this command in the machine instead of a shell, "
        "and exit with the command's exit code; the text is split into words by the rules of a shell",
    )
    group.addoption(
        "--machine-plan",
        action="store_true",
        help="print which images, bakes and checkpoints the selected tests need, which of them are cached, and how "
        "long the tests take; run no test",
    )
    shards = parser.getgroup("gpu-node-harness: shards")
    shards.addoption(
        "--shard",
        metavar="K/N",
        help="run shard K of N: tests are divided by recorded durations, and tests that share "
        "a saved state stay together; 'auto' takes K and N from the variables of the CI engine, "
        "Slurm or Kubernetes",
    )
    shards.addoption(
        "--report-dir",
        metavar="DIR",
        help="write all reports of this run into DIR, for `harness report merge`: JUnit, Allure, "
        "durations, coverage of shell code, and which tests ran",
    )
    shards.addoption(
        "--durations-file",
        metavar="FILE",
        default=DURATIONS_FILE,
        help="the file of recorded durations by which --shard divides the tests, in pytest-split's "
        "format (default: %(default)s)",
    )
    report_files.add_options(parser)


# This hook runs first, since pytest's JUnit plugin and Allure's plugin read the paths of reports in
# the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if any(config.getoption(name) is not None for name in ("--shard", "--report-dir")):
        from harness.plugin import shards  # noqa: PLC0415 - most runs have no shards

        shards.register(config)
    select.add_markers(config)
    fixture_modules.register(config, "existing_node", "machines", "registry", "saved_states")
    root = config.rootpath
    try:
        unread_ini.refuse(config)
        config.stash[SETTINGS] = settings_from(
            config.getoption,
            config.getini,
            root,
            provisioner=_provisioner(config.getoption("--provisioner"), root),
            failure_checkpoint=_failure_checkpoint(config),
            machine_shell=_machine_shell(config),
        )
        if not (config.option.collectonly or config.option.setupplan):
            _require_named(config.stash[SETTINGS], image=config.getoption("--image"))
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(
        machine_drivers.ForeignTests(config.stash[SETTINGS]), "harness-foreign-tests"
    )
    config.pluginmanager.register(comparisons, "harness-comparisons")
    config.pluginmanager.register(report.Reporter(config.stash[SETTINGS]), report.REPORTER)
    evidence = config.stash[SETTINGS].evidence_folder
    config.pluginmanager.register(
        visible_reports.ReportGate(config, evidence), "harness-report-gate"
    )
    if config.getoption("--machine-plan"):
        from harness.plugin import machine_plan  # noqa: PLC0415 - few runs need it

        machine_plan.register(config, config.stash[SETTINGS])
    config.pluginmanager.register(
        progress.ProgressReporter(config, is_ci=config.stash[SETTINGS].ci), progress.PROGRESS
    )
    first_use.register(
        config, config.stash[SETTINGS], lambda: progress.progress_of(config).listener()
    )
    report_files.register(config, config.stash[SETTINGS])


def _require_named(settings: Settings, *, image: str) -> None:
    """Raise BadInputError or RequirementError if an image or a QEMU that the user named is missing.

    Without this check, a missing image would let each test fail, and a missing QEMU would let each
    test be skipped.
    """
    if settings.qemu != Settings().qemu and shutil.which(settings.qemu) is None:
        raise BadInputError(
            f"There is no program '{settings.qemu}' on this host.", source="--qemu"
        )
    if image != TESTED_IMAGES:
        # A run of specs needs no images, so it should not load the module that reads recipes.
        from harness.image.catalogue import load_catalogue  # noqa: PLC0415

        try:
            catalogue = load_catalogue(*settings.image_folders)
        except BadInputError:
            # Fixtures may still write recipes into an empty folder, so the error is reported only when
            # the folder is used.
            return
        for name in settings.images:
            # Files and URLs are checked when they are used.
            if "/" not in name:
                catalogue.get(name)


def _failure_checkpoint(config: pytest.Config) -> FailureCheckpoint:
    """Return the value of --failure-checkpoint, or NEVER with --pdb: saving a machine unplugs its GPUs."""
    if config.getoption("usepdb", default=False):
        return FailureCheckpoint.NEVER
    return FailureCheckpoint(config.getoption("--failure-checkpoint"))


def _machine_shell(config: pytest.Config) -> MachineShell | None:
    """Return the value of --machine-shell.

    Raises BadInputError for a --machine-shell-command with an unclosed quotation mark, and if
    workers of xdist run the tests, since workers have no terminal.
    """
    word = config.getoption("--machine-shell")
    if word is None:
        return None
    if config.getoption("numprocesses", default=None) or hasattr(config, "workerinput"):
        raise BadInputError(
            "The workers of xdist have no terminal for a shell; add '-n 0'.",
            source="--machine-shell",
        )
    command = config.getoption("--machine-shell-command")
    try:
        shlex.split(command or "")
    except ValueError as error:
        raise BadInputError(
            f"'{command}' can't be split into words: {error}.", source="--machine-shell-command"
        ) from error
    return MachineShell(word)


def _provisioner(word: str, root: Path) -> str:
    """Return the provisioner's name, or the absolute path of its file.

    Raises BadInputError if no provisioner has the name or the path `word`. Without this check,
    every test that boots a node would report the error.
    """
    if word == PROVISIONER:
        return word
    from harness.provisioner.choice import absolute, choose_provisioner  # noqa: PLC0415 - rarely used

    word = absolute(word, root)
    choose_provisioner(word)
    return word
