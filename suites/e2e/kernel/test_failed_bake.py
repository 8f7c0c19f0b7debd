"""A bake that fails: the image must keep neither a part of a driver nor a record of a driver."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.cloudinit import GuestFile
from harness.evidence import RECORD_PATH
from suites.e2e.guest_script import TAG_AS_GRID, shell
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_bake.py"
BAKE: Mapping[str, object] = {"gpu_node": False, "feature_flags": "NVIDIA_CUDA_PREBAKE"}
LOGS = "/var/log/gpu-node/failed-bake"
COMPONENTS = "/opt/azure/components.json"
CACHED = "/opt/dcgm-exporter/cached"
#: The record of an earlier bake, which each bake of these tests replaces.
EARLIER_RECORD = "/run/earlier-record"
#: Runs the real `ctr` with the same arguments.
BUILD = '/usr/bin/ctr "$@"'
BAKED_TAG = "580.126.09-20260801000000"
OTHER_TAG = "580.126.09-20260801000001"
#: Breaks a header that each compilation for a kernel includes.
NO_LUCK = shell(
    "for build in /lib/modules/*/build; do "
    "echo '#error out of luck' >>$(readlink -f $build)/include/generated/autoconf.h; done"
)


def build_by(script: str) -> GuestFile:
    """Return a `ctr` that runs `script` in place of the driver image."""
    text = f'#!/bin/sh\nset -e\ncase "$*" in *" run "*) {script}; exit;; esac\nexec {BUILD}\n'
    return GuestFile(path="/usr/local/bin/ctr", content=text.encode(), mode=0o755)


@pytest.mark.slow
@promise(section="4", unit=UNIT)
@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        pytest.param(
            f"{BUILD}; sed -i /^arch=/d {RECORD_PATH}", "that lacks a field", id="without a field"
        ),
        pytest.param(
            f"{BUILD}; sed -i s/^driver_version=.*/driver_version=580.126.0/ {RECORD_PATH}",
            "built version 580.126.0, expected 580.126.09",
            id="of another version",
        ),
        pytest.param(
            f"{BUILD}; sed -i s/^arch=.*/arch=aarch64/ {RECORD_PATH}",
            "built for aarch64, expected x86_64",
            id="of another architecture",
        ),
        pytest.param(
            f"{BUILD}; sed -i s/^driver_kind=.*/driver_kind=grid/ {RECORD_PATH}",
            "built a driver of kind grid, expected cuda-lts",
            id="of another kind",
        ),
        pytest.param(f"rm {RECORD_PATH}", "left no record", id="absent"),
        pytest.param(
            f"cp {EARLIER_RECORD} {RECORD_PATH}; rm -r /lib/modules/*/updates/dkms",
            "left no module for kernel",
            id="without a module",
        ),
    ],
)
def test_bake_with_a_missing_or_wrong_record_leaves_no_driver(
    start_node: StartNode, script: str, sentence: str
) -> None:
    """A node would trust a wrong record, or would build a second driver beside an unknown driver.

    The package caches stay: only a node that opts out removes them.
    """
    node = start_node(
        "record",
        gpus=[],
        command="bake",
        config=BAKE,
        files=[build_by(script), GuestFile(path=CACHED, content=b"")],
        before=[["cp", RECORD_PATH, EARLIER_RECORD]],
    )

    evidence = node.evidence(files=[CACHED])

    expect.provisioned(evidence, exit_code=1)
    outcome = evidence.outcome
    assert outcome is not None
    assert sentence in (outcome.error or ""), outcome.error
    assert CACHED in evidence.paths, f"'{CACHED}' was expected to stay, but it is gone."
    expect.run_ended_at(evidence, "verify-record")
    expect.no_record(evidence)
    expect.no_driver_artefact(evidence)


@pytest.mark.slow
@promise(section="4", unit=UNIT)
def test_bake_that_does_not_compile_leaves_only_its_logs(start_node: StartNode) -> None:
    """The output of the compiler is kept for diagnosis; nothing else of the build is left.

    The image's nodes need the packages in its caches.
    """
    cached = "/opt/dcgm-exporter/cached"
    node = start_node(
        "compiler",
        gpus=[],
        command="bake",
        config={**BAKE, "retry_budget_s": 90},
        before=[NO_LUCK, shell(f"mkdir -p /opt/dcgm-exporter; echo x >{cached}")],
    )

    evidence = node.evidence(files=[f"{LOGS}/*", cached])

    expect.provisioned(evidence, exit_code=1)
    expect.run_ended_at(evidence, "build-driver")
    logs = evidence.matching(f"{LOGS}/*")
    assert list(logs) == [f"{LOGS}/make-580.126.09.log"]
    assert "#error out of luck" in "".join(logs.values())
    assert cached in evidence.paths
    expect.no_record(evidence)
    expect.no_driver_artefact(evidence)


@promise(section="4", unit=UNIT)
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param("", id="no flag"),
        pytest.param("NVIDIA_CUDA_PREBAKES,xNVIDIA_CUDA_PREBAKE", id="flags of similar names"),
    ],
)
def test_bake_without_the_feature_flag_only_pulls_the_driver_image(
    start_node: StartNode, flags: str
) -> None:
    """The driver image is pulled, as for each node pool with GPUs, and nothing is built."""
    node = start_node(
        "flags",
        gpus=[],
        command="bake",
        config={**BAKE, "feature_flags": flags},
        before=[["rm", RECORD_PATH]],
    )

    evidence = node.evidence()

    expect.provisioned(evidence)
    outcome = evidence.outcome
    assert outcome is not None
    assert [step.name for step in outcome.steps] == ["fetch-driver-image", "list-driver-image"]
    expect.log_line(evidence, "  - nvidia-cuda-driver=580.126.09-")
    expect.no_record(evidence)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A component list with one driver image and its tags, and the wanted driver type."""

    driver_type: str = "cuda-lts"
    latest: str = OTHER_TAG
    previous: str = OTHER_TAG
    wanted: str = "cuda-lts"

    @property
    def file(self) -> GuestFile:
        versions = {"latestVersion": self.latest, "previousLatestVersion": self.previous}
        url = f"mcr.microsoft.com/aks/aks-gpu-{self.driver_type}:*"
        components = {"GPUContainerImages": [{"downloadURL": url, "gpuVersion": versions}]}
        return GuestFile(path=COMPONENTS, content=json.dumps(components).encode())


@promise(section="4", unit=UNIT)
@pytest.mark.parametrize(
    ("listed", "code"),
    [
        pytest.param(Listed(latest=BAKED_TAG), 0, id="listed"),
        pytest.param(
            Listed(driver_type="grid", previous=BAKED_TAG, wanted="grid"),
            0,
            id="listed as the version before the latest",
        ),
        pytest.param(Listed(), 1, id="another is listed"),
        pytest.param(
            Listed(driver_type="grid", latest=BAKED_TAG), 1, id="listed for another driver type"
        ),
    ],
)
def test_only_drivers_on_the_component_list_of_an_image_are_baked(
    start_node: StartNode, listed: Listed, code: int
) -> None:
    """Components on the list have been scanned; a version from the configuration alone has not."""
    node = start_node(
        "components",
        gpus=[],
        command="bake",
        config={**BAKE, "feature_flags": "", "gpu_driver_type": listed.wanted},
        files=[listed.file],
        before=[shell(TAG_AS_GRID)],
    )

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=code)
    outcome = evidence.outcome
    assert outcome is not None
    if code:
        assert "is not on the component list" in (outcome.error or "")
        assert not outcome.steps


@promise(section="4", unit=UNIT)
def test_image_of_another_distribution_gets_no_driver(start_node: StartNode) -> None:
    """The driver image is for Debian and Ubuntu; other systems install the driver from packages."""
    node = start_node(
        "another-system",
        gpus=[],
        command="bake",
        config=BAKE,
        before=[shell("rm /etc/os-release; echo ID=azurelinux >/etc/os-release")],
    )

    evidence = node.evidence()

    expect.provisioned(evidence)
    outcome = evidence.outcome
    assert outcome is not None
    steps = [step.name for step in outcome.steps]
    assert not steps, f"The bake was expected to have no steps, but has {steps}."
