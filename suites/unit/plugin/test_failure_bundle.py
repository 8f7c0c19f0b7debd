"""What is added to the evidence of a machine that is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.plugin import failure_bundle
from harness.plugin.failure_bundle import completed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("error", "added"),
    [
        (None, ["history", "timeline"]),
        (ValueError("wrong"), ["history", "difference", "versions", "timeline"]),
    ],
    ids=["passed", "failed"],
)
def test_evidence_that_is_kept_has_a_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, added: list[str]
) -> None:
    """A test that passed has one where its evidence is kept, and no marks of one that failed."""
    seen: list[str] = []
    for part in ("history", "difference", "versions", "timeline"):
        monkeypatch.setattr(
            failure_bundle,
            f"_add_{part}",
            lambda _machine, _folder, part=part: seen.append(part),
        )
    machine: Any = object()

    assert completed(machine, tmp_path, error) == tmp_path
    assert seen == added
