"""Expectations on an existing node, over SSH or on this host; nothing on it is changed.

pytest suites/node --machine-driver=node --machine-uri=ssh://root@box
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.expect.every_node import every_expectation, node_expectations

if TYPE_CHECKING:
    from harness.evidence import Evidence


@pytest.mark.parametrize("name", [expectation.name for expectation in every_expectation()])
def test_existing_node(existing_evidence: Evidence, name: str) -> None:
    """The node meets the expectation with this name."""
    (expectation,) = node_expectations([name], source="suites/node")

    expectation.judge(existing_evidence)
