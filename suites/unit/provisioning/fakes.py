"""Fakes and builders for tests of provisioning."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.provisioning.__main__ import run
from harness.provisioning.journal import EVENTS_DIRECTORY, LOG_PATH, Journal
from harness.provisioning.node_context import NodeContext
from harness.provisioning.node_files import NodeFiles
from harness.provisioning.plan import Plan, Step
from harness.provisioning.tags import CACHE_PATH
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from harness.provisioning.command import Runner

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


def make_node(
    runner: Runner,
    top: Path,
    clock: FakeClock | None = None,
    *,
    budget_s: float = 780.0,
    console: list[str] | None = None,
) -> NodeContext:
    """Make a node whose files lie below `top`."""
    clock = clock or FakeClock()
    files = NodeFiles(top)
    lines = [] if console is None else console
    return NodeContext(
        runner=runner,
        clock=clock,
        files=files,
        journal=Journal(files, clock, lines.append),
        retries=Deadline.after(budget_s, clock),
    )


def write_tags(files: NodeFiles, *tags: tuple[str, str], vm_size: str | None = None) -> None:
    """Write the instance-metadata cache with these tags."""
    compute: dict[str, object] = {
        "tagsList": [{"name": name, "value": value} for name, value in tags]
    }
    if vm_size is not None:
        compute["vmSize"] = vm_size
    files.write(CACHE_PATH, json.dumps({"compute": compute}))


def write_record(
    files: NodeFiles,
    *,
    kernel: str = KERNEL,
    version: str = VERSION,
    kind: str = "cuda",
    arch: str = "x86_64",
    path: str = RECORD_PATH,
) -> None:
    """Write a prebake record as a driver image does."""
    files.write(
        path,
        f"kernel={kernel}\ndriver_version={version}\ndriver_kind={kind}\narch={arch}\n",
    )


def read_events(files: NodeFiles) -> list[dict[str, str]]:
    """Return the event files, in the order of their names."""
    names = sorted(files.names(EVENTS_DIRECTORY), key=lambda name: int(name.removesuffix(".json")))
    return [json.loads(files.read(f"{EVENTS_DIRECTORY}/{name}") or "") for name in names]


@dataclass
class Invocation:
    """One run of the program from its command line, with its results."""

    top: Path
    runner: Runner
    clock: FakeClock = field(default_factory=FakeClock)
    environment: dict[str, str] = field(default_factory=dict)
    console: list[str] = field(default_factory=list)

    @property
    def files(self) -> NodeFiles:
        return NodeFiles(self.top)

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
            print_line=self.console.append,
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
        return (self.files.read(LOG_PATH) or "").splitlines()

    def prebake_lines(self) -> list[str]:
        """Return the log lines that begin with AKS_GPU_PREBAKE."""
        return [line for line in self.log() if line.startswith("AKS_GPU_PREBAKE")]

    def events(self) -> list[str]:
        """Return the names of the events, in the order of their files' names."""
        return [event["TaskName"] for event in read_events(self.files)]


def make_immovable(
    monkeypatch: pytest.MonkeyPatch, refused: str, error: int = errno.EPERM
) -> None:
    """Make the removal of one path fail, as for a file with the immutable flag."""
    remove = NodeFiles.remove

    def refuse(self: NodeFiles, path: str) -> None:
        if path == refused:
            raise OSError(error, os.strerror(error))
        remove(self, path)

    monkeypatch.setattr(NodeFiles, "remove", refuse)


def plan_lines(*actions: object) -> list[str]:
    step = Step(name="s", actions=actions, exit_code=None)  # type: ignore[arg-type]
    return Plan((step,)).describe().replace("    ", "", 9).splitlines()[1:]
