"""Tests that another VM driver than the run's is to be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
LIBVIRT = ("--machine-driver=libvirt",)


def test_every_test_runs_under_the_driver_that_it_is_about(inner: Inner) -> None:
    result = inner.run(TESTS)

    result.assert_outcomes(passed=3)
    assert "left out" not in result.stdout.str()


def test_test_for_another_driver_is_deselected_with_the_reason(inner: Inner) -> None:
    result = inner.run(TESTS, *LIBVIRT)

    result.assert_outcomes(passed=2, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "deselected under --machine-driver=libvirt: 1 tests, because it looks for QEMU's own process"
        ]
    )


@pytest.mark.parametrize(
    "marker",
    [
        'vm_driver(reason="none is named")',
        'vm_driver("xen", reason="unknown")',
        'vm_driver("qemu")',
    ],
)
def test_marker_without_a_driver_or_a_reason_is_refused(inner: Inner, marker: str) -> None:
    result = inner.run(f"import pytest\n@pytest.mark.{marker}\ndef test_x(): pass\n", *LIBVIRT)

    assert result.ret != 0
    assert "test_inner.py::test_x" in result.stdout.str() + result.stderr.str()
