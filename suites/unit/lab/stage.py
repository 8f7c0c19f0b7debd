"""Runs machines of a lab on a fake VM driver that starts nothing, and records the calls."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.cloudinit import FINISHED
from harness.lab import Lab
from harness.lab import machine as machine_module
from harness.lab.machine_saving import NONCE_FACT
from harness.lab.node import Node
from harness.machine.checkpoint.store import Checkpoint
from harness.progress.activities import Activities
from suites.unit.lab.builders import a_lab_machine, emulated_gpus, machine_services
from suites.unit.lab.fake_vm import FakeAgent, FakeBroker, FakeDriver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.image import CloudImage
    from harness.lab.cloud_images import CloudImageBoot
    from harness.lab.gpu_sources import GpuSources
    from harness.lab.guest_channels import MachineServices
    from harness.lab.machine import LabMachine
    from harness.lab.node_request import NodeRequest
    from harness.lab.saved_states import SavedState
    from harness.machine import Machine, VmDriver
    from harness.machine.capacity.broker import Broker
    from harness.progress import ProgressEvent

NONCE = "the guest's nonce"
RESULT = '{"v1": {"datasource": "NoCloud", "errors": []}}'


def a_checkpoint(
    folder: Path = Path("/checkpoints/ready-0123"), *, nonce: str = NONCE, **changes: Any
) -> Checkpoint:
    made = Checkpoint(
        name="ready",
        key="0" * 64,
        folder=folder,
        parent=None,
        facts={NONCE_FACT: hashlib.sha256(nonce.encode()).hexdigest()},
        ram=folder / "ram",
        state=folder / "state",
        disk=folder / "disk.qcow2",
    )
    return replace(made, **changes)


@dataclass
class Stage:
    """Runs machines of a lab on a fake VM driver, and records all calls in order."""

    folder: Path
    agent: FakeAgent = field(default_factory=FakeAgent)
    said: list[str] = field(default_factory=list)
    events: list[ProgressEvent] = field(default_factory=list)
    entrances: list[dict[str, Any]] = field(default_factory=list)
    shown_gpus: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.driver = FakeDriver(self.agent)
        self.agent.nonce = NONCE
        self.sources: GpuSources = emulated_gpus()

    @property
    def noted(self) -> list[Any]:
        return self.agent.noted

    @property
    def names(self) -> list[str]:
        return [each[0] for each in self.noted]

    def services(self) -> MachineServices:
        return replace(
            machine_services(self.folder),
            driver=cast("VmDriver", self.driver),
            agent_program=b"agent",
            broker=cast("Broker", FakeBroker(self.noted)),
            gpu_sources=self.sources,
            patience=3.0,
            report=self.said.append,
            activities=Activities(self.events.append),
        )

    def machine(self, **changes: Any) -> LabMachine:
        return a_lab_machine(self.folder, services=self.services(), **changes)


@contextlib.contextmanager
def a_stage(folder: Path) -> Iterator[Stage]:
    """Yield a stage whose machines have a fake entrance, which is only recorded."""
    made = Stage(folder)

    @contextlib.contextmanager
    def entrance(vm: Machine, place: Path, **given: Any) -> Iterator[SimpleNamespace]:
        made.entrances.append({"vm": vm, "folder": place, **given})
        made.noted.append(("entrance",))
        yield SimpleNamespace(show_gpus=made.shown_gpus.append)
        made.noted.append(("entrance closed",))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_module, "open_entrance", entrance)
        yield made


@contextlib.contextmanager
def booting(stage: Stage) -> Iterator[list[dict[str, Any]]]:
    """Let every lab boot its machines on a stage, and yield the requests for them in order.

    Cloud-init has finished in each machine.
    """
    asked: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def started() -> Iterator[LabMachine]:
        stage.agent.answers.setdefault("sh", RESULT)
        stage.driver.lines = [FINISHED]
        with stage.machine() as machine:
            yield machine

    @contextlib.contextmanager
    def boot(lab: Lab, request: NodeRequest, **how: object) -> Iterator[Node]:
        asked.append({"request": request, **how})
        with started() as machine:
            yield Node(request, machine, provisioner=request.provisioner or lab.provisioner)

    @contextlib.contextmanager
    def clone(_: Lab, state: SavedState, name: str, **how: object) -> Iterator[LabMachine]:
        asked.append({"state": state, "name": name, **how})
        with started() as machine:
            yield machine

    @contextlib.contextmanager
    def boot_cloud_image(
        _: Lab, image: CloudImage, boot: CloudImageBoot, **how: object
    ) -> Iterator[LabMachine]:
        asked.append({"image": image, "boot": boot, **how})
        with started() as machine:
            yield machine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lab, "boot", boot)
        patch.setattr(Lab, "clone", clone)
        patch.setattr(Lab, "boot_cloud_image", boot_cloud_image)
        yield asked
