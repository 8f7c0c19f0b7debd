"""Prints a spec as a pytest module: `harness migrate SPEC`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.provisioning.command import LocalRunner
from harness.shell.migrate import migrate
from harness.shell.rows import ShellRowEvaluator

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `migrate` to the commands of `harness`."""
    parser = subparsers.add_parser("migrate", help="print a *_spec.sh as a pytest module")
    parser.add_argument("spec", type=Path, help="the spec file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the module."""
    spec: Path = arguments.spec
    text = spec.read_text(errors="surrogateescape")
    print(migrate(str(spec), text, ShellRowEvaluator(LocalRunner(), str(spec))), end="")
    return 0
