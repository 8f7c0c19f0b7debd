"""Reference pages that list the options of commands."""

from __future__ import annotations

import argparse

from harness.reference.option_pages import _commands, arguments, pytest_options


def a_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tool")
    commands = parser.add_subparsers()
    outer = commands.add_parser("outer", help="all of it")
    outer.add_argument("file", metavar="FILE")
    outer.add_argument("-k", "--kind", choices=["a", "b"], default="a", help="sort (default: a)")
    outer.add_argument("--known")
    outer.add_argument("--needed", required=True, help="what_it_needs")
    inner = outer.add_subparsers().add_parser("inner", description="a part")
    inner.add_argument("--deep", type=int, default=0, help="levels")
    return parser


def test_each_argument_of_each_command_is_listed() -> None:
    text = "\n".join(_commands(a_parser(), {"--known": "of pytest"}))

    rows = [line for line in text.splitlines() if line.startswith(("###", "| `"))]
    assert rows == [
        "### `tool outer`",
        "| `FILE` | required |  |",
        "| `--kind` | `a` | sort; one of `a`, `b` |",
        "| `--known` | none | of pytest |",
        "| `--needed` | required | `what_it_needs` |",
        "### `tool outer FILE inner`",
        "| `--deep` | `0` | levels |",
    ]
    assert "All of it." in text
    assert list(arguments(argparse.ArgumentParser(), {})) == []


def test_options_and_settings_that_a_pytest_hook_adds_are_recorded_in_order() -> None:
    def add(parser: object) -> None:
        group = parser.getgroup("mine")  # type: ignore[attr-defined]  # as pytest's
        group.addoption("--one", help="first (default: 1)", default=1, choices=[1, 2])
        group.addoption("-t", "--two", help="second")
        parser.addini("three", "third")  # type: ignore[attr-defined]  # as pytest's

    options, settings = pytest_options(add)

    assert [option.row for option in options] == [
        ("`--one`", "`1`", "first; one of `1`, `2`"),
        ("`-t, --two`", "none", "second"),
    ]
    assert settings == [("three", "third")]
