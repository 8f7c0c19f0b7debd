"""The nodes of each mode, with the stand-in and with NVIDIA's own driver."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from harness.bench.time_to_gpu.node_tools import TOOLS
from harness.bench.time_to_gpu.nodes import FAR, NEAR, PRECOMPILED, TRIM_FOLDER
from harness.bench.time_to_gpu.nvidia import INSTALL_LIMIT_S, with_longer_limit
from harness.bench.time_to_gpu.samples import Mode, Payload
from harness.provisioner import BOOT, TEARDOWN
from suites.unit.bench.time_to_gpu.fleets import a_fleet
from suites.unit.lab.builders import a_provisioner, an_image

if TYPE_CHECKING:
    import pytest

    from harness.lab.registry import Registry


def test_no_image_is_baked_for_a_node_that_builds_its_driver_or_has_nvidias_driver() -> None:
    """A bake of NVIDIA's own driver takes an hour under emulation."""
    for payload, mode in (
        (Payload.STAND_IN, Mode.BUILD),
        (Payload.NVIDIA, Mode.PREBAKED),
    ):
        fleet = a_fleet(payload)

        request = fleet.request(mode)

        assert request.image is fleet.node_image
        assert request.before == []


def test_each_mode_requests_its_own_image_and_kernel_and_provisioner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = replace(a_provisioner(), name="own")
    registry = SimpleNamespace(reachable=lambda request: request)
    fleet = replace(
        a_fleet(),
        cpus=2,
        own=own,
        registry=cast("Registry", registry),
        shapes={Mode.NEAR: NEAR, Mode.FAR: FAR},
    )
    monkeypatch.setattr(
        "harness.bench.time_to_gpu.nodes.bake_node",
        lambda _lab, *, provisioner: replace(an_image(), name=f"baked by {provisioner.name}"),
    )
    requests = {mode: fleet.request(mode) for mode in fleet.modes()}

    assert {mode: each.image.name for mode, each in requests.items()} == {
        Mode.BUILD: "debian-12",
        Mode.PREBAKED: "baked by gpu-node",
        Mode.NEAR: "debian-12",
        Mode.FAR: "debian-12",
        Mode.OTHER_KERNEL: "baked by gpu-node",
        Mode.OWN: "debian-12",
        Mode.OWN_PREBAKED: "baked by own",
    }
    for mode, request in requests.items():
        is_own = mode in {Mode.OWN, Mode.OWN_PREBAKED}
        assert request.provisioner is (own if is_own else fleet.builtin), mode
        assert request.config == {
            **({} if is_own else {"enable_managed_gpu": True}),
            **({"precompiled_image": PRECOMPILED} if mode in fleet.shapes else {}),
        }, mode
        kernel = an_image().kernels[0] if mode is Mode.OTHER_KERNEL else None
        assert request.kernel == kernel, mode
        assert request.cpus == 2
    assert [[*each[2:]] for mode in fleet.shapes for each in requests[mode].before] == [
        ["0.5", "1000000"],
        ["40", "50000"],
    ]
    assert FAR.describe().startswith("80 ms round trip, 50 Mbit/s")


def test_reset_runs_the_teardown_in_every_mode_except_prebaked() -> None:
    own = replace(a_provisioner(), name="own")
    fleet = replace(a_fleet(), own=own)
    teardown = list(fleet.builtin.guest_command(TEARDOWN))

    has_teardown = {mode: teardown in fleet.reset_commands(mode) for mode in fleet.modes()}
    assert [mode for mode, has in has_teardown.items() if not has] == [Mode.PREBAKED]
    assert [mode for mode in fleet.modes() if not fleet.can_reset(mode)] == [Mode.OTHER_KERNEL]
    without = replace(fleet, own=replace(own, teardown=None))
    assert not without.can_reset(Mode.OWN)
    assert teardown not in without.reset_commands(Mode.OWN)


def test_build_mode_removes_the_prebuilt_nvidia_module_before_boot() -> None:
    fleet = a_fleet(Payload.NVIDIA)

    request = fleet.request(Mode.BUILD)

    assert request.before == [list(fleet.builtin.guest_command(TEARDOWN))]
    assert request.config["retry_budget_s"] == INSTALL_LIMIT_S


def test_registry_distance_adds_its_script_to_the_files_and_commands_of_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node keeps its other files, such as the files for trims, and its other early commands."""
    registry = cast("Registry", SimpleNamespace(reachable=lambda request: request))
    monkeypatch.setattr(
        "harness.bench.time_to_gpu.nodes.bake_node", lambda _lab, **_words: an_image()
    )
    fleet = replace(a_fleet(), registry=registry)

    trimmed = fleet.trimmed()
    shaped = fleet.near_registry(replace(trimmed, before=[["first"]]), FAR)

    names = [file.path.removeprefix(f"{TOOLS}/") for file in trimmed.files]
    trims = TRIM_FOLDER.removeprefix(f"{TOOLS}/")
    assert names == [f"{trims}/ctr", f"{trims}/systemctl", "shape.sh"]
    assert [argv[0] for argv in shaped.before] == ["first", "sh"]
    assert replace(fleet, registry=None).trimmed().before == []


def test_longer_time_limit_applies_only_to_the_boot_command() -> None:
    given = a_provisioner()

    found = with_longer_limit(given)

    limits = f"{TOOLS}/longer_limit.py"
    assert list(found.command(BOOT)) == [
        *("python3", "-I", "-S", limits, "14400"),
        *given.command(BOOT)[3:],
    ]
    assert found.command(TEARDOWN) == given.command(TEARDOWN)
    assert limits in {file.path for file in found.files}
    assert found.digest == given.digest
