"""The list of running machines."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import BadInputError, RequirementError
from harness.machine.entrance import roster as roster_module
from harness.machine.entrance.roster import (
    Roster,
    RunningMachine,
    purpose_of_process,
    roster_folder,
)


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


def test_changed_facts_of_a_machine_are_listed(roster: Roster) -> None:
    machine, changed = a_machine("node-1"), replace(a_machine("node-1"), gpus=("l4-24gb",))

    with roster.entered(a_machine("other")), roster.entered(machine) as name:
        roster.update(name, changed)

        assert roster.machines() == [a_machine("other"), changed]


def test_change_after_the_end_of_a_machine_does_not_list_the_machine_again(roster: Roster) -> None:
    with roster.entered(a_machine("node-1")) as name:
        pass

    roster.update(name, a_machine("node-1"))

    assert roster.machines() == []


def test_folder_of_the_machine_list_is_private(roster: Roster, tmp_path: Path) -> None:
    with roster.entered(a_machine("node-1")):
        assert (tmp_path / "machines").stat().st_mode & 0o777 == 0o700


def test_machine_is_found_by_id_and_by_a_unique_name(roster: Roster) -> None:
    """An id is preferred to a name, which another machine may have too."""
    first, second, other = a_machine("node-1"), a_machine("node-2"), a_machine("clone-3", "clone")
    with roster.entered(first), roster.entered(second), roster.entered(other):
        assert roster.find("node-2") == second
        assert roster.find("clone") == other
        with roster.entered(a_machine("other-4", "node-2")):
            assert roster.find("node-2") == second
        with pytest.raises(
            BadInputError,
            match=(
                r"^MACHINE: several machines have the name 'node': 'node-1', 'node-2'\. "
                r"`harness ps` lists them\.$"
            ),
        ):
            roster.find("node")
        with pytest.raises(
            BadInputError,
            match=(
                r"^MACHINE: no running machine has the id or name 'x'; the running machines are: "
                r"'node-1', 'node-2', 'clone-3'\. `harness ps` lists them\.$"
            ),
        ):
            roster.find("x")


def test_machine_list_that_other_users_could_change_is_refused(
    roster: Roster, tmp_path: Path
) -> None:
    (tmp_path / "machines").mkdir()
    (tmp_path / "machines").chmod(0o770)

    with pytest.raises(RequirementError, match=r"^The machine list's folder '.*' must be private"):
        roster.machines()


def test_folder_of_the_machine_list_does_not_depend_on_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `harness ps` would not list the machines of a CI job."""
    for name in ("TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    assert str(roster_module._SHARED) == "/tmp"  # noqa: S108 - nothing is made there
    monkeypatch.setattr(roster_module, "_SHARED", tmp_path)
    assert roster_folder() == tmp_path / f"gpu-node-harness-machines-{os.geteuid()}"


def test_purpose_of_a_machine_is_the_current_test_or_the_command_if_no_test_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A purpose can't control the terminal that shows it."""
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "suites/a.py::test_b[x (y)] (setup)")
    assert purpose_of_process(["harness", "shell"]) == "suites/a.py::test_b[x (y)]"

    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert purpose_of_process(["/usr/bin/harness", "shell"]) == "harness shell"
    assert purpose_of_process(["harness", "run", "a\x1b[2J\nb"]) == "harness run a?[2J?b"


def test_long_command_is_truncated_so_that_its_entry_can_be_read(
    roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    purpose = purpose_of_process(["pytest", *["suites/a.py::test"] * 100_000])

    with roster.entered(replace(a_machine("a"), purpose=purpose)):
        assert [each.purpose for each in roster.machines()] == [purpose]


def test_machine_entry_with_an_invalid_process_or_user_id_is_refused() -> None:
    """`harness gc` sends it a signal, and -1 means every process of the user."""
    text = replace(a_machine("a"), user=1).to_json()
    for field in ("process", "user"):
        for process in ("-1", "0", "true", '"7"'):
            changed = text.replace(f'"{field}": 1,', f'"{field}": {process},')

            with pytest.raises((ValueError, TypeError, OverflowError)):
                RunningMachine.from_json(changed)
