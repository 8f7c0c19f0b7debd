"""Expectations of a node that exists, by SSH or this host itself; nothing on it is changed.

pytest suites/node --machine-driver=node --machine-uri=ssh://root@box
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.expect.node import NODE_EXPECTATIONS, node_expectations

if TYPE_CHECKING:
    from harness.evidence import Evidence


@pytest.mark.parametrize("name", [expectation.name for expectation in NODE_EXPECTATIONS])
def test_existing_node(existing_evidence: Evidence, name: str) -> None:
    """A node that serves GPUs is as the expectation of this name says."""
    (expectation,) = node_expectations([name], source="suites/node")

    expectation.judge(existing_evidence)
