"""The steps of a test run, such as parts of a boot, parts of provisioning, and expectations.

Code marks a step with `take_step` or `stepped`; reports use `listening` to receive the steps.
Without a listener, no step is recorded.
"""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from typing_extensions import ParamSpec

    _P = ParamSpec("_P")

_R = TypeVar("_R")


# Steps compare by identity, since two steps may have the same title.
@dataclass(eq=False)
class Step:
    """A step of the harness; times are seconds since the epoch. A running step has no end."""

    title: str
    start_s: float = field(default_factory=time.time)
    stop_s: float | None = None

    def report(self, inner: Sequence[InnerStep]) -> None:
        """Add the inner steps that a guest or a tool reported; this step may already have ended."""
        for listener in tuple(_listeners):
            listener.reported(self, inner)


@dataclass(frozen=True, kw_only=True)
class InnerStep:
    """A step that a guest or a tool reported afterwards; times are seconds since the epoch.

    `error` says why the step failed; it is None if the step did not fail.
    """

    title: str
    start_s: float
    stop_s: float
    error: str | None = None
    is_skipped: bool = False
    details: Mapping[str, str] = field(default_factory=dict)
    inner: tuple[InnerStep, ...] = ()


class StepListener(Protocol):
    """A listener for steps, called in the thread that takes the steps."""

    def started(self, step: Step) -> None: ...

    def ended(self, step: Step, error: BaseException | None) -> None: ...

    def reported(self, step: Step, inner: Sequence[InnerStep]) -> None: ...


_listeners: list[StepListener] = []


@contextlib.contextmanager
def listening(listener: StepListener) -> Iterator[None]:
    """Report all steps to `listener` until the context ends."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def take_step(title: str) -> Iterator[Step]:
    """Report the code in the context as a step; the step fails if the context ends with an exception."""
    taken = Step(title)
    told = tuple(_listeners)
    for listener in told:
        listener.started(taken)
    error: BaseException | None = None
    try:
        yield taken
    except BaseException as raised:
        error = raised
        raise
    finally:
        taken.stop_s = time.time()
        for listener in told:
            listener.ended(taken, error)


def is_followed() -> bool:
    """Return whether there is a listener; without a listener, callers need not format titles."""
    return bool(_listeners)


def stepped(title: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a method so that each call of the method is a step.

    `{0}` in the title stands for the object on which the method is called, as in `str.format`.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if not is_followed():
                return function(*args, **kwargs)
            with take_step(title.format(*args)):
                return function(*args, **kwargs)

        return call

    return decorate


@contextlib.contextmanager
def consecutive() -> Iterator[Callable[[str], None]]:
    """Yield a function that ends the previous step, and begins a step with the given title."""
    with contextlib.ExitStack() as current:

        def begin(title: str) -> None:
            current.close()
            current.enter_context(take_step(title))

        yield begin


def nested(steps: Sequence[InnerStep]) -> tuple[InnerStep, ...]:
    """Return the steps as a tree: each step is inside the shortest step that contains its time."""
    ordered = sorted(steps, key=lambda each: (each.start_s, -each.stop_s))
    roots: list[_Branch] = []
    open_branches: list[_Branch] = []
    for each in ordered:
        while open_branches and open_branches[-1].step.stop_s < each.stop_s:
            open_branches.pop()
        branch = _Branch(each)
        (open_branches[-1].inner if open_branches else roots).append(branch)
        open_branches.append(branch)
    return tuple(branch.built() for branch in roots)


def moved_into(steps: Sequence[InnerStep], outer: Step) -> tuple[InnerStep, ...]:
    """Return the steps, shifted in time as little as possible, so that the steps are within `outer`.

    The steps happened during `outer`, but their times are from another clock, such as a guest's clock.
    If the steps took longer than `outer`, the end of the last step is moved to the end of `outer`.
    """
    if not steps or outer.stop_s is None:
        return tuple(steps)
    start, stop = min(each.start_s for each in steps), max(each.stop_s for each in steps)
    late, early = stop - outer.stop_s, outer.start_s - start
    shift = -late if late > 0 else max(0.0, min(early, outer.stop_s - stop))
    return tuple(_moved(each, shift) for each in steps)


def _moved(one: InnerStep, by_s: float) -> InnerStep:
    return replace(
        one,
        start_s=one.start_s + by_s,
        stop_s=one.stop_s + by_s,
        inner=tuple(_moved(each, by_s) for each in one.inner),
    )


@dataclass
class _Branch:
    step: InnerStep
    inner: list[_Branch] = field(default_factory=list)

    def built(self) -> InnerStep:
        return replace(self.step, inner=tuple(each.built() for each in self.inner))
