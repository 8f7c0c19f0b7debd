"""Runs the command `harness`, and loads only the module of the chosen subcommand."""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from typing import TYPE_CHECKING, NamedTuple, Protocol

from typing_extensions import override

from harness.cli.command_words import CommandParser
from harness.cli.late_loading import load_on_use
from harness.cli.output import (
    drop_unwritten_text,
    guarded,
    open_closed_streams,
    print_error,
    print_message,
)
from harness.errors import ExpectationError, HarnessError, RequirementError
from harness.provisioning.command import CommandError
from harness.provisioning.wait import WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.cli.options import Actions, Commands


class _Command(NamedTuple):
    module: str
    help: str


#: The commands, each with its module and its line in `harness --help`. Only the module of the given
#: command is loaded, since loading all modules takes longer than starting a shell in a clone.
_COMMANDS = {
    "bench": _Command("bench", "run a benchmark on this host"),
    "checkpoints": _Command("checkpoints", "list, verify and remove saved states of machines"),
    "completion": _Command(
        "completion", "print a script that completes commands and options in a shell"
    ),
    "console": _Command(
        "shell", "show a running machine's serial console, and type on it; Ctrl-] leaves"
    ),
    "coverage": _Command(
        "coverage", "combine the coverage of shell code from several runs, and report it"
    ),
    "demo": _Command("demo", "bake a driver, boot three nodes in virtual machines, check them"),
    "docs": _Command("docs", "show a page of the documentation, or list them"),
    "doctor": _Command("doctor", "check what machines need on this host"),
    "gc": _Command(
        "machines",
        "list and remove kept machines, folders of killed runs, and old bundles of evidence",
    ),
    "gpu": _Command("gpus", "list the models of GPUs, and the GPUs of this host"),
    "image": _Command("images", "build, fetch, bake, verify and remove images"),
    "init": _Command(
        "init", "write a project with a script, its tests, an image and a CI workflow"
    ),
    "logs": _Command("machines", "print what a running machine's console has printed"),
    "migrate": _Command("migrate", "print a *_spec.sh as a pytest module"),
    "mutate": _Command(
        "mutate", "plant defects in shell scripts, and list the defects that no test notices"
    ),
    "node": _Command("existing_nodes", "check an existing node without changing it"),
    "payload": _Command("payload", "build the zipapp that provisions a node"),
    "ps": _Command("machines", "list the running machines, each with its test"),
    "qemu": _Command(
        "qemu", "unpack a newer QEMU into the cache; the host's QEMU does not change"
    ),
    "replay": _Command("replay", "play the serial console of a test's machine"),
    "report": _Command("report", "merge the reports of the shards of a run"),
    "rerun": _Command("tests", "run one test again, from a saved state or from a cold boot"),
    "resume": _Command(
        "resume", "continue the machine of a failed test, and open a shell or run a command in it"
    ),
    "shell": _Command(
        "shell", "open a shell, or run a command, in a new clone or a running machine"
    ),
    "ssh": _Command("shell", "log into a running machine by SSH"),
    "store": _Command("store", "share images and checkpoints through a registry"),
    "timeline": _Command(
        "timeline", "draw when the work in a test's machine ran, and what each part waited for"
    ),
}
#: The exit code by which a shell reports a program that SIGPIPE ended.
_BROKEN_PIPE = 141
#: The number of new objects between two garbage collections; Python's default is 700.
_GC_THRESHOLD = 50_000


class _CommandModule(Protocol):
    def add_parser(self, commands: Commands) -> None: ...


class _PrintVersion(argparse.Action):
    """Looks up the package's version only if --version is given, unlike argparse's own action."""

    @override
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - slow to load

        print(f"harness {version('gpu-node-harness')}")
        parser.exit()


class _ListedCommands:
    """Adds commands to the parser of `harness`, with the help texts from `_COMMANDS`."""

    def __init__(self, listing: Actions) -> None:
        self._listing = listing

    def add_parser(self, name: str) -> argparse.ArgumentParser:
        return self._listing.add_parser(name, help=_COMMANDS[name].help)


#: The beginning of the RuntimeError's message in which Python before 3.13 reports a symbolic link to
#: itself.
_LOOP = "Symlink loop from "
#: The ends of the messages in which Python and the dynamic loader report that a thread can't start or
#: a module can't load, because memory or a limit is exhausted.
_LACKS = ("can't start new thread", "failed to map segment from shared object")


def build_parser(*names: str) -> argparse.ArgumentParser:
    """Return a parser for the commands `names`, or for all commands if `names` is empty."""
    parser, listing = _empty_parser()
    wanted = [_COMMANDS[name].module for name in names or _COMMANDS]
    for name in dict.fromkeys(wanted):
        module: _CommandModule = importlib.import_module(f"harness.cli.{name}")
        module.add_parser(_ListedCommands(listing))
    return parser


def _overview() -> argparse.ArgumentParser:
    """Return a parser with only the names of the commands, for the help and for an unknown command."""
    parser, listing = _empty_parser()
    for name in _COMMANDS:
        _ListedCommands(listing).add_parser(name)
    return parser


def _empty_parser() -> tuple[argparse.ArgumentParser, Actions]:
    parser = argparse.ArgumentParser(
        prog="harness", description="Test harness for GPU-node provisioning."
    )
    parser.add_argument(
        "--version", action=_PrintVersion, nargs=0, help="print the version and exit"
    )
    listing = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", parser_class=CommandParser
    )
    return parser, listing


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code.

    The exit code 1 means that a node is not as expected. The exit code 2 means that the harness
    could not check a node, for example because of bad input or a missing requirement. The exit code
    130 means that a person interrupted the command. The exit code 141 means that the reader of the
    command's output closed the pipe. `harness shell` and `harness ssh` return the exit code of the
    command in the guest, and `harness rerun` returns the exit status of pytest.
    """
    if argv is None:
        # Imports make objects that are never freed. Without this threshold, hundreds of garbage
        # collections would free nothing, and would take a tenth of the loading time.
        gc.set_threshold(_GC_THRESHOLD)
        # Loading these modules takes a fifth of a shell's start, and not every command needs them.
        load_on_use("pydantic", "yaml")
        argv = sys.argv[1:]
    words = list(argv)
    open_closed_streams()
    is_known = bool(words) and words[0] in _COMMANDS
    with guarded(words[0] if is_known else ""):
        try:
            return _run(words, is_known=is_known)
        finally:
            drop_unwritten_text()


def _run(words: Sequence[str], *, is_known: bool) -> int:
    def act() -> int:
        try:
            arguments = (build_parser(words[0]) if is_known else _overview()).parse_args(words)
        except SystemExit:
            # The options --help and --version print a text and exit.
            sys.stdout.flush()
            raise
        code: int = arguments.run(arguments)
        return code

    return exit_code_of(act, command=" ".join(["harness", *words[:1]]))


def exit_code_of(act: Callable[[], int], *, command: str) -> int:
    """Return the result of `act`; if `act` raises an error, print the error and return its exit code."""
    try:
        code = act()
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        # If a table can't be written, rich raises SystemExit(1).
        if not any(isinstance(each, BrokenPipeError) for each in (error, error.__context__)):
            raise
        # The reader, such as `head`, closed the pipe.
        return _BROKEN_PIPE
    except ExpectationError as error:
        print_error(error)
        return 1
    except (HarnessError, CommandError, WaitTimeoutError, OSError) as error:
        print_error(error)
        return 2
    except (MemoryError, RuntimeError, ImportError) as error:
        is_loop = str(error).startswith(_LOOP)
        if not (is_loop or isinstance(error, MemoryError) or str(error).endswith(_LACKS)):
            raise
        lack = RequirementError(
            "This host, or a limit of this process, has no memory or no thread left for "
            f"`{command}`; end other processes, or raise the limits that `ulimit -v` "
            "and `ulimit -u` print."
        )
        print_error(error if is_loop else lack)
        return 2
    except KeyboardInterrupt:
        print_message("interrupted; machines have ended and their files are removed.")
        return 130
    return code
