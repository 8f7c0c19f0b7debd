"""What is left of a machine when its test has failed, for whoever looks later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.plugin.sources import MachineSource

if TYPE_CHECKING:
    from pathlib import Path

    from fixtures.layers import CloneLayer
    from harness.gpu import GpuModel
    from harness.lab.layers import Layer

pytestmark = pytest.mark.pin_image(reason="what is kept is the harness's")

TROUBLE = HarnessError("The test ended with this.")


def test_clone_that_answers_leaves_what_it_knows(
    clone: CloneLayer, cloud_init_done: Layer, h100: GpuModel, tmp_path: Path
) -> None:
    source = MachineSource(clone(cloud_init_done, gpus=[h100]))

    ((_, kept),) = source.gather(tmp_path / "kept", TROUBLE)

    assert "10de:2330" in (kept / "commands/lspci").read_text()
    assert "systemd" in (kept / "commands/journal").read_text()
    assert "Linux version" in (kept / "commands/dmesg").read_text()
    assert (kept / "files/run/cloud-init/result.json").is_file()
    for name in ("serial.log", "qmp-events.json", "gpu0-trace.txt"):
        assert (kept / "host" / name).is_file()
    assert not (kept / "not-collected.txt").exists()


def test_clone_that_died_leaves_its_last_words(
    clone: CloneLayer, cloud_init_done: Layer, tmp_path: Path
) -> None:
    machine = clone(cloud_init_done)
    with pytest.raises(HarnessError, match="the machine has ended"):
        machine.guest.output_of("sh", "-c", "echo c >/proc/sysrq-trigger")

    ((_, kept),) = MachineSource(machine).gather(tmp_path / "kept", TROUBLE)

    assert "Kernel panic" in (kept / "host/serial.log").read_text()
    assert "the machine has ended" in (kept / "not-collected.txt").read_text()
    assert not (kept / "commands").exists()
