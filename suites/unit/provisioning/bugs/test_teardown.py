"""Drivers that a teardown kept by mistake, and drivers that it removed by mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.node_files import NodeFiles
from suites.unit.provisioning.fakes import (
    GPU_NODE,
    IMAGE,
    KERNEL,
    OTHER_KERNEL,
    OTHER_VERSION,
    RECORD_PATH,
    VERSION,
    Invocation,
    make_immovable,
    write_tags,
)
from suites.unit.provisioning.simulation import DKMS, module_path, module_text

if TYPE_CHECKING:
    from suites.unit.provisioning.simulation import SimulatedNode

STACK = ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
SUITES = Path(__file__).parents[3]


def opt_out(simulated: SimulatedNode) -> None:
    write_tags(simulated.files, ("SkipGpuDriverInstall", "true"))


def status(invocation: Invocation) -> str:
    (line,) = (line for line in invocation.prebake_lines() if "event=teardown" in line)
    match = re.search(r"status=(\w+)", line)
    assert match is not None
    return match[1]


def test_03_agentbaker_8933_module_that_was_loaded_at_boot_is_unloaded(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.load(VERSION)
    opt_out(simulated)

    assert invocation.run("boot", GPU_NODE) == 0

    assert simulated.loaded() == ()
    assert status(invocation) == "cleaned"


def test_04_agentbaker_8955_idle_modules_that_use_the_nvidia_module_are_unloaded(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.load(VERSION, *STACK)

    assert invocation.run("boot") == 0

    assert simulated.loaded() == ()
    assert status(invocation) == "cleaned"


def test_05_agentbaker_8955_idle_modules_with_device_nodes_are_unloaded(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.load(VERSION, *STACK)
    simulated.files.write("/dev/nvidia0", "")

    assert invocation.run("boot") == 0

    assert simulated.loaded() == ()


def test_06_no_module_is_unloaded_while_a_process_holds_the_device(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.load(VERSION, *STACK, users=1)

    assert invocation.run("boot") == 0

    assert simulated.loaded() == STACK
    assert [call for call in simulated.calls if call[0] == "rmmod"] == []
    assert status(invocation) == "incomplete"
    assert simulated.files.exists(RECORD_PATH)


@pytest.mark.parametrize(
    ("signal", "is_beside_ours"),
    [("loaded", True), ("modinfo", True), ("dkms", True), ("loaded", False)],
)
def test_07_agentbaker_9257_customer_driver_detected_by_any_of_three_signals_is_preserved(
    simulated: SimulatedNode, invocation: Invocation, signal: str, *, is_beside_ours: bool
) -> None:
    files = simulated.files
    simulated.build(VERSION, OTHER_KERNEL)
    if not is_beside_ours:
        files.remove(f"{DKMS}/{VERSION}")
        files.remove(f"/lib/modules/{OTHER_KERNEL}/updates")
    if signal == "loaded":
        simulated.load(OTHER_VERSION)
    elif signal == "modinfo":
        files.write(module_path(KERNEL), module_text(OTHER_VERSION, KERNEL))
    else:
        files.write(f"{DKMS}/{OTHER_VERSION}/source/dkms.conf", "")

    assert invocation.run("boot") == 0

    assert status(invocation) == "preserved_customer_driver"
    assert files.exists("/usr/bin/nvidia-smi")
    assert not files.exists(f"{DKMS}/{VERSION}")
    assert not files.exists(RECORD_PATH)
    if signal == "loaded":
        assert simulated.loaded() == ("nvidia",)
    elif signal == "modinfo":
        assert files.exists(module_path(KERNEL))
    else:
        assert files.exists(f"{DKMS}/{OTHER_VERSION}")


def test_08_agentbaker_9257_teardown_is_incomplete_if_the_baked_module_is_busy(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.load(VERSION, *STACK, users=1)
    simulated.files.write(f"{DKMS}/{OTHER_VERSION}/source/dkms.conf", "")

    assert invocation.run("boot") == 0

    assert status(invocation) == "incomplete"
    assert simulated.files.exists(RECORD_PATH)


def test_09_agentbaker_9257_baked_module_for_another_kernel_is_removed(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, OTHER_KERNEL)
    simulated.files.write(f"{DKMS}/{OTHER_VERSION}/source/dkms.conf", "")

    assert invocation.run("boot") == 0

    assert not simulated.files.exists(module_path(OTHER_KERNEL))
    assert ("depmod", "-a", OTHER_KERNEL) in simulated.calls


def test_10_agentbaker_9544_old_driver_is_not_validated_after_an_incomplete_grid_teardown(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(OTHER_VERSION, KERNEL)
    simulated.load(OTHER_VERSION, *STACK, users=1)
    simulated.images = {IMAGE.replace("cuda-lts", "grid")}
    asked = {**GPU_NODE, "gpu_driver_type": "grid", "config_gpu_driver_if_needed": False}

    assert invocation.run("boot", asked) == 84

    assert status(invocation) == "incomplete"
    steps = invocation.steps()
    assert steps["install-driver"] == "failed"
    assert "validate-probe" not in steps
    installs = [call for call in simulated.calls if call[-1] == "install"]
    assert len(installs) == 1, "no further install can replace a driver that is in use"
    assert "The driver 570.86.15 is loaded" in str(invocation.outcome()["error"])


def test_13_agentbaker_8786_teardown_that_cannot_delete_nvidia_modprobe_keeps_the_record(
    simulated: SimulatedNode, invocation: Invocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.build(VERSION, KERNEL)
    make_immovable(monkeypatch, "/usr/bin/nvidia-modprobe")

    assert invocation.run("boot") == 0

    assert status(invocation) == "incomplete"
    assert "modprobe_after=true" in invocation.prebake_lines()[-1]
    assert simulated.files.exists(RECORD_PATH)


def test_14_agentbaker_8786_temporary_files_have_unpredictable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    rename = Path.rename

    def see(self: Path, target: Path) -> Path:
        names.append(self.name)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", see)
    for _ in range(2):
        NodeFiles(tmp_path).write("/etc/x", "")

    assert names[0] != names[1]
    assert all(re.fullmatch(r"\.x\.\w{8}", name) for name in names)


def test_23_agentbaker_9545_module_rebuilt_for_a_new_kernel_after_a_failed_teardown_is_removed(
    simulated: SimulatedNode, invocation: Invocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.build(VERSION, OTHER_KERNEL)
    with monkeypatch.context() as patch:
        make_immovable(patch, DKMS)
        assert invocation.run("boot") == 0
    assert status(invocation) == "incomplete"

    # DKMS builds for the new kernel from the tree that is left.
    simulated.files.write(module_path(KERNEL), module_text(VERSION, KERNEL))
    assert invocation.run("boot") == 0

    assert "status=cleaned" in invocation.prebake_lines()[-1]
    assert not simulated.files.exists(module_path(KERNEL))


def test_29_backlight_module_of_a_laptop_is_not_taken_for_the_driver(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.files.write(
        "/proc/modules", "nvidia_wmi_ec_backlight 16384 0 - Live 0x0000000000000000\n"
    )

    assert invocation.run("boot") == 0

    line = invocation.prebake_lines()[-1]
    assert "status=cleaned" in line
    assert "module_before=false module_after=false" in line
    assert simulated.loaded() == ("nvidia_wmi_ec_backlight",)
