"""Runs all of `suites/passthrough` on the emulated host; the run takes twenty minutes under TCG."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.e2e.passthrough.conftest import DRIVER
from suites.e2e.passthrough.holders import gpu_drivers
from suites.e2e.passthrough.nested_suite import copy_image, run_suite

if TYPE_CHECKING:
    from harness.image import Image
    from harness.lab.machine import LabMachine

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(0)]

#: The stand-in for nvidia-smi has no memory counters.
_MEMORY_TEST = "test_memory_of_the_gpu_is_healthy"
_NO_COUNTERS = "skipped: This nvidia-smi does not know"
_ALL_S = 7200.0


def test_whole_suite_passes_on_the_host(
    node_host: LabMachine, nested_node_image: Image, nested_baked_image: Image
) -> None:
    """The tests of the driver run too, except the test that needs counters of NVIDIA's driver."""
    copy_image(node_host, nested_baked_image)

    outcomes = run_suite(node_host, nested_node_image.name, "suites/passthrough", limit_s=_ALL_S)

    memory_test = f"{_MEMORY_TEST}[{nested_node_image.name}]"
    assert outcomes.pop(memory_test, "").startswith(_NO_COUNTERS), outcomes
    assert len(outcomes) >= 10, outcomes
    assert set(outcomes.values()) == {"passed"}, outcomes
    assert gpu_drivers(node_host) == [DRIVER, DRIVER]


def test_domains_of_libvirt_get_the_gpus_of_the_host(
    node_host: LabMachine, nested_node_image: Image
) -> None:
    """The bus tests run with a libvirtd in the host and `hostdev` with `managed='no'`."""
    outcomes = run_suite(
        node_host,
        nested_node_image.name,
        "suites/passthrough/test_bus.py",
        "--machine-driver=libvirt",
        limit_s=_ALL_S,
    )

    assert len(outcomes) >= 5, outcomes
    assert set(outcomes.values()) == {"passed"}, outcomes
    assert gpu_drivers(node_host) == [DRIVER, DRIVER]
