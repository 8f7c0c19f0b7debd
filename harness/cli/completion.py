"""`harness completion`: prints a shell script that completes the commands and options of `harness`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import shtab

from harness.cli import build_parser

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `completion` to the commands of `harness`."""
    parser = commands.add_parser("completion")
    parser.add_argument(
        "shell", choices=["bash", "zsh"], help="the shell that will read the output"
    )
    parser.set_defaults(run=_print)


def _print(arguments: argparse.Namespace) -> int:
    print(shtab.complete(build_parser(), arguments.shell))
    return 0
