"""A listener that records the steps of a run, for tests of reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.steps import InnerStep, Step


class Titles:
    """A listener that records the title of each step, and the inner steps reported for a title."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.told: list[tuple[str, list[InnerStep]]] = []

    def started(self, step: Step) -> None:
        self.titles.append(step.title)

    def ended(self, step: Step, error: BaseException | None) -> None:
        del step, error

    def reported(self, step: Step, inner: Sequence[InnerStep]) -> None:
        self.told.append((step.title, list(inner)))
