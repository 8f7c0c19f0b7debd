"""Checks that a command is a list of words, before the command is sent to a machine."""

from __future__ import annotations

from collections.abc import Iterable

from harness.errors import BadInputError
from harness.provisioning.command import argv_refusal


def check_commands(commands: object, *, source: str, key: str) -> None:
    """Raise BadInputError, which names `source` and `key`, unless `commands` is a list of lists of words."""
    if isinstance(commands, str) or not isinstance(commands, Iterable):
        raise BadInputError(
            f"{commands!r} is not a list of commands; write each command as a list of words, such as "
            "[['systemctl', 'start', 'x']].",
            source=source,
            key=key,
        )
    for index, argv in enumerate(commands):
        check_argv(argv, source=source, key=f"{key}[{index}]")


def check_argv(argv: object, *, source: str, key: str) -> None:
    """Raise BadInputError, which names `source` and `key`, unless `argv` is a list of words."""
    refusal = argv_refusal(argv)
    if refusal is not None:
        raise BadInputError(refusal, source=source, key=key)
