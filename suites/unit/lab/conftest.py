"""Fixtures: a lab whose machines never start, and a stage that only records calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.image.store import ImageStore
from harness.lab import Lab
from harness.machine.accelerator import AcceleratorChoice
from harness.machine.capacity.broker import Broker, HostCapacity
from harness.machine.channels.ssh import SshIdentity
from harness.machine.description.spec import Accelerator
from harness.machine.entrance.roster import Roster
from harness.payload import Payload
from harness.settings import MachineStart, Settings
from suites.unit.lab.builders import a_provisioner, ignore_event
from suites.unit.lab.drivers import StuckDriver
from suites.unit.lab.stage import Stage, a_stage, booting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CAPACITY = HostCapacity(memory_mib=1 << 20, cpus=8, cores=2, ports=range(24000, 24010))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    folder = tmp_path / "run"
    keys = tmp_path / "keys"
    proc = tmp_path / "proc-of-the-host"
    for each in (folder, keys, proc):
        each.mkdir()
    (proc / "meminfo").write_text("MemAvailable: 99999999 kB\n")
    for name in ("user.pub", "host", "host.pub"):
        (keys / name).touch()
    monkeypatch.setattr(ImageStore, "create_overlay", lambda _, __, at, **___: at.touch())
    lab = Lab(
        settings=Settings(
            cache=tmp_path,
            machine_start=MachineStart.COLD,
            evidence_folder=tmp_path / "evidence",
            qemu="qemu-that-is-not-there",
        ),
        folder=folder,
        driver=StuckDriver(),
        accelerator=AcceleratorChoice(accelerator=Accelerator.TCG, reason=""),
        agent_program=Payload(content=b"", digest="1" * 64),
        broker=Broker(tmp_path / "room", capacity=_CAPACITY, proc=proc),
        roster=Roster(tmp_path / "machines"),
        keys=lambda: SshIdentity(folder=keys),
        listener=ignore_event,
    )
    lab.provisioner = a_provisioner()
    return lab


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with a_stage(tmp_path) as made:
        yield made


@pytest.fixture
def asked(stage: Stage) -> Iterator[list[dict[str, Any]]]:
    """Let a lab boot its machines on the stage, and return the requests for them."""
    with booting(stage) as requests:
        yield requests
