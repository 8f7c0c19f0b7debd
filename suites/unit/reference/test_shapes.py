"""What reference pages say of fields."""

from __future__ import annotations

import pytest

from harness.reference.shapes import show_default


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "none"),
        ((), "none"),
        ("", "none"),
        (False, "`false`"),
        (0, "`0`"),
        (0.0, "`0`"),
        (1.5, "`1.5`"),
        (("a", "b"), "`a`, `b`"),
    ],
)
def test_default_is_shown_also_if_it_is_false_or_0(value: object, shown: str) -> None:
    assert show_default(value) == shown
