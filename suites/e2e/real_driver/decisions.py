"""The decisions of provisioning on nodes with NVIDIA's driver, and metadata that changes a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.evidence import Evidence

SKIP_DRIVER = (
    '{"compute": {"tagsList": [{"name": "SkipGpuDriverInstall", "value": "true"}], '
    '"vmSize": "Standard_ND96asr_v4"}}'
)


def decision_of(evidence: Evidence) -> tuple[str | None, str | None]:
    """Return the decision of the last run of provisioning, which cloud-init or the test started."""
    assert evidence.outcome is not None
    return evidence.outcome.action, evidence.outcome.reason
