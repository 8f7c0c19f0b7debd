"""Expectations on an existing node, over SSH or on this host; nothing on it is changed.

pytest suites/node --machine-driver=node --machine-uri=ssh://root@box
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.expect.every_node import NodeExpectation, node_expectations

if TYPE_CHECKING:
    import pytest

    from harness.evidence import Evidence


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each expectation; `--nvidia-smi` adds the expectation on the driver's report."""
    asks_driver = metafunc.config.getoption("--nvidia-smi")
    expectations = node_expectations([], source="suites/node", asks_driver=asks_driver)
    metafunc.parametrize("expectation", expectations, ids=[each.name for each in expectations])


def test_existing_node_meets_the_expectation(
    existing_evidence: Evidence, expectation: NodeExpectation
) -> None:
    """The node meets the expectation."""
    expectation.judge(existing_evidence)
