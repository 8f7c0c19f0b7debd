"""`harness payload`: the zipapp that travels into machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.payload import build_payload, write_payload
from harness.settings import Settings

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("payload", help="the zipapp that provisions a node")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    build = actions.add_parser("build", help="pack it into the cache")
    build.add_argument("--print-path", action="store_true", help="print nothing but its path")
    build.set_defaults(run=_build)


def _build(arguments: argparse.Namespace) -> int:
    payload = build_payload()
    path = write_payload(payload, Settings().cache / "payloads")
    print(path if arguments.print_path else f"packed {path} (sha256 {payload.digest})")
    return 0
