"""The plugin in a run whose tests xdist distributes to workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.host.plugin.inner_pytest import MIXED

if TYPE_CHECKING:
    from suites.host.plugin.inner_pytest import Inner

pytest_plugins = ["pytester"]


def test_failed_and_broken_tests_are_counted_across_workers(inner: Inner) -> None:
    result = inner.run(MIXED, "-n", "1")

    result.stdout.fnmatch_lines(["expectations not met: 3; the harness could not tell: 3"])


def test_summary_shows_why_xdist_workers_deselected_a_test(inner: Inner) -> None:
    source = """
        import pytest
        @pytest.mark.vm_driver("qemu", reason="it is about QEMU")
        def test_of_qemu():
            pass
        def test_of_any():
            pass
        """

    result = inner.run(source, "-n", "2", "--machine-driver=libvirt")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["deselected under *: 1 test, because it is about QEMU"])
