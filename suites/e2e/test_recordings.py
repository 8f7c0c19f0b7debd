"""The recordings that unit tests replay match the output of a machine's tools, on each distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError, listed
from harness.fixtures.recordings import expect_same_form, load_recording
from harness.plugin.select import requirements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.fixtures.saved_states import CloneState
    from harness.image import Image
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState
    from harness.settings import Settings

#: The recorded versions of the tools, by image.
VERSIONS: Mapping[str, Mapping[str, str]] = {
    "debian-12": {
        "cloud-init": "22.4.2",
        "containerd": "1.6.20",
        "ctr": "1.6.20",
        "dkms": "3.0.10",
        "modinfo": "30",
    },
    "debian-13": {
        "cloud-init": "25.1.4",
        "containerd": "1.7.24",
        "ctr": "1.7.24",
        "dkms": "3.2.2",
        "modinfo": "34",
    },
}


@pytest.fixture
def versions(image_name: str, settings: Settings) -> Mapping[str, str]:
    """Return the version of each tool with which its output was recorded on this image."""
    with requirements(settings):
        if image_name not in VERSIONS:
            raise RequirementError(
                f"Nothing was recorded on a node of '{image_name}', but on one of "
                f"{listed(VERSIONS)}; see fixtures/data/recordings/README.md for how to."
            )
    return VERSIONS[image_name]


def expect_form(
    machine: LabMachine, versions: Mapping[str, str], name: str, *command: str
) -> None:
    """Expect that the output on a machine has the form of the recording `name`, such as `tool/case`."""
    tool, _, case = name.partition("/")
    answer = machine.guest.output_of(*command)
    expect_same_form(load_recording(f"{tool}/{versions[tool]}-{case}"), f"{answer}\n")


def test_output_of_containerd_and_cloud_init_is_as_recorded(
    clone: CloneState, cloud_init_done: SavedState, versions: Mapping[str, str]
) -> None:
    machine = clone(cloud_init_done)

    for name, command in {
        "cloud-init/status": ("cat", "/run/cloud-init/status.json"),
        "containerd/config-dump": ("containerd", "config", "dump"),
        "containerd/version": ("containerd", "--version"),
        "ctr/version": ("ctr", "version"),
    }.items():
        expect_form(machine, versions, name, *command)


@pytest.mark.slow
def test_output_of_dkms_and_modinfo_is_as_recorded(
    clone: CloneState, driver_baked: SavedState, baked_image: Image, versions: Mapping[str, str]
) -> None:
    """The output comes from a guest whose driver was baked for one kernel."""
    machine = clone(driver_baked)
    driver, kernel = baked_image.driver, baked_image.newest_kernel.version
    assert driver is not None

    for name, command in {
        "ctr/images-ls": (
            "ctr",
            "-n",
            "k8s.io",
            "images",
            "ls",
            "-q",
            f"name=={driver.reference}",
        ),
        "dkms/installed": ("dkms", "status"),
        "modinfo/module": ("modinfo", "-k", kernel, "nvidia"),
    }.items():
        expect_form(machine, versions, name, *command)
