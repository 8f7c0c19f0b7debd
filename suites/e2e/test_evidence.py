"""The evidence that is kept for a machine whose test has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.plugin.evidence_sources import MachineEvidenceSource

if TYPE_CHECKING:
    from pathlib import Path

    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.lab.saved_states import SavedState

pytestmark = pytest.mark.pin_image(reason="what is kept is the harness's")

TROUBLE = HarnessError("The test ended with this.")


def test_evidence_of_a_running_clone_is_complete(
    clone: CloneState, cloud_init_done: SavedState, h100: GpuModel, tmp_path: Path
) -> None:
    source = MachineEvidenceSource(clone(cloud_init_done, gpus=[h100]))

    ((_, kept),) = source.gather(tmp_path / "kept", TROUBLE)

    assert "10de:2330" in (kept / "commands/lspci").read_text()
    assert "systemd" in (kept / "commands/journal").read_text()
    assert "Linux version" in (kept / "commands/dmesg").read_text()
    assert (kept / "files/run/cloud-init/result.json").is_file()
    for name in ("serial.log", "qmp-events.json", "gpu0-trace.txt"):
        assert (kept / "host" / name).is_file()
    assert not (kept / "not-collected.txt").exists()


def test_evidence_of_a_dead_clone_has_its_console_output(
    clone: CloneState, cloud_init_done: SavedState, tmp_path: Path
) -> None:
    machine = clone(cloud_init_done)
    with pytest.raises(HarnessError, match="the machine has ended"):
        machine.guest.output_of("sh", "-c", "echo c >/proc/sysrq-trigger")

    ((_, kept),) = MachineEvidenceSource(machine).gather(tmp_path / "kept", TROUBLE)

    assert "Kernel panic" in (kept / "host/serial.log").read_text()
    assert "the machine has ended" in (kept / "not-collected.txt").read_text()
    assert not (kept / "commands").exists()
