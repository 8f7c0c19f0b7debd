"""`harness report`: merges the reports of the shards of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import naming
from harness.merging.merge import SUMMARY, merge

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("report")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    merging = actions.add_parser(
        "merge",
        help="merge JUnit, Allure, durations, coverage of shell code and benchmarks of all shards; "
        "a set with gaps or overlaps is refused",
    )
    merging.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="the folder that `pytest --report-dir` wrote for each shard, or a folder of such folders",
    )
    merging.add_argument(
        "--to",
        type=Path,
        default=Path("merged"),
        metavar="DIR",
        help="the folder for the merged reports (default: %(default)s)",
    )
    merging.add_argument(
        "--partial",
        action="store_true",
        help="merge an incomplete set too, and say in the summary what is missing",
    )
    merging.set_defaults(run=_merge)


def _merge(arguments: argparse.Namespace) -> int:
    with naming(arguments.to):
        merged = merge(
            arguments.folders, arguments.to, is_partial=arguments.partial, root=Path.cwd()
        )
    print((arguments.to / SUMMARY).read_text(encoding="utf-8"), end="")
    if merged.problems or merged.bad_ends:
        return 2
    return 1 if merged.failed else 0
