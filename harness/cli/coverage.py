"""`harness coverage`: reports which lines of shell code ran in unit tests and in machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.shell.coverage_data import combine, report

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `coverage` to the commands of `harness`."""
    parser = commands.add_parser("coverage")
    parser.add_argument(
        "data",
        nargs="*",
        type=Path,
        default=[Path(".coverage.shell")],
        metavar="FILE",
        help="the file that 'pytest --shell-cov' wrote (default: .coverage.shell)",
    )
    parser.add_argument("--html", type=Path, metavar="DIR", help="write an HTML report")
    parser.add_argument("--lcov", type=Path, metavar="FILE", help="also write an lcov tracefile")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a table of the scripts, and write the requested files."""
    print(report(combine(arguments.data), html=arguments.html, lcov=arguments.lcov), end="")
    return 0
