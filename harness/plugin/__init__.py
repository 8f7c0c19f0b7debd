"""Pytest hooks and options.

The module is long because it has the help of every option.
"""

from __future__ import annotations

import harness.plugin.plain_imports  # noqa: F401 - before the imports that it is about

# isort: split
import shutil
from pathlib import Path

import pytest

from harness.errors import BadInputError, HarnessError
from harness.plugin import (
    comparisons,
    fixture_modules,
    machine_drivers,
    progress,
    report,
    report_files,
    select,
    visible_reports,
)
from harness.settings import (
    ACCEPT_OPTION,
    DURATIONS_FILE,
    INVENTORY,
    INVENTORY_VARIABLE,
    POOL_VARIABLE,
    PROVISIONER,
    STORE_VARIABLE,
    TESTED_IMAGES,
    TIMEOUT_VARIABLE,
    URI_VARIABLE,
    AcceleratorOption,
    EvidenceMode,
    FailureCheckpoint,
    GpuSource,
    MachineDriver,
    MachineKeep,
    MachineShell,
    MachineStart,
    Settings,
    accepted_licences,
    first_of,
    first_path,
    is_ci,
    machine_driver,
    timeout_multiplier,
)

#: The key under which fixtures find the settings of this run.
SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu-node-harness", "gpu-node-harness: virtual machines")
    defaults = Settings()
    group.addoption(
        "--accelerator",
        choices=AcceleratorOption.words(),
        default=defaults.accelerator.value,
        help="accelerator for guests; 'auto' uses KVM if it works on this host (default: %(default)s)",
    )
    group.addoption(
        "--timeout-multiplier",
        metavar="FACTOR",
        help="factor for all waits on guests, such as 3 on a slow host; "
        f"default: {TIMEOUT_VARIABLE}, 1",
    )
    group.addoption(
        "--qemu",
        default=defaults.qemu,
        metavar="PROGRAM",
        help="QEMU program to use (default: %(default)s)",
    )
    group.addoption(
        "--image",
        default=TESTED_IMAGES,
        metavar="IMAGE[,IMAGE...]",
        help="node images to test: names that `harness image ls` lists, paths of qcow2 or raw files, "
        "or https://HOST/FILE#sha256=DIGEST; each test of a node runs with each (default: %(default)s)",
    )
    group.addoption(
        "--images-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="folder with further image recipes; may be repeated",
    )
    group.addoption(
        "--provisioner",
        default=defaults.provisioner,
        metavar="NAME|PATH",
        help="provisioner of nodes: its name, or the path of its YAML file (default: %(default)s)",
    )
    group.addoption(
        "--gpu-models",
        action="append",
        default=[],
        metavar="DIR",
        help="folder with further GPU models; may be repeated",
    )
    group.addoption(
        "--gpu-source",
        choices=GpuSource.words(),
        help="where the GPUs of nodes come from: emulated, the host's by VFIO, or the host's where it "
        "has enough (default: emulated; in suites/passthrough: host)",
    )
    group.addoption(
        "--require-gpu",
        action="store_true",
        help="fail where a test needs a GPU of the host and there is none to take, or the host lacks "
        "anything else that it needs, instead of skipping it",
    )
    group.addoption(
        "--gpu-inventory",
        metavar="FILE",
        help=f"which GPUs of this host tests may take (default: {INVENTORY} if it exists)",
    )
    group.addoption(
        "--gpu-pool-dir",
        metavar="DIR",
        help="folder of the leases of this host's GPUs, shared by all users "
        f"(default: {defaults.gpu_pool_folder})",
    )
    parser.addini("gpu_inventory", "default of --gpu-inventory", default="")
    group.addoption(
        "--machine-driver",
        metavar="NAME",
        help=f"what runs machines: {', '.join(MachineDriver.words())}, or the VM driver of an installed "
        "package; 'node' tests an existing node instead (default: qemu)",
    )
    group.addoption(
        "--nvidia-smi",
        action="store_true",
        help="with --machine-driver=node: run `nvidia-smi -q` on the node too, which loads the driver's "
        "module",
    )
    group.addoption(
        "--machine-uri",
        metavar="URI",
        help="URI of libvirt, such as qemu:///session, or of the existing node",
    )
    parser.addini("machine_driver", "default of --machine-driver", default="")
    parser.addini("machine_uri", "default of --machine-uri", default="")
    group.addoption(
        "--machine-start",
        choices=MachineStart.words(),
        default=defaults.machine_start.value,
        help="boot each machine, restore it from a checkpoint, or run each test both ways "
        "(default: %(default)s)",
    )
    group.addoption(
        "--evidence",
        choices=EvidenceMode.words(),
        default=defaults.evidence.value,
        help="when to keep the evidence of a node (default: %(default)s)",
    )
    group.addoption(
        "--evidence-dir",
        default=str(defaults.evidence_folder),
        metavar="DIR",
        help="folder for evidence, with a folder for each test (default: %(default)s)",
    )
    group.addoption(
        "--failure-checkpoint",
        choices=FailureCheckpoint.words(),
        default=defaults.failure_checkpoint.value,
        help="when to leave the machines of a test in its evidence, for `harness resume`; with --pdb never "
        "(default: %(default)s)",
    )
    group.addoption(
        "--failure-checkpoint-limit-mib",
        type=int,
        default=defaults.failure_checkpoint_limit_mib,
        metavar="MIB",
        help="limit of disk space for the machines that failed tests left, in MiB; beyond it the oldest are "
        "removed (default: %(default)s)",
    )
    group.addoption(
        "--bundle-limit-mib",
        type=int,
        default=defaults.bundle_limit_mib,
        metavar="MIB",
        help="limit of disk space for all that failed tests left in --evidence-dir, in MiB; beyond it the "
        "oldest are removed, except that of the last failure (default: %(default)s)",
    )
    group.addoption(
        "--bundle-limit-days",
        type=float,
        default=defaults.bundle_limit_days,
        metavar="DAYS",
        help="after how many days what a failed test left is removed, at the next failure or by `harness gc` "
        "(default: %(default)s)",
    )
    group.addoption(
        "--machine-keep",
        choices=MachineKeep.words(),
        default=defaults.machine_keep.value,
        help="of which tests the machines go on when the test has ended, to be entered by `harness shell "
        "--machine`; `harness gc` ends them (default: %(default)s)",
    )
    group.addoption(
        "--machine-keep-hours",
        type=float,
        default=defaults.machine_keep_hours,
        metavar="HOURS",
        help="how long a kept machine goes on at most (default: %(default)s)",
    )
    group.addoption(
        "--machine-shell",
        choices=MachineShell.words(),
        help="open a shell in the machine of each test: before the test uses it, instead of the test, after "
        "it, or where it failed; without xdist (-n 0)",
    )
    group.addoption(
        "--machine-debug",
        action="store_const",
        dest="machine_shell",
        const=MachineShell.FAILED.value,
        help="the same as --machine-shell=failed",
    )
    group.addoption(
        "--machine-plan",
        action="store_true",
        help="print which images, bakes and checkpoints the selected tests need, which of them are cached, and how "
        "long the tests take; run nothing",
    )
    group.addoption(
        "--checkpoint-limit-mib",
        type=int,
        default=defaults.checkpoint_limit_mib,
        metavar="MIB",
        help="limit of disk space for checkpoints, in MiB; beyond it the least recently used are "
        "removed (default: %(default)s)",
    )
    group.addoption(
        "--store",
        metavar="URL",
        help="registry that has images and checkpoints of other hosts, such as "
        f"registry.example:5000/team; what it lacks is made here (default: {STORE_VARIABLE})",
    )
    group.addoption(
        "--store-push",
        action="store_true",
        help="push what is made here to the registry of --store; without it the store is only read",
    )
    parser.addini("store", "default of --store", default="")
    parser.addini(
        "gpu_models",
        "folders with further GPU models, relative to this file; added to --gpu-models",
        type="paths",
        default=[],
    )
    parser.addini(
        "images_dir",
        "folders with further image recipes, relative to this file; added to --images-dir",
        type="paths",
        default=[],
    )
    group.addoption(
        ACCEPT_OPTION,
        action="append",
        default=[],
        metavar="LICENCE",
        help="licence that you accept, for images that need it; may be repeated",
    )
    shards = parser.getgroup("gpu-node-harness: shards")
    shards.addoption(
        "--shard",
        metavar="K/N",
        help="run shard K of N: tests are divided by recorded durations, those of one saved state "
        "stay together; 'auto' takes K and N from the variables of the CI engine, Slurm or Kubernetes",
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
        help="recorded durations by which --shard divides, in pytest-split's format "
        "(default: %(default)s)",
    )
    parser.addini(
        "accept_licence", f"licences that you accept; added to {ACCEPT_OPTION}", type="args"
    )
    report_files.add_options(parser)


# Before pytest's own plugin for JUnit and before Allure's, which read where reports go.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--shard") or config.getoption("--report-dir"):
        from harness.plugin import shards  # noqa: PLC0415 - most runs have neither

        shards.register(config)
    select.add_markers(config)
    fixture_modules.register(config, "existing_node", "machines", "registry", "saved_states")
    root = config.rootpath
    gpu_models = [root / folder for folder in config.getoption("--gpu-models")]
    image_folders = [root / folder for folder in config.getoption("--images-dir")]
    defaults = Settings()
    try:
        config.stash[SETTINGS] = Settings(
            accelerator=AcceleratorOption(config.getoption("--accelerator")),
            timeout_multiplier=timeout_multiplier(config.getoption("--timeout-multiplier")),
            qemu=config.getoption("--qemu"),
            image=config.getoption("--image"),
            image_folders=(*config.getini("images_dir"), *image_folders),
            provisioner=_provisioner(config.getoption("--provisioner"), root),
            gpu_models=(*config.getini("gpu_models"), *gpu_models),
            gpu_source=GpuSource(config.getoption("--gpu-source") or defaults.gpu_source.value),
            is_gpu_required=config.getoption("--require-gpu"),
            gpu_inventory=first_path(
                config.getoption("--gpu-inventory"),
                INVENTORY_VARIABLE,
                config.getini("gpu_inventory"),
                root=root,
            ),
            gpu_pool_folder=first_path(
                config.getoption("--gpu-pool-dir"), POOL_VARIABLE, root=root
            )
            or defaults.gpu_pool_folder,
            machine_driver=machine_driver(
                config.getoption("--machine-driver"), config.getini("machine_driver")
            ),
            machine_uri=first_of(
                config.getoption("--machine-uri"), URI_VARIABLE, config.getini("machine_uri")
            ),
            machine_start=MachineStart(config.getoption("--machine-start")),
            evidence=EvidenceMode(config.getoption("--evidence")),
            evidence_folder=root / Path(config.getoption("--evidence-dir")),
            failure_checkpoint=_failure_checkpoint(config),
            failure_checkpoint_limit_mib=config.getoption("--failure-checkpoint-limit-mib"),
            bundle_limit_mib=config.getoption("--bundle-limit-mib"),
            bundle_limit_days=config.getoption("--bundle-limit-days"),
            machine_keep=MachineKeep(config.getoption("--machine-keep")),
            machine_keep_hours=config.getoption("--machine-keep-hours"),
            machine_shell=_machine_shell(config),
            checkpoint_limit_mib=config.getoption("--checkpoint-limit-mib"),
            store=first_of(config.getoption("--store"), STORE_VARIABLE, config.getini("store")),
            is_store_writable=config.getoption("--store-push"),
            accepted_licences=accepted_licences(
                [*config.getoption(ACCEPT_OPTION), *config.getini("accept_licence")]
            ),
            ci=is_ci(),
        )
        if not (config.option.collectonly or config.option.setupplan):
            _require_named(config.stash[SETTINGS], defaults, image=config.getoption("--image"))
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
        from harness.plugin import machine_plan  # noqa: PLC0415 - most runs are no plans

        machine_plan.register(config, config.stash[SETTINGS])
    config.pluginmanager.register(
        progress.ProgressReporter(config, is_ci=config.stash[SETTINGS].ci), progress.PROGRESS
    )
    report_files.register(config, config.stash[SETTINGS])


def _require_named(settings: Settings, defaults: Settings, *, image: str) -> None:
    """Raise BadInputError or RequirementError for an image or a QEMU that the user named and that is missing.

    Otherwise each test would report the one, and be skipped for want of the other.
    """
    if settings.qemu != defaults.qemu and shutil.which(settings.qemu) is None:
        raise BadInputError(
            f"There is no program '{settings.qemu}' on this host.", source="--qemu"
        )
    if image != TESTED_IMAGES:
        # Runs of specs need no images, and should not load what reads them.
        from harness.image.catalogue import load_catalogue  # noqa: PLC0415

        try:
            catalogue = load_catalogue(*settings.image_folders)
        except BadInputError:
            # A folder without recipes, which fixtures may still write: reported where it is used.
            return
        for name in settings.images:
            # Files and URLs are examined where they are used.
            if "/" not in name:
                catalogue.get(name)


def _failure_checkpoint(config: pytest.Config) -> FailureCheckpoint:
    """Return the option; a machine that is about to be debugged alive keeps its GPUs."""
    if config.getoption("usepdb", default=False):
        return FailureCheckpoint.NEVER
    return FailureCheckpoint(config.getoption("--failure-checkpoint"))


def _machine_shell(config: pytest.Config) -> MachineShell | None:
    """Return the option; raises BadInputError where workers would have no terminal for the shell."""
    word = config.getoption("--machine-shell")
    if word is None:
        return None
    if config.getoption("numprocesses", default=None) or hasattr(config, "workerinput"):
        raise BadInputError(
            "The workers of xdist have no terminal for a shell; add '-n 0'.",
            source="--machine-shell",
        )
    return MachineShell(word)


def _provisioner(word: str, root: Path) -> str:
    """Return the name, or the absolute path of the file; raises BadInputError if it is wrong.

    Otherwise each test of a node would report it.
    """
    if word == PROVISIONER:
        return word
    from harness.provisioner.choice import absolute, choose_provisioner  # noqa: PLC0415 - rarely

    word = absolute(word, root)
    choose_provisioner(word)
    return word
