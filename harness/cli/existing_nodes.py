"""`harness node`: checks a node that exists already, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from harness.cli.options import add_json_option
from harness.evidence import Evidence
from harness.expect.every_node import (
    NODE_EXPECTATIONS,
    NodeVerdict,
    VerdictState,
    evidence_of,
    judge_node,
    node_expectations,
)
from harness.lab.existing_node import ExistingNode
from harness.lease import temporary_folder
from harness.machine.existing_node import URI_FORMS, NodeAddress
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
    parser = commands.add_parser("node")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    judge = actions.add_parser(
        "judge", help="collect evidence of a node, and check the expectations of a GPU node"
    )
    judge.add_argument(
        "uri", nargs="?", default="local:", metavar="URI", help=f"{URI_FORMS} (default: this host)"
    )
    judge.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="check only this expectation (default: all of them); may be repeated; an expectation of an "
        f"installed package, or one of: {', '.join(each.name for each in NODE_EXPECTATIONS)}",
    )
    judge.add_argument(
        "--evidence-dir",
        type=Path,
        default=Settings().evidence_folder,
        metavar="DIR",
        help="write the evidence into the folder node/HOST of this folder (default: %(default)s)",
    )
    judge.add_argument(
        "--nvidia-smi",
        action="store_true",
        help="also run `nvidia-smi -q` on the node, and check its report; nvidia-smi makes "
        "the node load the driver's kernel module",
    )
    add_json_option(judge)
    judge.set_defaults(run=_judge)


def _judge(arguments: argparse.Namespace) -> int:
    expectations = node_expectations(
        arguments.only, source="--only", asks_driver=arguments.nvidia_smi
    )
    node = ExistingNode(NodeAddress.from_uri(arguments.uri, source="URI"))
    folder = arguments.evidence_dir.absolute() / "node" / node.name
    with temporary_folder("harness-nodes") as place:
        # Earlier evidence stays in the folder until newer evidence replaces it.
        evidence = node.collect(place / node.name, additional=evidence_of(expectations))
        kept = evidence.copy_to(folder)
    verdicts = judge_node(Evidence(kept), expectations)
    if arguments.json:
        print(json.dumps({"evidence": str(folder), "verdicts": _to_json(verdicts)}, indent=2))
    else:
        _show(verdicts, folder)
    return exit_code_of(verdicts)


def exit_code_of(verdicts: list[NodeVerdict]) -> int:
    """Return 1 if an expectation is not met, else 2 if an expectation could not be checked, else 0."""
    states = {verdict.state for verdict in verdicts}
    if VerdictState.NOT_MET in states:
        return 1
    return 2 if VerdictState.UNKNOWN in states else 0


def _to_json(verdicts: list[NodeVerdict]) -> list[dict[str, str]]:
    return [
        {
            "name": verdict.expectation.name,
            "expectation": verdict.expectation.words,
            "verdict": verdict.state.value,
            "sentence": verdict.sentence,
        }
        for verdict in verdicts
    ]


def _show(verdicts: list[NodeVerdict], folder: Path) -> None:
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
    print(f"The evidence is in '{folder}'.")
