"""Tests that another VM driver than the run's is to be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suites.host.plugin.inner_pytest import Inner

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.vm_driver("qemu", reason="it looks for QEMU's own process")
def test_of_qemu():
    pass

@pytest.mark.vm_driver("libvirt", "qemu", reason="it boots")
def test_of_both():
    pass

def test_of_any():
    pass
"""


def test_every_test_for_one_driver_runs_under_that_driver(inner: Inner) -> None:
    result = inner.run(TESTS)

    result.assert_outcomes(passed=3)
    assert "left out" not in result.stdout.str()
