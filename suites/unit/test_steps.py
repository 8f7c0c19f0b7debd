"""The steps of a run that are reported to a listener."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.expect.as_step import as_step
from harness.steps import (
    InnerStep,
    Step,
    consecutive,
    is_followed,
    listening,
    moved_into,
    nested,
    stepped,
    take_step,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Listener:
    """Records the reports that it gets."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def started(self, step: Step) -> None:
        self.told.append(f"+{step.title}")

    def ended(self, step: Step, error: BaseException | None) -> None:
        assert step.stop_s is not None
        self.told.append(f"-{step.title}" + ("" if error is None else f": {error}"))

    def reported(self, step: Step, inner: Sequence[InnerStep]) -> None:
        self.told.append(f"{step.title} had {[each.title for each in inner]}")


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    with listening(found):
        yield found


class Machine:
    """An object whose methods are steps."""

    name = "node"

    @stepped("Reboot '{0.name}'")
    def reboot(self, way: str) -> str:
        return way


def test_step_title_of_a_method_call_contains_the_object(listener: Listener) -> None:
    assert Machine().reboot("hard") == "hard"

    assert listener.told == ["+Reboot 'node'", "-Reboot 'node'"]


def test_step_that_raises_has_failed(listener: Listener) -> None:
    with pytest.raises(HarnessError), take_step("Boot"), take_step("Wait"):
        raise HarnessError("It hangs.")

    assert listener.told == ["+Boot", "+Wait", "-Wait: It hangs.", "-Boot: It hangs."]


def test_each_of_several_consecutive_steps_ends_where_the_next_step_begins(
    listener: Listener,
) -> None:
    with consecutive() as begin:
        begin("init")
        begin("config")

    assert listener.told == ["+init", "-init", "+config", "-config"]


def test_inner_steps_are_reported_after_the_outer_step(listener: Listener) -> None:
    with take_step("Provision") as taken:
        pass
    taken.report([InnerStep(title="build", start_s=0, stop_s=1)])

    assert listener.told[-1] == "Provision had ['build']"


def test_title_of_an_expectation_step_shows_its_function_and_arguments(listener: Listener) -> None:
    def provisioned(evidence: str, *names: str, exit_code: int = 0) -> str:
        return f"{evidence}{names}{exit_code}"

    assert as_step("provisioned", provisioned)("e", "x" * 80, exit_code=3) == f"e{('x' * 80,)}3"

    assert listener.told[0] == f"+expect.provisioned('{'x' * 59}…, exit_code=3)"


def test_listener_is_told_only_of_steps_that_began_while_it_listened() -> None:
    first, second = Listener(), Listener()
    with contextlib.ExitStack() as early, contextlib.ExitStack() as late:
        early.enter_context(listening(first))
        with take_step("Boot"):
            late.enter_context(listening(second))
        early.close()
        with take_step("Wait"):
            pass

    assert first.told == ["+Boot", "-Boot"]
    assert second.told == ["+Wait", "-Wait"]


def test_steps_have_no_listener_in_a_run_without_a_report() -> None:
    with take_step("Boot"):
        assert not is_followed()


def inner(title: str, start_s: float, stop_s: float) -> InnerStep:
    return InnerStep(title=title, start_s=start_s, stop_s=stop_s)


def titles(steps: Sequence[InnerStep]) -> list[object]:
    return [(each.title, titles(each.inner)) if each.inner else each.title for each in steps]


def test_steps_are_nested_by_their_times() -> None:
    found = nested(
        [
            inner("b", 5, 9),
            inner("a1", 1, 2),
            inner("a", 1, 4),
            inner("a2", 2, 4),
            inner("c", 8, 12),
        ]
    )

    assert titles(found) == [("a", ["a1", "a2"]), "b", "c"]


@pytest.mark.parametrize(
    ("start_s", "stop_s", "moved"),
    [
        (12, 15, (12, 15)),
        (2, 5, (10, 13)),
        (70, 75, (15, 20)),
        (0, 15, (5, 20)),
    ],
    ids=["within", "earlier", "later", "longer"],
)
def test_inner_step_times_are_moved_into_the_outer_step(
    start_s: float, stop_s: float, moved: tuple[float, float]
) -> None:
    outer = Step("Provision", start_s=10, stop_s=20)

    part = inner("make", start_s, stop_s)
    (found,) = moved_into([replace(part, title="build", inner=(part,))], outer)

    assert [(each.start_s, each.stop_s) for each in (found, *found.inner)] == [moved, moved]
