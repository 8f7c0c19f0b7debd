"""The list of running machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import BadInputError
from harness.machine.entrance.roster import Roster, RunningMachine, purpose_of_process


def a_machine(id: str, name: str = "node") -> RunningMachine:  # noqa: A002 - the field's name
    return RunningMachine(
        id=id,
        name=name,
        purpose="suites/e2e/test_boot.py::test_boots",
        process=1,
        since=1000.0,
        memory_mib=1536,
        folder=Path("/runs/run-1") / id,
        gpus=("h100-sxm5-80gb",),
    )


@pytest.fixture
def roster(tmp_path: Path) -> Roster:
    return Roster(tmp_path / "machines")


def test_machine_is_listed_while_it_runs(roster: Roster) -> None:
    machine = replace(a_machine("node-1"), user=7, until=2000.0)

    with roster.entered(machine):
        assert roster.machines() == [machine]
        assert roster.machines()[0].is_kept
    assert roster.machines() == []


def test_what_changes_of_a_machine_is_listed(roster: Roster) -> None:
    machine, changed = a_machine("node-1"), replace(a_machine("node-1"), gpus=("l4-24gb",))

    with roster.entered(a_machine("other")), roster.entered(machine) as name:
        roster.update(name, changed)

        assert roster.machines() == [a_machine("other"), changed]


def test_machine_that_has_ended_is_not_listed_again_by_a_change(roster: Roster) -> None:
    with roster.entered(a_machine("node-1")) as name:
        pass

    roster.update(name, a_machine("node-1"))

    assert roster.machines() == []


def test_folder_is_private(roster: Roster, tmp_path: Path) -> None:
    with roster.entered(a_machine("node-1")):
        assert (tmp_path / "machines").stat().st_mode & 0o777 == 0o700


def test_machine_is_found_by_id_and_by_a_name_that_only_it_has(roster: Roster) -> None:
    first, second, other = a_machine("node-1"), a_machine("node-2"), a_machine("clone-3", "clone")
    with roster.entered(first), roster.entered(second), roster.entered(other):
        assert roster.find("node-2") == second
        assert roster.find("clone") == other
        with pytest.raises(BadInputError, match=r"several machines .* 'node': 'node-1', 'node-2'"):
            roster.find("node")
        with pytest.raises(BadInputError, match="no running machine has the id or name 'x'"):
            roster.find("x")


def test_purpose_is_the_test_else_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "suites/a.py::test_b[x y] (call)")
    assert purpose_of_process(["harness", "shell"]) == "suites/a.py::test_b[x y]"

    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert purpose_of_process(["harness", "shell"]) == "harness shell"
