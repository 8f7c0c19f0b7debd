"""`harness checkpoints`: lists, verifies and removes saved states of machines."""

from __future__ import annotations

import datetime as dt
import sys
from typing import TYPE_CHECKING

from harness.cli.artifacts import (
    print_artifacts_json,
    print_damage,
    print_removals,
    print_verification,
    short_key,
)
from harness.cli.columns import duration, print_columns
from harness.cli.options import add_json_option, settings_of, whole_number
from harness.errors import BadInputError, listed
from harness.machine.checkpoint.store import CheckpointStore
from harness.settings import Settings

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands

_KEY_DIGITS = 12


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("checkpoints")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list the checkpoints in the cache")
    verify = actions.add_parser("verify", help="compare every file with its digest")
    gc = actions.add_parser(
        "gc", help="remove the least recently used checkpoints and the files of killed runs"
    )
    rm = actions.add_parser(
        "rm",
        help="remove the named checkpoints, and all checkpoints made from these; a checkpoint that a "
        "machine needs stays",
    )
    rm.add_argument(
        "checkpoint",
        nargs="+",
        metavar="NAME|KEY",
        help="a name, or the start of a key, as `harness checkpoints ls` shows them",
    )
    limit = gc.add_mutually_exclusive_group()
    limit.add_argument(
        "--limit-mib",
        type=whole_number,
        metavar="MIB",
        help=f"disk space that all checkpoints together may take (default: {Settings().checkpoint_limit_mib})",
    )
    limit.add_argument(
        "--all",
        action="store_const",
        const=0,
        dest="limit_mib",
        help="remove every checkpoint that is not in use",
    )
    for action, run in ((listing, _list), (verify, _verify), (gc, _collect), (rm, _remove)):
        add_json_option(action)
        action.set_defaults(run=run)


def _store(arguments: argparse.Namespace) -> CheckpointStore:
    settings = settings_of(arguments)
    return CheckpointStore(settings.checkpoint_store, limit_mib=settings.checkpoint_limit_mib)


def _list(arguments: argparse.Namespace) -> int:
    checkpoints = _store(arguments).ls()
    if arguments.json:
        print_artifacts_json(checkpoints)
        return 0
    now = dt.datetime.now(tz=dt.timezone.utc)
    print_columns(
        ("NAME", "KEY", "PARENT", "MIB", "LAST USED", "IN USE"),
        [
            (
                checkpoint.name,
                short_key(checkpoint, _KEY_DIGITS),
                checkpoint.parent or "-",
                f"{checkpoint.size_mib:.0f}",
                f"{duration((now - checkpoint.last_used).total_seconds())} ago",
                "yes" if checkpoint.is_in_use else "no",
            )
            for checkpoint in checkpoints
        ],
    )
    print_damage(checkpoints)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    return print_verification(
        _store(arguments).verify(), key_digits=_KEY_DIGITS, as_json=arguments.json
    )


def _collect(arguments: argparse.Namespace) -> int:
    removals = _store(arguments).gc(arguments.limit_mib)
    print_removals(removals, as_json=arguments.json)
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    """Remove the named checkpoints; return 2 if a named checkpoint is in use."""
    store = _store(arguments)
    checkpoints = store.ls()
    chosen = []
    for word in arguments.checkpoint:
        found = [
            each.folder
            for each in checkpoints
            if each.name == word or (word and each.key.startswith(word))
        ]
        if not found:
            raise BadInputError(
                f"There is no checkpoint with the name or key '{word}'; the known checkpoints are "
                f"{listed(sorted({each.name for each in checkpoints}))}.",
                source="NAME|KEY",
            )
        chosen += found
    removals = store.remove(chosen)
    print_removals(removals, as_json=arguments.json)
    left = [folder for folder in chosen if folder.exists()]
    for folder in left:
        print(
            f"harness: '{folder.name}' is kept, since a machine uses this checkpoint or a checkpoint made from "
            "it; `harness ps` lists machines.",
            file=sys.stderr,
        )
    return 2 if left else 0
