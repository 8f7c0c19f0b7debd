"""`harness completion`: prints what completes the commands and options of `harness` in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("completion")
    parser.add_argument("shell", choices=["bash", "zsh"], help="the shell that reads it")
    parser.set_defaults(run=_print)


def _print(arguments: argparse.Namespace) -> int:
    import shtab  # noqa: PLC0415 - the parser of all commands is built for this one alone

    from harness.cli import build_parser  # noqa: PLC0415 - it loads this module

    print(shtab.complete(build_parser(), arguments.shell))
    return 0
