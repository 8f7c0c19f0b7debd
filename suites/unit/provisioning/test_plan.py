"""Plans as data: the order of the steps, and the text of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.provisioning.plan import (
    Plan,
    PlanError,
    Remove,
    Retry,
    Run,
    Step,
    log_line,
)
from harness.shell.mocks.scripted_runner import ScriptedRunner

from .fakes import make_node

if TYPE_CHECKING:
    from pathlib import Path


def step(name: str, *needs: str, fallback_of: str | None = None) -> Step:
    return Step(
        name=name, actions=(), exit_code=None, needs=needs, only_after_failure_of=fallback_of
    )


def test_plan_order_moves_a_step_only_behind_the_steps_that_it_needs() -> None:
    """A fallback comes after the step that it replaces."""
    for steps, order in (
        ([step("c", "a", "b"), step("b", "a"), step("a"), step("d")], "abcd"),
        ([step("b"), step("a"), step("c", "a")], "bac"),
        ([step("f", fallback_of="q"), step("q")], "qf"),
        ([step("a", "absent")], "a"),
    ):
        assert [each.name for each in Plan.order(steps).steps] == [*order]


def test_steps_that_need_each_other_or_have_the_same_name_are_refused() -> None:
    with pytest.raises(PlanError, match=r"^The steps \['a', 'b'\] need each other in a cycle\.$"):
        Plan.order([step("b", "a"), step("a", "b"), step("c")])
    with pytest.raises(PlanError, match=r"^Two steps have the name 'b'\.$"):
        Plan.order([step("a"), step("b"), step("b")])


def test_step_command_is_the_first_command_or_the_step_name_without_a_command() -> None:
    run = Run(argv=("a", "b c"), retry=Retry(timeout_s=1))
    other = Run(argv=("d",), retry=Retry(timeout_s=1))
    with_run = Step(name="n", actions=(Remove(path="/x"), run, other), exit_code=None)

    assert with_run.command == "a 'b c'"
    assert step("only-a-name").command == "only-a-name"


def test_log_action_prints_its_line(tmp_path: Path) -> None:
    console: list[str] = []
    action = log_line("  - a=b")

    assert action.description == ("log   - a=b",)
    assert action.function(make_node(ScriptedRunner(), tmp_path, console=console)) is None
    assert console == ["  - a=b"]
