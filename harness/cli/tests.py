"""`harness rerun`, and `harness shell` in the machine of a test; both commands run pytest."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, NoReturn

from harness.cli.command_words import add_command_words
from harness.errors import BadInputError
from harness.settings import MachineShell, MachineStart

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands
    from harness.provisioning.command import Argv

_STARTS = [each.value for each in (MachineStart.CLONE, MachineStart.COLD)]


def add_parser(commands: Commands) -> None:
    """Add `rerun` to the commands of `harness`."""
    parser = commands.add_parser("rerun")
    parser.add_argument(
        "test", metavar="NODEID", help="the test's node id, as pytest's summary shows it"
    )
    parser.add_argument(
        "--from",
        dest="start",
        choices=_STARTS,
        default=MachineStart.CLONE.value,
        help="start the test's nodes from the saved state of their image, or from a cold boot "
        "(default: %(default)s)",
    )
    add_command_words(parser, metavar="OPTION", about="options of pytest, after --")
    parser.set_defaults(run=_rerun)


def _rerun(arguments: argparse.Namespace) -> int:
    become_pytest(arguments.test, f"--machine-start={arguments.start}", *arguments.argv)


def shell_of_test(node_id: str, argv: Argv = ()) -> NoReturn:
    """Replace this process by pytest, which opens a shell or runs a command in a test's machine.

    pytest starts the test's first machine, but does not run the test. pytest ends with the exit
    code of the command in the machine.
    """
    command = [f"--machine-shell-command={shlex.join(argv)}"] if argv else []
    become_pytest(node_id, f"--machine-shell={MachineShell.INSTEAD.value}", *command, "-rs")


def become_pytest(node_id: str, *options: str) -> NoReturn:
    """Replace this process by pytest, which runs one test and gets the terminal.

    Raises BadInputError for an empty node id, because pytest would then run all tests.
    """
    if not node_id:
        raise BadInputError(
            "'' is not a test; give the node id of one test, as pytest's summary shows it.",
            source="NODEID",
        )
    argv = [sys.executable, "-m", "pytest", node_id, "-n", "0", *options]
    os.execv(argv[0], argv)  # noqa: S606 - pytest replaces this process
