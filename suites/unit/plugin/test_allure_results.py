"""Names, suites, severities and history ids of tests in Allure."""

from __future__ import annotations

import enum
from pathlib import Path

from typing_extensions import override

from harness.plugin.allure_results import (
    history_id,
    severity_of,
    shown_parameters,
    suites_of,
    words_of,
)

ROOT = Path("/checkout")


class Way(enum.Enum):
    """An enum whose members are parameters of a test."""

    COLD = "cold"


class Unnamed:
    """A parameter whose text is Python's default, with a memory address."""


class Untold:
    """A parameter whose `__repr__` raises an exception."""

    @override
    def __repr__(self) -> str:
        raise RuntimeError


def test_title_is_the_first_sentence_of_the_docstring() -> None:
    for docstring, title, description in (
        (None, None, None),
        (
            "One\n    sentence. And more\n    of it.\n\n    Rest.",
            "One sentence",
            "And more\nof it.\n\nRest.",
        ),
        ("Version 6.1 boots: that is all", "Version 6.1 boots: that is all", None),
    ):
        words = words_of(docstring, None)

        assert (words.title, words.description) == (title, description), docstring


def test_title_ends_with_the_parameter_id() -> None:
    assert words_of("A node boots.", "debian-12").title == "A node boots [debian-12]"


def test_allure_suites_of_a_test_follow_from_its_folder_and_file() -> None:
    for node_id, suites in (
        ("suites/e2e/kernel/test_own.py::test_a[x::y/z]", ("suites/e2e", "kernel", "own")),
        ("suites/e2e/test_boot.py::test_a", ("suites/e2e", "boot", None)),
        ("tests/test_boot.py::TestBoot::test_a", ("tests", "boot", "TestBoot")),
        (
            "suites/e2e/shell/deep/a_spec.sh::Group::one",
            ("suites/e2e", "shell", "deep > a_spec > Group"),
        ),
        ("a[b]/c[d].py::test_e[f::g]", ("a[b]", "c[d]", None)),
    ):
        found = suites_of(node_id)

        assert tuple(found.get(name) for name in ("parentSuite", "suite", "subSuite")) == suites, (
            node_id
        )


def test_severity_of_a_test_comes_from_the_innermost_listed_folder() -> None:
    given = {"suites": "minor", "suites/e2e/record": "critical", "suites/e2e": "normal"}
    for severities in (given, dict(reversed(given.items()))):
        assert severity_of("suites/e2e/record/test_a.py", severities) == "critical"
        assert severity_of("suites/e2e/records/test_a.py", severities) == "normal"
        assert severity_of("suites/e2e2/test_a.py", severities) == "minor"
        assert severity_of("tests/test_a.py", severities) is None


def test_parameter_texts_are_the_same_in_each_process_and_checkout() -> None:
    shown = shown_parameters(
        {
            "image": "/checkout/own.qcow2",
            "way": Way.COLD,
            "names": set("hgfedcba"),
            "object": Unnamed(),
            "make": len,
            "count": 1,
            "class": Unnamed,
            "without text": Untold(),
        },
        case="case-7",
        root=ROOT,
    )

    assert shown == {
        "image": "own.qcow2",
        "way": "cold",
        "names": "a, b, c, d, e, f, g, h",
        "object": "case-7",
        "make": "<built-in function len>",
        "count": "1",
        "class": f"<class '{__name__}.Unnamed'>",
        "without text": "case-7",
    }


def test_history_id_does_not_depend_on_the_order_of_parameters() -> None:
    one = history_id("a#b", [("x", "1"), ("y", "2")])

    assert one == history_id("a#b", [("y", "2"), ("x", "1")])
    assert one != history_id("a#b", [("x", "2"), ("y", "1")])
    assert one != history_id("a#c", [("x", "1"), ("y", "2")])
