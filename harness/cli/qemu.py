"""`harness qemu`: unpacks a QEMU that is newer than the host's QEMU."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from harness.cli.options import add_json_option, settings_of
from harness.machine.qemu.debian_sid_qemu import ensure_sid_qemu
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("qemu")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    sid = actions.add_parser(
        "sid", help="unpack the QEMU of Debian sid into the cache, and print its path"
    )
    sid.add_argument(
        "--refresh",
        action="store_true",
        help="unpack the current version even if the cache has an earlier version",
    )
    add_json_option(sid)
    sid.set_defaults(run=_sid)


def _sid(arguments: argparse.Namespace) -> int:
    found = ensure_sid_qemu(
        settings_of(arguments).cache, LocalRunner(), refresh=arguments.refresh, report=_report
    )
    if arguments.json:
        print(json.dumps({"program": str(found.program), "version": found.version}, indent=2))
    else:
        print(found.program)
    return 0


def _report(message: str) -> None:
    print(f"[qemu] {message}", file=sys.stderr, flush=True)
