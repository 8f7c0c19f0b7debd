"""The nodes of each mode, with the stand-in and with NVIDIA's own driver."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from harness.bench.time_to_gpu.node_tools import TOOLS
from harness.bench.time_to_gpu.nodes import Fleet
from harness.bench.time_to_gpu.nvidia import INSTALL_LIMIT_S, with_longer_limit
from harness.bench.time_to_gpu.samples import Mode, Payload
from harness.provisioner import BOOT, TEARDOWN
from harness.settings import Settings
from suites.unit.gpu.models import a_model
from suites.unit.lab.builders import a_provisioner, an_image

if TYPE_CHECKING:
    from harness.lab import Lab


def a_fleet(payload: Payload = Payload.STAND_IN) -> Fleet:
    """Return a fleet whose lab has settings only, so that it can make nothing."""
    return Fleet(
        lab=cast("Lab", SimpleNamespace(settings=Settings())),
        gpu=a_model(),
        node_image=an_image(),
        builtin=a_provisioner(),
        own=None,
        registry=None,
        shapes={},
        payload=payload,
    )


def test_build_at_boot_needs_no_bake() -> None:
    """A bake of NVIDIA's own driver takes an hour under emulation."""
    fleet = a_fleet()

    request = fleet.request(Mode.BUILD)

    assert request.image is fleet.node_image
    assert request.before == []


def test_node_has_the_vcpus_that_were_asked_for() -> None:
    fleet = replace(a_fleet(), cpus=2)

    assert fleet.request(Mode.BUILD).cpus == 2


def test_image_with_nvidias_driver_is_the_prebaked_one() -> None:
    fleet = a_fleet(Payload.NVIDIA)

    request = fleet.request(Mode.PREBAKED)

    assert request.image is fleet.node_image
    assert request.before == []


def test_module_of_nvidias_image_is_removed_if_the_node_has_to_build_it() -> None:
    fleet = a_fleet(Payload.NVIDIA)

    request = fleet.request(Mode.BUILD)

    assert request.before == [list(fleet.builtin.guest_command(TEARDOWN))]
    assert request.config["retry_budget_s"] == INSTALL_LIMIT_S


def test_stand_in_has_the_limits_of_the_provisioner() -> None:
    assert "retry_budget_s" not in a_fleet().request(Mode.BUILD).config


def test_longer_limit_applies_only_to_the_boot() -> None:
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
