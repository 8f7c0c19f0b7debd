"""Which steps are reported to Allure, and which inner steps are added to a step after its end."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import allure_commons
import pytest
from allure_commons import model2

from harness.plugin.allure_steps import AllureSteps
from harness.steps import InnerStep, listening, take_step

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeListener:
    """A fake of Allure's own plug-in, which forgets a step when the step ends."""

    def __init__(self) -> None:
        self.taken: list[model2.TestStepResult] = []
        self.ended: list[tuple[str | None, object, object]] = []
        self._open: dict[str, model2.TestStepResult] = {}

    def get_item(self, uuid: str) -> model2.TestStepResult | None:
        return self._open.get(uuid)

    @allure_commons.hookimpl
    def start_step(self, uuid: str, title: str) -> None:
        self._open[uuid] = model2.TestStepResult(name=title)
        self.taken.append(self._open[uuid])

    @allure_commons.hookimpl
    def stop_step(self, uuid: str, exc_type: object, exc_val: object) -> None:
        self.ended.append((self._open.pop(uuid).name, exc_type, exc_val))


@pytest.fixture
def allure() -> Iterator[FakeListener]:
    listener = FakeListener()
    allure_commons.plugin_manager.register(listener)
    try:
        with listening(AllureSteps(listener)):
            yield listener
    finally:
        allure_commons.plugin_manager.unregister(listener)


def inner(title: str) -> InnerStep:
    return InnerStep(title=title, start_s=1.0, stop_s=2.0)


def test_allure_step_ends_with_the_error_that_was_raised_within_the_step(
    allure: FakeListener,
) -> None:
    error = KeyError("x")
    with contextlib.suppress(KeyError), take_step("outer"):
        with take_step("sound"):
            pass
        raise error

    assert allure.ended == [("sound", None, None), ("outer", KeyError, error)]


def test_step_in_another_thread_is_not_reported_to_allure(allure: FakeListener) -> None:
    """Two machines of a test boot at the same time, but Allure has one open step."""

    def boot() -> None:
        with take_step("there") as step:
            step.report([inner("x")])

    with take_step("here"):
        thread = threading.Thread(target=boot)
        thread.start()
        thread.join()

    assert [(step.name, step.steps) for step in allure.taken] == [("here", [])]


def test_later_report_of_a_step_replaces_only_the_earlier_report_of_the_same_step(
    allure: FakeListener,
) -> None:
    with take_step("boot") as one:
        pass
    with take_step("boot") as two:
        pass
    of_one, of_two = allure.taken
    of_one.steps.append(model2.TestStepResult(name="wait"))

    for step, titles in ((one, "ab"), (two, "c"), (one, "d")):
        step.report([inner(title) for title in titles])

    assert [step.name for step in of_one.steps] == ["wait", "d"]
    assert [step.name for step in of_two.steps] == ["c"]


def test_reported_inner_steps_become_allure_steps_with_status_and_times(
    allure: FakeListener,
) -> None:
    with take_step("boot") as step:
        pass

    part = InnerStep(title="part", start_s=1.5, stop_s=1.7509, is_skipped=True)
    failed = InnerStep(
        title="all", start_s=1.25, stop_s=3.0, error="no", is_skipped=True,
        details={"a": "1", "b": "2"},
        inner=(part, inner("last")),
    )  # fmt: skip
    step.report([failed])

    (taken,) = allure.taken
    parts = [
        model2.TestStepResult(name="part", status=model2.Status.SKIPPED, start=1500, stop=1751),
        model2.TestStepResult(name="last", status=model2.Status.PASSED, start=1000, stop=2000),
    ]
    assert taken.steps == [
        model2.TestStepResult(
            name="all",
            status=model2.Status.FAILED,
            statusDetails=model2.StatusDetails(message="no"),
            parameters=[
                model2.Parameter(name="a", value="1"),
                model2.Parameter(name="b", value="2"),
            ],
            start=1250,
            stop=3000,
            steps=parts,
        )
    ]
