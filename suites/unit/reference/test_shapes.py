"""Reference pages that list the fields of a shape."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from harness.provisioner.yaml_file import ProvisionerFile
from harness.reference.shapes import data_file_keys, field_rows, show_default


@dataclass
class Shape:
    """A shape with a docstring below some of its fields."""

    first: int
    """What it_is for."""
    second: list[int] = field(default_factory=list)

    def method(self) -> None:
        """Not the docstring of a field."""

    third: str = "x"
    """The last
    of them."""


def test_field_rows_show_default_and_docstring_of_each_field() -> None:
    assert field_rows(Shape) == [
        ("`first`", "required", "What `it_is` for."),
        ("`second`", "none", ""),
        ("`third`", "`x`", "The last\nof them."),
    ]


def test_nested_keys_are_listed_with_their_full_path() -> None:
    keys = [key for key, _, _ in data_file_keys(ProvisionerFile)]

    assert len(keys) == len(set(keys))
    assert {"`outcome.file.path`", "`outcome.log.path`"} <= set(keys)


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
def test_default_is_shown_even_if_it_is_false_or_0(value: object, shown: str) -> None:
    assert show_default(value) == shown
