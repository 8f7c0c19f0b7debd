"""Renders the reference pages about the options of pytest and of the commands."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from typing import TYPE_CHECKING

from harness import plugin
from harness.cli import build_parser, main
from harness.plugin import select
from harness.plugin.specs import options as spec_options
from harness.reference.markdown import code, page, prose, sentence, table
from harness.reference.shapes import show_default

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest import Parser  # noqa: PT013 - a type alone


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """An option of pytest or of a command, read from the parser of options."""

    name: str
    default: str
    meaning: str

    @property
    def row(self) -> tuple[str, str, str]:
        return code(self.name), self.default, prose(self.meaning)


class _RecordingParser:
    """Replaces pytest's option parser and the parser's groups, and records the added options."""

    def __init__(self) -> None:
        self.options: list[Option] = []
        self.settings: list[tuple[str, str]] = []

    def getgroup(self, *_words: str) -> _RecordingParser:
        return self

    def addoption(self, *names: str, **attributes: object) -> None:
        words = str(attributes["help"]).partition(" (default")[0]
        choices = attributes.get("choices")
        self.options.append(
            Option(
                name=", ".join(names),
                default=show_default(attributes.get("default")),
                meaning=_with_choices(words, choices),  # type: ignore[arg-type]  # as argparse has it
            )
        )

    def addini(self, name: str, help: str, **_attributes: object) -> None:  # noqa: A002
        self.settings.append((name, help))


def pytest_options(
    add: Callable[[Parser], None] = plugin.pytest_addoption,
) -> tuple[list[Option], list[tuple[str, str]]]:
    """Return the options and the ini settings that the hook `add` adds to pytest."""
    parser = _RecordingParser()
    add(parser)  # type: ignore[arg-type]  # all of a parser that a hook uses
    return parser.options, parser.settings


def _with_choices(words: str, choices: Iterable[object] | None) -> str:
    if not choices:
        return words
    return f"{words}; one of {', '.join(code(str(choice)) for choice in choices)}"


def pytest_page() -> str:
    header = ("Option", "Default", "Meaning")
    options, settings = pytest_options()
    shell_options, shell_settings = pytest_options(spec_options.pytest_addoption)
    markers = (marker.partition(":") for marker in select.MARKERS)
    return page(
        "Options of pytest",
        "`pytest --help` prints the same options.\n",
        "## Nodes and machines\n",
        table(header, (option.row for option in options)),
        "## Shell code\n",
        table(header, (option.row for option in shell_options)),
        "## Settings in `pyproject.toml` or `pytest.ini`\n",
        table(
            ("Setting", "Meaning"),
            ((code(name), prose(words)) for name, words in [*settings, *shell_settings]),
        ),
        "## Markers\n",
        table(("Marker", "Meaning"), ((code(name), words) for name, _, words in markers)),
    )


def command_page(dev_commands: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page about commands.

    `dev_commands` are the commands of `./dev`, which only a checkout has.
    """
    known = {option.name: option.meaning for option in pytest_options()[0]}
    codes = (inspect.getdoc(main) or "").split("\n\n")[1:]
    return page(
        "Commands",
        "`COMMAND --help` prints the same text about a command.\n",
        "## The command `harness`\n",
        f"Exit codes: {' '.join(' '.join(codes).split())}\n",
        *_commands(build_parser(), known),
        *(
            ["## The command `./dev`\n", table(("Command", "Meaning"), dev_commands)]
            if dev_commands
            else []
        ),
    )


def _commands(parser: argparse.ArgumentParser, known: Mapping[str, str]) -> Iterator[str]:
    for words, child in children(parser):
        yield f"### `{child.prog}`\n"
        yield f"{sentence(words)}\n"
        if rows := list(arguments(child, known)):
            yield table(("Argument", "Default", "Meaning"), rows)
        yield from _commands(child, known)


def children(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the help text and the parser of each subcommand of a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words = {entry.dest: entry.help for entry in action._choices_actions}
            for name, child in action.choices.items():
                yield words.get(name) or child.description or "", child


def arguments(
    parser: argparse.ArgumentParser, known: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and meaning of each argument.

    `known` contains the meanings of arguments that have no help text.
    """
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        name = (
            action.option_strings[-1]
            if action.option_strings
            else str(action.metavar or action.dest)
        )
        default = "required" if action.required else show_default(action.default)
        words = (action.help or known.get(name, "")).partition(" (default")[0]
        yield code(name), default, prose(_with_choices(words, action.choices))
