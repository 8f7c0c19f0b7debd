"""The ids of examples, which examples run, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.plugin.specs.items import SpecFileCollector, SpecItem, _Tree, in_file_order
from harness.shell.spec.spec_file import Case, Group


def _example(file: SpecFileCollector, number: int) -> SpecItem:
    item = SpecItem.__new__(SpecItem)
    item.file = file
    item.case = SimpleNamespace(number=number)  # type: ignore[assignment]  # only `number` is used
    return item


def _python_test() -> pytest.Item:
    return pytest.Function.__new__(pytest.Function)


def test_example_is_selected_by_tags_and_names_and_focus() -> None:
    rows: list[tuple[set[str], bool, dict[str, Any], dict[str, Any], bool]] = [
        (set(), False, {}, {}, True),
        # An example needs a tag of the command line or of the project.
        ({"a"}, False, {"tags": ("b",)}, {"all_tags": ("b:1",)}, True),
        ({"a"}, False, {"tags": ("b",)}, {"all_tags": ("a",)}, True),
        ({"a"}, False, {"tags": ("b",)}, {"all_tags": ("c",)}, False),
        ({"b:2"}, False, {}, {"all_tags": ("b:1", "b:3")}, False),
        # A pattern matches the name of an example, or the name of any group that contains the example.
        (set(), False, {"examples": ("no", "out*")}, {}, True),
        (set(), False, {"examples": ("inner",)}, {}, True),
        (set(), False, {"examples": ("exa?ple",)}, {}, True),
        (set(), False, {"examples": ("other",)}, {}, False),
        ({"a"}, False, {"examples": ("outer",)}, {}, False),
        # A focused example passes any filter; in a focused run, no other example runs.
        ({"a"}, False, {"examples": ("other",)}, {"is_focused": True}, True),
        (set(), True, {}, {"is_focused": True}, True),
        (set(), True, {}, {}, False),
        (set(), False, {"focus": True}, {}, False),
    ]
    for tags, focus, project, case, is_wanted in rows:
        options = SimpleNamespace(**{"tags": (), "examples": (), "focus": False, **project})
        file: Any = SimpleNamespace(project=SimpleNamespace(options=options))
        item = _example(file, 0)
        groups = [SimpleNamespace(name=name) for name in ("outer", "inner")]
        usual = {"name": "example", "groups": groups, "all_tags": (), "is_focused": False}
        item.case = SimpleNamespace(**{**usual, **case})  # type: ignore[assignment]

        assert item.is_wanted(set(tags), focus) is is_wanted, tags


def test_ids_of_examples_are_unique_and_in_the_order_of_the_file() -> None:
    outer, inner, again = (
        Group(name=name, begin=line) for name, line in (("a::b", 1), ("in", 9), ("a::b", 20))
    )
    blocks = [
        ((outer,), "same"), ((outer,), "same"), ((outer, inner), "same"), ((outer,), ""),
        ((again,), "same"), ((), "\x1b"), ((outer,), "late"),
    ]  # fmt: skip
    tree = _Tree()
    for number, (groups, name) in enumerate(blocks):
        tree.add(Case(number=number, name=name, groups=groups, begin=number + 30, end=40))

    assert [(id_, case.number) for id_, case in tree.cases()] == [
        ("a: :b::same", 0),
        ("a: :b::same <line 31>", 1),
        ("a: :b::in::same", 2),
        ("a: :b::<unnamed>", 3),
        ("a: :b <line 20>::same", 4),
        (r"\x1b", 5),
        ("a: :b <line 1>::late", 6),
    ]


def test_examples_of_a_file_stay_together_in_the_order_of_the_file() -> None:
    first, second = (SpecFileCollector.__new__(SpecFileCollector) for _ in range(2))
    a0, a1, a2 = (_example(first, number) for number in range(3))
    b0, b1 = (_example(second, number) for number in range(2))
    python = _python_test()

    assert in_file_order([b1, a2, python, a0, b0, a1]) == [b0, b1, a0, a1, a2, python]


def test_python_tests_keep_their_order_in_a_run_with_spec_files() -> None:
    tests = [_python_test() for _ in range(5)]

    assert in_file_order(tests) == tests
