"""Parses the words after `--` on a command line, such as a command to be run in a machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterable

_END_OF_OPTIONS = "--"
_WORDS = "argv"


def add_command_words(parser: argparse.ArgumentParser, *, metavar: str, about: str) -> None:
    """Let a command accept words after `--`, and store the words as `argv`; `about` is the help text."""
    parser.add_argument(_WORDS, nargs="*", default=[], metavar=metavar, help=about)


class CommandParser(argparse.ArgumentParser):
    """Parses a command line with options in any place, but keeps the words after `--` unparsed.

    Before Python 3.12.7, argparse refuses words after `--` if an option follows a positional
    argument.
    """

    @override
    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        words = list(args or ())
        if self.get_default(_WORDS) is None or _END_OF_OPTIONS not in words:
            return super().parse_known_args(words, namespace)
        at = words.index(_END_OF_OPTIONS)
        parsed, unknown = super().parse_known_args(words[:at], namespace)
        setattr(parsed, _WORDS, [*getattr(parsed, _WORDS), *words[at + 1 :]])
        return parsed, unknown
