"""The plugin where xdist spreads tests over workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.host.plugin.innerpytest import MIXED

if TYPE_CHECKING:
    from suites.host.plugin.innerpytest import Inner

pytest_plugins = ["pytester"]


def test_failures_of_both_families_are_counted_across_workers(inner: Inner) -> None:
    result = inner.run(MIXED, "-n", "1")

    result.stdout.fnmatch_lines(["expectations not met: 3; the harness could not tell: 3"])
