"""`harness payload`: builds the zipapp that provisions a node after being copied to the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.payload import build_payload, write_payload
from harness.settings import Settings

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("payload")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="build the zipapp and write it to the cache")
    build.add_argument("--print-path", action="store_true", help="print only the zipapp's path")
    build.set_defaults(run=_build)


def _build(arguments: argparse.Namespace) -> int:
    payload = build_payload()
    path = write_payload(payload, Settings().cache / "payloads")
    print(path if arguments.print_path else f"wrote {path} (sha256 {payload.digest})")
    return 0
