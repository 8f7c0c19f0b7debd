"""`harness qemu`: a newer QEMU beside the host's own."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from harness.cli.options import settings_of
from harness.machine.sid import ensure_sid_qemu
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("qemu", help="a newer QEMU beside the host's own")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    sid = actions.add_parser(
        "sid", help="unpack that of Debian sid into the cache, and print its program"
    )
    sid.add_argument("--refresh", action="store_true", help="even where the cache has one")
    sid.add_argument("--json", action="store_true")
    sid.set_defaults(run=_sid)


def _sid(arguments: argparse.Namespace) -> int:
    found = ensure_sid_qemu(
        settings_of(arguments).cache, LocalRunner(), refresh=arguments.refresh, tell=_tell
    )
    if arguments.json:
        print(json.dumps({"program": str(found.program), "version": found.version}, indent=2))
    else:
        print(found.program)
    return 0


def _tell(message: str) -> None:
    print(f"[qemu] {message}", file=sys.stderr, flush=True)
