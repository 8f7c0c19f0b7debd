"""Fake fleets, which make no images or machines, and fake nodes with prepared answers."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from harness.bench.time_to_gpu.node_tools import EVENTS
from harness.bench.time_to_gpu.nodes import Fleet
from harness.bench.time_to_gpu.samples import Payload
from harness.provisioning.command import CommandResult
from harness.provisioning.wait import Deadline
from harness.settings import Settings
from suites.fakes.clock import FakeClock
from suites.unit.gpu.models import a_model
from suites.unit.lab.builders import a_provisioner, an_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.evidence import Evidence
    from harness.evidence.state import NodeState
    from harness.lab import Lab
    from harness.lab.node_request import NodeRequest


def a_fleet(payload: Payload = Payload.STAND_IN) -> Fleet:
    """Return a fleet whose lab has only settings, so that the lab can make nothing."""
    return Fleet(
        lab=cast("Lab", SimpleNamespace(settings=Settings())),
        gpu=a_model(),
        node_image=an_image(),
        builtin=a_provisioner(),
        own=None,
        registry=None,
        shapes={},
        payload=payload,
    )


def events_of(*named: tuple[str, float] | tuple[str, float, int]) -> list[dict[str, object]]:
    """Return a guest's events, each with its time, and some with a count of GPUs."""
    return [
        {
            "name": each[0],
            "monotonic_s": each[1],
            "wall_s": each[1] + 1000,
            **({"count": each[2]} if len(each) == 3 else {}),
        }
        for each in named
    ]


@dataclass
class ScriptedNodes:
    """A fake lab whose nodes have the given events, results and states, in the given order.

    Each query of a node removes the first element of a list; all nodes share the lists.
    """

    events: Sequence[Sequence[dict[str, object]]] = ()
    results: Sequence[Evidence] = ()
    states: Sequence[NodeState] = ()
    printed: str = ""
    exit_code: int = 0
    requests: list[NodeRequest] = field(default_factory=list)
    ran: list[tuple[str, ...]] = field(default_factory=list)
    is_running: bool = False

    def __post_init__(self) -> None:
        self._left: dict[str, list[Any]] = {
            "events": list(self.events),
            "results": list(self.results),
            "states": list(self.states),
        }
        self.settings = Settings()

    def assert_used_up(self) -> None:
        assert not any(self._left.values())
        assert not self.is_running

    @contextlib.contextmanager
    def boot(self, request: NodeRequest, *, start: object) -> Iterator[Any]:
        del start
        assert not self.is_running
        self.requests.append(request)
        self.is_running = True
        node = SimpleNamespace(
            request=request,
            provisioner=request.provisioner,
            machine=SimpleNamespace(deadline=lambda limit_s: Deadline.after(limit_s, FakeClock())),
            guest=self,
            result=lambda: self._left["results"].pop(0),
            state=lambda: self._left["states"].pop(0),
            provision=lambda name: self.run("provision", name, timeout_s=1.0),
        )
        try:
            yield node
        finally:
            self.is_running = False

    def try_save_evidence(self, node: Any, name: str) -> Path:
        """Check that the node whose evidence is saved still runs, and return the path."""
        assert self.is_running
        assert name == f"time-to-gpu/{node.request.name}"
        return Path(name)

    def run(self, *argv: str, timeout_s: float) -> CommandResult:
        assert timeout_s > 0
        self.ran.append(argv)
        return CommandResult(argv=argv, exit_code=self.exit_code, stdout=self.printed, stderr="")

    def output_of(self, *argv: str, timeout_s: float = 1.0) -> str:
        return self.run(*argv, timeout_s=timeout_s).stdout

    def read_text(self, path: str) -> str:
        assert path == EVENTS
        self.ran.append(("read", path))
        return "".join(f"{json.dumps(event)}\n" for event in self._left["events"].pop(0))
