"""Tests whose marker names the VM drivers under which they run, in a run under QEMU."""

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


def test_test_is_not_deselected_if_its_vm_driver_marker_names_the_current_driver(
    inner: Inner,
) -> None:
    result = inner.run(TESTS)

    result.assert_outcomes(passed=3)
    assert "deselected under" not in result.stdout.str()
