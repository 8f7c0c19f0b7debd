"""Explains a failed `assert a == b` of two node states, units, records or other values of the harness."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_LINES = 40
_LONGEST = 160
_STATE = "harness.evidence.state"


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Return lines that show how two values of the same class differ, or None for other values."""
    kind = type(left)
    is_ours = kind.__module__.partition(".")[0] == "harness"
    if op != "==" or kind is not type(right) or not is_ours or not dataclasses.is_dataclass(left):
        return None
    # A run without evidence should not load the module that reads evidence.
    state = sys.modules.get(_STATE)
    if state is not None and isinstance(left, state.NodeState):
        lines = list(_state_lines(left, right))
    else:
        lines = list(_field_lines(left, right))
    if len(lines) > _MOST_LINES:
        left_out = len(lines) - _MOST_LINES + 1
        lines = [*lines[: _MOST_LINES - 1], f"… and {left_out} more lines"]
    return lines


def _state_lines(left: object, right: object) -> Iterator[str]:
    from harness.evidence.state import NodeState  # noqa: PLC0415 - it is already loaded
    from harness.evidence.state_diff import CHANGES_AT_REST, StateDiff  # noqa: PLC0415

    assert isinstance(left, NodeState)  # noqa: S101 - the caller has checked this
    assert isinstance(right, NodeState)  # noqa: S101
    yield f"two states of node '{left.node}'; `expect.unchanged` compares them"
    found = StateDiff.between(left, right, CHANGES_AT_REST)
    # The line above counts towards `_MOST_LINES` too.
    yield from (
        found.render(_MOST_LINES - 1) or "only values that change on an idle node differ"
    ).split("\n")


def _field_lines(left: object, right: object) -> Iterator[str]:
    assert dataclasses.is_dataclass(left)  # noqa: S101 - the caller has checked this
    fields = [each.name for each in dataclasses.fields(left) if each.compare]
    differing = [name for name in fields if getattr(left, name) != getattr(right, name)]
    title = getattr(left, "name", None)
    of = f" '{title}'" if isinstance(title, str) and "name" not in differing else ""
    kind = type(left).__name__
    yield f"{kind}{of}: {len(differing)} of {len(fields)} fields differ"
    for name in differing:
        yield f"  {name}: {_short(getattr(left, name))} == {_short(getattr(right, name))}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
