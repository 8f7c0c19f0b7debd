"""The command `harness`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from harness.cli import (
    bench,
    checkpoints,
    coverage,
    demo,
    doctor,
    existing_nodes,
    gpus,
    images,
    init,
    migrate,
    payload,
    qemu,
)
from harness.errors import ExpectationError, HarnessError
from harness.provisioning.command import CommandError
from harness.provisioning.wait import WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="harness", description="Test harness for GPU-node provisioning."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (
        bench,
        checkpoints,
        coverage,
        demo,
        doctor,
        gpus,
        images,
        init,
        migrate,
        existing_nodes,
        payload,
        qemu,
    ):
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code.

    1 means that a node is not as expected; 2 that the harness could not check it, also because of
    bad input or a missing requirement; 130 that a person interrupted it.
    """
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
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
