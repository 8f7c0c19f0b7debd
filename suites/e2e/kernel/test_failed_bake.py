"""A bake that fails: the image must not keep half of a driver, nor a record of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.cloudinit import GuestFile
from harness.evidence import RECORD_PATH
from suites.e2e.guest_script import shell
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_bake.py"
BAKE: Mapping[str, object] = {"gpu_node": False, "feature_flags": "NVIDIA_CUDA_PREBAKE"}
LOGS = "/var/log/gpu-node/failed-bake"
COMPONENTS = "/opt/azure/components.json"
#: Breaks what each compilation for a kernel includes.
NO_LUCK = shell(
    "for build in /lib/modules/*/build; do "
    "echo '#error out of luck' >>$(readlink -f $build)/include/generated/autoconf.h; done"
)


def changed_record(change: str) -> GuestFile:
    """Return a `ctr` that changes the record which the driver image has written."""
    text = (
        f'#!/bin/sh\n/usr/bin/ctr "$@"; code=$?\n{change} {RECORD_PATH} 2>/dev/null\nexit $code\n'
    )
    return GuestFile(path="/usr/local/bin/ctr", content=text.encode(), mode=0o755)


@pytest.mark.slow
@promise(section="4", unit=UNIT)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        pytest.param("sed -i /^arch=/d", "that lacks a field", id="without a field"),
        pytest.param(
            "sed -i s/^driver_version=.*/driver_version=580.126.0/",
            "built version 580.126.0, expected 580.126.09",
            id="of another version",
        ),
        pytest.param(
            "sed -i s/^arch=.*/arch=aarch64/", "built for aarch64, expected x86_64",
            id="of another architecture",
        ),
        pytest.param(
            "sed -i s/^driver_kind=.*/driver_kind=grid/",
            "built a driver of kind grid, expected cuda-lts",
            id="of another kind",
        ),
    ],
)  # fmt: skip
def test_bake_whose_record_does_not_fit_leaves_no_driver(
    start_node: StartNode, change: str, sentence: str
) -> None:
    """A node would believe the record, or build beside what it does not know of."""
    node = start_node(
        "record", gpus=[], command="bake", config=BAKE, files=[changed_record(change)]
    )

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=1)
    outcome = evidence.outcome
    assert outcome is not None
    assert sentence in (outcome.error or ""), outcome.error
    expect.step_failed(evidence, "verify-record")
    expect.no_record(evidence)
    expect.no_driver_artefact(evidence)


@pytest.mark.slow
@promise(section="4", unit=UNIT)
def test_bake_that_does_not_compile_leaves_its_logs_alone(start_node: StartNode) -> None:
    """Whoever looks for the cause has the compiler's words; the image has nothing else of it."""
    node = start_node(
        "compiler",
        gpus=[],
        command="bake",
        config={**BAKE, "retry_budget_s": 90},
        before=[NO_LUCK],
    )

    evidence = node.evidence(files=[f"{LOGS}/*"])

    expect.provisioned(evidence, exit_code=1)
    expect.step_failed(evidence, "build-driver")
    logs = evidence.matching(f"{LOGS}/*")
    assert list(logs) == [f"{LOGS}/make-580.126.09.log"]
    assert "#error out of luck" in "".join(logs.values())
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
def test_image_without_the_flag_gets_the_driver_image_alone(
    start_node: StartNode, flags: str
) -> None:
    """The image is fetched, as for each node pool with GPUs, and nothing is built."""
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


@promise(section="4", unit=UNIT)
@pytest.mark.parametrize(
    ("listed", "code"),
    [
        pytest.param("580.126.09-20260801000000", 0, id="listed"),
        pytest.param("580.126.09-20260801000001", 1, id="another is listed"),
    ],
)
def test_image_bakes_only_what_its_component_list_has(
    start_node: StartNode, listed: str, code: int
) -> None:
    """What is baked has been scanned; a version that only the configuration names has not."""
    url = "mcr.microsoft.com/aks/aks-gpu-cuda-lts:*"
    components = (
        f'{{"GPUContainerImages": [{{"downloadURL": "{url}", '
        f'"gpuVersion": {{"latestVersion": "{listed}"}}}}]}}'
    )
    node = start_node(
        "components",
        gpus=[],
        command="bake",
        config={**BAKE, "feature_flags": ""},
        files=[GuestFile(path=COMPONENTS, content=components.encode())],
    )

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=code)
    outcome = evidence.outcome
    assert outcome is not None
    if code:
        assert "is not on the component list" in (outcome.error or "")
        assert not outcome.steps
