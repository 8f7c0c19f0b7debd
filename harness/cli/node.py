"""`harness node`: look at a node that is there already, and judge it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from harness.evidence import Evidence
from harness.expect.node import (
    NODE_EXPECTATIONS,
    Verdict,
    VerdictState,
    judge_node,
    node_expectations,
)
from harness.lab.existing import ExistingNode
from harness.machine.node import URI_FORMS, NodeAddress
from harness.settings import Settings

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands

_COLOURS = {
    VerdictState.MET: "green",
    VerdictState.NOT_MET: "red",
    VerdictState.UNKNOWN: "yellow",
}


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("node", help="nodes that exist: judge one, and change nothing")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    judge = actions.add_parser(
        "judge", help="look at a node, and say what is as expected of a GPU node and what is not"
    )
    judge.add_argument(
        "uri", nargs="?", default="local:", metavar="URI", help=f"{URI_FORMS} (default: this host)"
    )
    judge.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="an expectation to judge, in place of all; may be repeated: "
        f"{', '.join(each.name for each in NODE_EXPECTATIONS)}",
    )
    judge.add_argument(
        "--evidence-dir",
        type=Path,
        default=Settings().evidence_folder,
        metavar="DIR",
        help="where the evidence is kept, in the folder node/HOST (default: %(default)s)",
    )
    judge.add_argument("--json", action="store_true")
    judge.set_defaults(run=_judge)


def _judge(arguments: argparse.Namespace) -> int:
    expectations = node_expectations(arguments.only, source="--only")
    node = ExistingNode(NodeAddress.from_uri(arguments.uri, source="URI"))
    folder = arguments.evidence_dir.absolute() / "node" / node.name
    with tempfile.TemporaryDirectory(prefix="harness-node-") as place:
        # What was kept of the node stays until there is something to take its place.
        kept = node.collect(Path(place) / node.name).copy_to(folder)
    verdicts = judge_node(Evidence(kept), expectations)
    if arguments.json:
        print(json.dumps({"evidence": str(folder), "verdicts": _to_json(verdicts)}, indent=2))
    else:
        _show(verdicts, folder)
    return exit_code_of(verdicts)


def exit_code_of(verdicts: list[Verdict]) -> int:
    """Return 1 where the node is not as expected, else 2 where that could not be told."""
    states = {verdict.state for verdict in verdicts}
    if VerdictState.NOT_MET in states:
        return 1
    return 2 if VerdictState.UNKNOWN in states else 0


def _to_json(verdicts: list[Verdict]) -> list[dict[str, str]]:
    return [
        {
            "name": verdict.expectation.name,
            "expectation": verdict.expectation.words,
            "verdict": verdict.state.value,
            "sentence": verdict.sentence,
        }
        for verdict in verdicts
    ]


def _show(verdicts: list[Verdict], folder: Path) -> None:
    table = Table("", "expectation", "verdict", Column("what was seen", overflow="fold"))
    for verdict in verdicts:
        colour = _COLOURS[verdict.state]
        table.add_row(
            verdict.expectation.name,
            verdict.expectation.words,
            f"[{colour}]{verdict.state.value}[/]",
            escape(verdict.sentence),
        )
    Console().print(table)
    print(f"The evidence lies in '{folder}'.")
