"""The command `harness`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING, Protocol

from harness.errors import ExpectationError, HarnessError
from harness.provisioning.command import CommandError
from harness.provisioning.wait import WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.cli.options import Commands

#: The module of each command. Only that of the command in question is loaded: a shell in a clone
#: starts in less time than all of them load.
_MODULES = {
    "bench": "bench",
    "checkpoints": "checkpoints",
    "console": "shell",
    "coverage": "coverage",
    "demo": "demo",
    "doctor": "doctor",
    "gc": "machines",
    "gpu": "gpus",
    "image": "images",
    "init": "init",
    "logs": "machines",
    "migrate": "migrate",
    "node": "existing_nodes",
    "payload": "payload",
    "ps": "machines",
    "qemu": "qemu",
    "replay": "replay",
    "report": "report",
    "resume": "resume",
    "shell": "shell",
    "ssh": "shell",
    "store": "store",
    "timeline": "timeline",
}
#: As a shell reports a program that SIGPIPE ended.
_BROKEN_PIPE = 141


class _CommandModule(Protocol):
    def add_parser(self, commands: Commands) -> None: ...


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the whole command line, or of one command of it."""
    parser = argparse.ArgumentParser(
        prog="harness", description="Test harness for GPU-node provisioning."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    wanted = _MODULES.values() if command is None else [_MODULES[command]]
    for name in dict.fromkeys(wanted):
        module: _CommandModule = importlib.import_module(f"harness.cli.{name}")
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code.

    1 means that a node is not as expected; 2 that the harness could not check it, also because of
    bad input or a missing requirement; 130 that a person interrupted it. `harness shell` and
    `harness ssh` return the exit code of the command in the guest.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = build_parser(words[0] if words and words[0] in _MODULES else None).parse_args(
        words
    )
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has enough. Python would complain once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _BROKEN_PIPE
    except ExpectationError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 1
    except (HarnessError, CommandError, WaitTimeoutError, OSError) as error:
        print(f"harness: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "harness: interrupted; machines have ended and their files are removed.",
            file=sys.stderr,
        )
        return 130
    return code
