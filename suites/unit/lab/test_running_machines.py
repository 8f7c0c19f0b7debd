"""The evidence to which the error of a failed start of a machine refers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError
from harness.lab import evidence_collection
from harness.lab.running_machines import host_evidence_kept

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab.machine import LabMachine

MACHINE = cast("LabMachine", object())


def test_error_of_a_failed_start_refers_to_host_evidence_only_without_guest_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evidence of the guest is more useful than evidence of the host."""
    for is_known in (True, False):
        monkeypatch.setattr(
            evidence_collection, "try_save_host_evidence", lambda _, folder: folder
        )
        guests = tmp_path / "guest"
        error = HarnessError("It did not start.", evidence=guests if is_known else None)

        with pytest.raises(HarnessError), host_evidence_kept(MACHINE, tmp_path / "host"):
            raise error

        assert error.evidence == (guests if is_known else tmp_path / "host"), is_known
