"""Wrong decisions about the baked driver."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.nvidia import is_same_kind
from harness.provisioning.tags import CACHE_PATH
from suites.unit.provisioning.fakes import (
    GPU_NODE,
    IMAGE,
    KERNEL,
    OTHER_KERNEL,
    OTHER_VERSION,
    RECORD_PATH,
    SHA,
    VERSION,
    Invocation,
    write_tags,
)
from suites.unit.provisioning.simulation import DKMS

if TYPE_CHECKING:
    from suites.unit.provisioning.simulation import SimulatedNode

GRID_IMAGE = IMAGE.replace("cuda-lts", "grid")
GRID_NODE = {**GPU_NODE, "gpu_driver_type": "grid"}


def actions_run(simulated: SimulatedNode) -> list[str]:
    return [call[-1] for call in simulated.calls if call[3:4] == ("run",)]


@pytest.mark.parametrize(("baked", "is_configured"), [(VERSION, False), (OTHER_VERSION, True)])
def test_01_agentbaker_8919_grid_node_removes_a_baked_cuda_driver_before_the_install(
    simulated: SimulatedNode, invocation: Invocation, baked: str, *, is_configured: bool
) -> None:
    simulated.build(baked, KERNEL)
    simulated.kind = "grid"
    simulated.images = {GRID_IMAGE}

    code = invocation.run("boot", {**GRID_NODE, "config_gpu_driver_if_needed": is_configured})

    assert code == 0, "two drivers at once end in an NVML mismatch"
    assert simulated.files.names(DKMS) == (VERSION,)
    assert simulated.files.names("/usr/bin/lib64/lib64") == (f"libcuda.so.{VERSION}",)
    steps = list(invocation.steps())
    assert steps.index("tear-down-driver") < steps.index("install-driver")
    assert (
        "AKS_GPU_PREBAKE event=grid_cuda_prebake_teardown driver_type=grid marker_kind=cuda"
        " node_kind=grid action=teardown"
    ) in invocation.prebake_lines()
    assert "AKS.CSE.ensureGPUDrivers.cleanUpGridNodeCudaPrebake" in invocation.events()


def test_02_agentbaker_8916_8945_driver_of_another_version_is_removed_before_the_install(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build("580.159.04", KERNEL)

    assert invocation.run("boot", GPU_NODE) == 0

    assert invocation.outcome()["decision"] == {"action": "teardown-install", "reason": "version"}
    assert simulated.files.names(DKMS) == ("580.126.09",)


def test_11_agentbaker_8787_baked_cuda_driver_is_installed_without_a_build_on_a_cuda_lts_node(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    assert "driver_kind=cuda\n" in (simulated.files.read(RECORD_PATH) or "")

    assert invocation.run("boot", {**GPU_NODE, "gpu_driver_type": "cuda-lts"}) == 0

    assert actions_run(simulated) == ["install-skip-build"]


def test_12_agentbaker_8786_two_empty_driver_kinds_do_not_match() -> None:
    assert not is_same_kind("", "")


def test_20_aks_gpu_162_module_is_built_if_dkms_status_says_added(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.failing["dkms status"] = simulated.answer(("dkms",), f"nvidia/{VERSION}: added\n")

    assert invocation.run("boot", GPU_NODE) == 0

    assert invocation.outcome()["decision"] == {"action": "install", "reason": "dkms"}


def test_22_driver_is_built_if_the_image_does_not_support_install_skip_build(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.image_actions = ("install",)

    assert invocation.run("boot", GPU_NODE) == 0

    assert actions_run(simulated) == ["install-skip-build", "install"]
    assert invocation.steps()["install-prebuilt-driver"] == "failed"
    assert invocation.steps()["install-driver"] == "done"


def test_24_record_and_log_of_a_bake_have_the_target_kernel(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.kernel = OTHER_KERNEL
    asked = {
        "gpu_driver_version": VERSION,
        "gpu_image_sha": SHA,
        "feature_flags": "NVIDIA_CUDA_PREBAKE",
    }

    assert invocation.run("bake", asked) == 0

    record = invocation.outcome()["record"]
    assert isinstance(record, dict)
    assert record["kernel"] == KERNEL
    assert invocation.log()[-2].endswith(f"(kernel {KERNEL})")


def test_24_bake_fails_if_the_record_has_the_running_kernel_of_the_build_machine(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.kernel = OTHER_KERNEL
    entry_point = simulated._entry_point

    def build_for_the_builder(call: tuple[str, ...], name: str, _: str) -> object:
        entry_point(call, name, "install")
        return simulated.answer(call)

    simulated._entry_point = build_for_the_builder  # type: ignore[method-assign,assignment]
    asked = {
        "gpu_driver_version": VERSION,
        "gpu_image_sha": SHA,
        "feature_flags": "NVIDIA_CUDA_PREBAKE",
    }

    assert invocation.run("bake", asked) == 1

    assert str(invocation.outcome()["error"]).endswith(
        f"The driver image built for kernel {OTHER_KERNEL}, expected {KERNEL}."
    )


def test_25_exit_code_is_224_or_230_if_the_tag_cache_is_unreadable(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.files.remove(CACHE_PATH)
    assert invocation.run("boot", GPU_NODE) == 224

    for text, exit_code in (
        ("", 224),
        ('{"compute": {}}', 224),
        ('{"compute": {"tagsList": [{"name": "SkipGpuDriverInstall", "value": {}}]}}', 224),
        ('{"compute": {"tagsList": [{"name": "EnableManagedGPUExperience"}]}}', 230),
    ):
        simulated.files.write(CACHE_PATH, text)
        assert invocation.run("boot", GPU_NODE) == exit_code, text


def test_26_tag_that_merely_contains_the_name_is_ignored(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    write_tags(
        simulated.files,
        ("xSkipGpuDriverInstallY", "true"),
        ("SkipGpuDriverInstall", "untrue"),
        ("NotEnableManagedGPUExperience", "true"),
    )

    assert invocation.run("boot", GPU_NODE) == 0

    assert json.loads(simulated.files.read(CACHE_PATH) or "")
    assert actions_run(simulated) == ["install"]
    assert "start-device-plugin" not in invocation.steps()
