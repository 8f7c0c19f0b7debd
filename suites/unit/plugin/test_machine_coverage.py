"""Lines that ran in machines are added to a run's coverage; missing traces are reported."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError
from harness.lab.node_request import NodeRequest
from harness.machine.channels.guest import Guest
from harness.plugin.machine_coverage import recorded, traced_if_asked
from harness.plugin.specs.runs import hits_of, notes_of
from harness.provisioner import Provisioner
from harness.provisioning.command import CommandResult
from harness.shell.coverage import Place, Tier
from suites.unit.lab.builders import an_image

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.lab.node import Node


class FakeConfig:
    """A fake configuration of a run with or without `--shell-cov`."""

    def __init__(self, *sources: Path) -> None:
        self.stash = pytest.Stash()
        self.sources = list(sources)

    def getoption(self, name: str) -> list[Path]:
        assert name == "--shell-cov"
        return self.sources


@dataclass
class FakeNode:
    """A fake node whose guest answers with `answer`, or does not answer if `answer` is None."""

    request: NodeRequest
    answer: str | None

    @property
    def guest(self) -> Guest:
        return Guest("n", self)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        del timeout_s, stdin, env
        if self.answer is None:
            raise HarnessError("The guest does not answer.\nIts console is empty.")
        return CommandResult(argv=tuple(argv), exit_code=0, stdout=self.answer, stderr="")


@pytest.fixture
def request_of_node() -> NodeRequest:
    return NodeRequest(name="n", image=an_image())


def end_test(config: FakeConfig, node: FakeNode) -> pytest.Config:
    as_config = cast("pytest.Config", config)
    with recorded(as_config, cast("Node", node)):
        pass
    return as_config


def test_executed_lines_from_a_machine_are_added_to_the_coverage_of_the_run(
    tmp_path: Path, request_of_node: NodeRequest
) -> None:
    script = tmp_path / "p.sh"
    script.write_text("echo\n")
    known = {"sha256": _sha256(script), "places": [[1, 1, 1]]}
    other = {"sha256": "0" * 64, "places": [[1, 1, 1]]}
    answer = json.dumps({"/opt/x": known, "/opt/p.sh": other})

    config = end_test(FakeConfig(script), FakeNode(request_of_node, answer))

    assert hits_of(config, Tier.MACHINE) == {str(script): {Place(1, 1, 1)}}
    assert hits_of(config, Tier.MOCKED) == {}
    (note,) = notes_of(config)
    assert "ran /opt/p.sh, but no script that '--shell-cov' measures has the same content" in note


def test_coverage_note_has_the_name_of_the_machine_that_sent_no_traces(
    tmp_path: Path, request_of_node: NodeRequest
) -> None:
    config = end_test(FakeConfig(tmp_path), FakeNode(request_of_node, None))

    (note,) = notes_of(config)
    assert "its lines could not be read from the machine: The guest does" in note
    assert "console" not in note, "The note has only the first line of the error."


def test_machine_is_traced_only_in_a_run_with_coverage(
    tmp_path: Path, request_of_node: NodeRequest
) -> None:
    config = FakeConfig()
    provisioner = Provisioner(name="p", run=["true"])

    assert notes_of(end_test(config, FakeNode(request_of_node, None))) == set()
    as_config = cast("pytest.Config", config)
    assert traced_if_asked(as_config, request_of_node, provisioner) is request_of_node
    with_coverage = cast("pytest.Config", FakeConfig(tmp_path))
    traced = traced_if_asked(with_coverage, request_of_node, provisioner)
    assert (traced.name, len(traced.early)) == (request_of_node.name, 1)


def _sha256(script: Path) -> str:
    return hashlib.sha256(script.read_bytes()).hexdigest()
