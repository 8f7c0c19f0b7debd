"""Shows each step of the harness as an Allure step of the test or the fixture that runs the step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from allure_commons import plugin_manager
from allure_commons.model2 import Parameter, Status, StatusDetails, TestStepResult
from allure_commons.utils import uuid4

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.steps import InnerStep, Step


class StepResults(Protocol):
    """Finds an open result of Allure by the result's id."""

    def get_item(self, uuid: str) -> TestStepResult | None: ...


class AllureSteps:
    """Reports steps to Allure.

    Inner steps that are reported after their outer step has ended are added to Allure's object of
    the outer step. Allure writes the object of a step when Allure writes the test or the fixture.
    Each report of inner steps replaces the inner steps that were reported earlier.
    """

    def __init__(self, results: StepResults) -> None:
        self._results = results
        self._main = threading.get_ident()
        # If nothing refers to a step any more, no report about it can follow, so its entry is
        # dropped.
        self._taken: WeakKeyDictionary[Step, tuple[str, TestStepResult | None]]
        self._taken = WeakKeyDictionary()
        self._added: WeakKeyDictionary[Step, list[TestStepResult]] = WeakKeyDictionary()

    def started(self, step: Step) -> None:
        if threading.get_ident() != self._main:
            # Allure can't tell which of the open steps is the outer step.
            return
        uuid = uuid4()  # type: ignore[no-untyped-call]
        plugin_manager.hook.start_step(uuid=uuid, title=step.title, params={})
        self._taken[step] = (uuid, self._results.get_item(uuid))

    def ended(self, step: Step, error: BaseException | None) -> None:
        if step not in self._taken:
            return
        uuid, _ = self._taken[step]
        plugin_manager.hook.stop_step(
            uuid=uuid,
            exc_type=None if error is None else type(error),
            exc_val=error,
            exc_tb=None if error is None else error.__traceback__,
        )

    def reported(self, step: Step, inner: Sequence[InnerStep]) -> None:
        _, result = self._taken.get(step, ("", None))
        if result is None:
            return
        before = self._added.get(step, [])
        result.steps = [each for each in result.steps if each not in before]
        self._added[step] = [_result(each) for each in inner]
        result.steps.extend(self._added[step])


def _result(inner: InnerStep) -> TestStepResult:
    status = Status.SKIPPED if inner.is_skipped else Status.PASSED
    return TestStepResult(
        name=inner.title,
        status=status if inner.error is None else Status.FAILED,
        statusDetails=None if inner.error is None else StatusDetails(message=inner.error),
        parameters=[Parameter(name=name, value=value) for name, value in inner.details.items()],
        start=_milliseconds(inner.start_s),
        stop=_milliseconds(inner.stop_s),
        steps=[_result(each) for each in inner.inner],
    )


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
