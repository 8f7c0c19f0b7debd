"""`harness checkpoints`: the states of machines that clones begin from."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from typing import TYPE_CHECKING

from harness.cli.columns import print_columns
from harness.cli.options import settings_of
from harness.cli.removals import print_removals
from harness.machine.checkpoint import CheckpointStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.cli.options import Commands
    from harness.machine.checkpoint import CheckpointEvent
    from harness.machine.sealed import CheckpointInfo

_KEY_DIGITS = 12


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("checkpoints", help="states of machines that clones begin from")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list them")
    verify = actions.add_parser("verify", help="read every byte of each")
    gc = actions.add_parser(
        "gc", help="remove those least recently used, and what killed runs left"
    )
    limit = gc.add_mutually_exclusive_group()
    limit.add_argument("--limit-mib", type=_mib, metavar="MIB")
    limit.add_argument("--all", action="store_const", const=0, dest="limit_mib")
    for action, run in ((listing, _list), (verify, _verify), (gc, _collect)):
        action.add_argument("--json", action="store_true")
        action.set_defaults(run=run)


def _mib(word: str) -> int:
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(
            f"'{word}' is no size; give a whole number of MiB, 0 or more."
        )
    return int(word)


def show_event(event: CheckpointEvent) -> None:
    """Print what happens to a checkpoint, for people, beside the command's own output."""
    print(
        f"[{event.checkpoint}] {event.stage.value}: {event.message}", file=sys.stderr, flush=True
    )


def _store(arguments: argparse.Namespace) -> CheckpointStore:
    settings = settings_of(arguments)
    return CheckpointStore(settings.checkpoint_store, limit_mib=settings.checkpoint_limit_mib)


def _list(arguments: argparse.Namespace) -> int:
    found = _store(arguments).ls()
    if arguments.json:
        _print_json(_facts(info) for info in found)
        return 0
    now = dt.datetime.now(tz=dt.timezone.utc)
    print_columns(
        ("NAME", "KEY", "PARENT", "MIB", "LAST USED", "IN USE"),
        [
            (
                info.name,
                info.key[:_KEY_DIGITS],
                info.parent or "-",
                f"{info.size_mib:.0f}",
                f"{_age(now - info.last_used)} ago",
                "yes" if info.is_in_use else "no",
            )
            for info in found
        ],
    )
    _complain(found)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    found = _store(arguments).verify()
    if arguments.json:
        _print_json(_facts(info) for info in found)
    else:
        for info in found:
            if info.trouble is None:
                print(f"{info.name} {info.key[:_KEY_DIGITS]} is what was published.")
        _complain(found)
    return 0 if all(info.trouble is None for info in found) else 2


def _collect(arguments: argparse.Namespace) -> int:
    removals = _store(arguments).gc(arguments.limit_mib)
    print_removals(removals, as_json=arguments.json)
    return 0


def _facts(info: CheckpointInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "key": info.key,
        "folder": str(info.folder),
        "parent": info.parent,
        "size_mib": round(info.size_mib, 1),
        "created": info.created,
        "last_used": info.last_used.isoformat(timespec="seconds"),
        "in_use": info.is_in_use,
        "trouble": info.trouble,
    }


def _complain(found: Iterable[CheckpointInfo]) -> None:
    for info in found:
        if info.trouble is not None:
            print(f"harness: {info.trouble}", file=sys.stderr)


def _print_json(values: Iterable[dict[str, object]]) -> None:
    print(json.dumps(list(values), indent=2))


def _age(span: dt.timedelta) -> str:
    seconds = max(0, int(span.total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
