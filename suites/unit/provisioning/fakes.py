"""Fakes of what provisioning acts through, for tests of it."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.provisioning.__main__ import run
from harness.provisioning.journal import EVENTS_DIRECTORY, LOG_PATH, Journal
from harness.provisioning.node import Node
from harness.provisioning.root import Root
from harness.provisioning.tags import CACHE_PATH
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.provisioning.command import Runner

EPOCH = dt.datetime(2026, 8, 21, 12, 0, 0, tzinfo=dt.timezone.utc)
PROGRAM = ("/usr/bin/python3", "-I", "-S", "/opt/gpu-node/provisioning.pyz")

KERNEL = "6.1.0-56-cloud-amd64"
OTHER_KERNEL = "6.1.0-55-cloud-amd64"
VERSION = "580.126.09"
OTHER_VERSION = "570.86.15"
SHA = "20260801000000"
IMAGE = f"mcr.microsoft.com/aks/aks-gpu-cuda-lts:{VERSION}-{SHA}"
RECORD_PATH = "/opt/azure/aks-gpu/dkms-marker"

GPU_NODE: Mapping[str, object] = {
    "gpu_node": True,
    "gpu_driver_version": VERSION,
    "gpu_image_sha": SHA,
    "config_gpu_driver_if_needed": True,
}


class FakeClock:
    """Time that passes only when somebody sleeps or a command is said to take some."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.elapsed_s

    def now(self) -> dt.datetime:
        return EPOCH + dt.timedelta(seconds=self.elapsed_s)

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.elapsed_s += seconds

    def advance(self, seconds: float) -> None:
        self.elapsed_s += seconds


def make_node(
    runner: Runner,
    top: Path,
    clock: FakeClock | None = None,
    *,
    budget_s: float = 780.0,
    console: list[str] | None = None,
) -> Node:
    """Make a node whose files lie below `top`."""
    clock = clock or FakeClock()
    root = Root(top)
    lines = [] if console is None else console
    return Node(
        runner=runner,
        clock=clock,
        root=root,
        journal=Journal(root, clock, lines.append),
        retries=Deadline.after(budget_s, clock),
    )


def write_tags(root: Root, *tags: tuple[str, str], vm_size: str | None = None) -> None:
    """Write the instance-metadata cache with these tags."""
    compute: dict[str, object] = {
        "tagsList": [{"name": name, "value": value} for name, value in tags]
    }
    if vm_size is not None:
        compute["vmSize"] = vm_size
    root.write(CACHE_PATH, json.dumps({"compute": compute}))


def write_record(
    root: Root,
    *,
    kernel: str = KERNEL,
    version: str = VERSION,
    kind: str = "cuda",
    arch: str = "x86_64",
) -> None:
    """Write a prebake record as a driver image leaves it."""
    root.write(
        RECORD_PATH,
        f"kernel={kernel}\ndriver_version={version}\ndriver_kind={kind}\narch={arch}\n",
    )


def read_events(root: Root) -> list[dict[str, str]]:
    """Return the event files, in the order of their names."""
    names = sorted(root.names(EVENTS_DIRECTORY), key=lambda name: int(name.removesuffix(".json")))
    return [json.loads(root.read(f"{EVENTS_DIRECTORY}/{name}") or "") for name in names]


@dataclass
class Invocation:
    """The program run once from its command line, and what it left."""

    top: Path
    runner: Runner
    clock: FakeClock = field(default_factory=FakeClock)
    environment: dict[str, str] = field(default_factory=dict)
    console: list[str] = field(default_factory=list)

    @property
    def root(self) -> Root:
        return Root(self.top)

    def run(self, command: str, configuration: Mapping[str, object] | None = None) -> int:
        """Run one command and return the exit code."""
        config = self.top / "config.json"
        config.write_text(json.dumps(dict(configuration or {})))
        return run(
            [
                command,
                f"--config={config}",
                f"--outcome={self.top / 'outcome.json'}",
                f"--root={self.top}",
            ],
            runner=self.runner,
            clock=self.clock,
            environment=self.environment,
            say=self.console.append,
            program=PROGRAM,
        )

    def outcome(self) -> dict[str, object]:
        """Return the outcome that the run wrote."""
        document = json.loads((self.top / "outcome.json").read_text())
        assert isinstance(document, dict)
        return document

    def steps(self) -> dict[str, str]:
        """Return each step's status by its name, in order."""
        steps = self.outcome()["steps"]
        assert isinstance(steps, list)
        return {step["name"]: step["status"] for step in steps}

    def log(self) -> list[str]:
        """Return the lines of the provisioning log."""
        return (self.root.read(LOG_PATH) or "").splitlines()

    def prebake_lines(self) -> list[str]:
        """Return the lines that dashboards read."""
        return [line for line in self.log() if line.startswith("AKS_GPU_PREBAKE")]

    def events(self) -> list[str]:
        """Return the names of the events, in the order of their files' names."""
        return [event["TaskName"] for event in read_events(self.root)]
