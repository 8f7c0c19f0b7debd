"""Pytest hooks and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.machine.accelerator import CHOICES
from harness.plugin import drivers, report, select
from harness.settings import (
    ACCEPT_OPTION,
    DRIVER_CHOICES,
    DRIVER_VARIABLE,
    EVIDENCE_CHOICES,
    START_CHOICES,
    STORAGE_VARIABLE,
    TESTED_IMAGES,
    URI_VARIABLE,
    Settings,
    accepted_licences,
    far_path,
    first_of,
    is_ci,
)

#: Where this run's settings lie; fixtures read them from there.
SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu-node-harness", "GPU-node provisioning")
    defaults = Settings()
    group.addoption(
        "--accelerator",
        choices=CHOICES,
        default=defaults.accelerator,
        help="how guests run; auto uses KVM where it proves to work (default: %(default)s)",
    )
    group.addoption(
        "--qemu",
        default=defaults.qemu,
        metavar="PROGRAM",
        help="the QEMU to use (default: %(default)s)",
    )
    group.addoption(
        "--image",
        default=TESTED_IMAGES,
        metavar="NAME[,NAME...]",
        help="the node images, of images/*.yaml; tests of nodes run with each "
        "(default: %(default)s)",
    )
    group.addoption(
        "--gpu-models",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of GPU models beside those that come with the harness; may be repeated",
    )
    group.addoption(
        "--machine-driver",
        choices=DRIVER_CHOICES,
        help="what runs machines; 'node' judges one that exists (QEMU's own processes where "
        "nothing is said)",
    )
    group.addoption(
        "--machine-uri",
        metavar="URI",
        help="libvirt's URI, such as qemu:///session, or that of a node",
    )
    group.addoption(
        "--machine-storage",
        metavar="DIR",
        help="a folder of libvirt's host, where that is not this one, for images and disks",
    )
    parser.addini("machine_driver", "what runs machines, as --machine-driver", default="")
    parser.addini("machine_uri", "where, as --machine-uri", default="")
    parser.addini("machine_storage", "a folder there, as --machine-storage", default="")
    group.addoption(
        "--machine-start",
        choices=START_CHOICES,
        default=defaults.machine_start,
        help="boot each machine, restore it from a checkpoint, or test both ways "
        "(default: %(default)s)",
    )
    group.addoption(
        "--evidence",
        choices=EVIDENCE_CHOICES,
        default=defaults.evidence,
        help="when to keep what was gathered of a node (default: %(default)s)",
    )
    group.addoption(
        "--evidence-dir",
        default=str(defaults.evidence_folder),
        metavar="DIR",
        help="where to keep it, a folder for each test (default: %(default)s)",
    )
    group.addoption(
        "--checkpoint-limit-mib",
        type=int,
        default=defaults.checkpoint_limit_mib,
        metavar="MIB",
        help="disk that checkpoints may take before the least recently used go (default: %(default)s)",
    )
    parser.addini(
        "gpu_models",
        "folders of GPU models, as --gpu-models names them, relative to this file",
        type="paths",
        default=[],
    )
    group.addoption(
        ACCEPT_OPTION,
        action="append",
        default=[],
        metavar="LICENCE",
        help="a licence that you accept, for images that need it; may be repeated",
    )
    parser.addini(
        "accept_licence", f"licences that you accept, as by {ACCEPT_OPTION}", type="args"
    )


def pytest_configure(config: pytest.Config) -> None:
    select.add_markers(config)
    root = config.rootpath
    gpu_models = [root / folder for folder in config.getoption("--gpu-models")]
    try:
        config.stash[SETTINGS] = Settings(
            accelerator=config.getoption("--accelerator"),
            qemu=config.getoption("--qemu"),
            image=config.getoption("--image"),
            images_folder=root / "images",
            gpu_models=(*config.getini("gpu_models"), *gpu_models),
            machine_driver=first_of(
                config.getoption("--machine-driver"),
                DRIVER_VARIABLE,
                config.getini("machine_driver"),
            )
            or Settings.machine_driver,
            machine_uri=first_of(
                config.getoption("--machine-uri"), URI_VARIABLE, config.getini("machine_uri")
            ),
            machine_storage=far_path(
                first_of(
                    config.getoption("--machine-storage"),
                    STORAGE_VARIABLE,
                    config.getini("machine_storage"),
                )
            ),
            machine_start=config.getoption("--machine-start"),
            evidence=config.getoption("--evidence"),
            evidence_folder=root / Path(config.getoption("--evidence-dir")),
            checkpoint_limit_mib=config.getoption("--checkpoint-limit-mib"),
            accepted_licences=accepted_licences(
                [*config.getoption(ACCEPT_OPTION), *config.getini("accept_licence")]
            ),
            ci=is_ci(),
        )
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(
        drivers.ForeignTests(config.stash[SETTINGS]), "harness-foreign-tests"
    )
    config.pluginmanager.register(report.Reporter(config.stash[SETTINGS]), report.REPORTER)
