"""Checks the command lines of the pages with the programs that they call."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from configparser import ConfigParser
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cli import build_parser
from harness.provisioning.__main__ import _parser as build_provisioning_parser
from suites.mutation.__main__ import build_parser as build_mutation_parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from suites.docs.pages import Block, Place

#: Commands of other projects; their arguments are not checked.
FOREIGN = frozenset(
    {
        *("allure", "cd", "coverage", "git", "less", "lint-imports", "ls", "mkdir", "pip", "sed"),
        *("debsbom", "debugfs", "pre-commit", "pyproject-build", "qemu-img", "ruff"),
        *("ptw", "towncrier", "twine"),
        *("groupadd", "systemctl", "systemd-tmpfiles", "udevadm", "useradd", "usermod"),
    }
)

_ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")
_PACKAGE_PAIR = re.compile(r"[a-z0-9_-]+:([a-z0-9.+-]+)")


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """One command of a `sh` block, without its assignments of variables."""

    place: Place
    words: tuple[str, ...]


def command_lines(block: Block) -> Iterator[CommandLine]:
    """Yield the commands of a block; a backslash at the end of a line joins the next line."""
    text = block.text.replace("\\\n", " ")
    for number, line in enumerate(text.splitlines(), start=1):
        words = shlex.split(line, comments=True)
        while words and _ASSIGNMENT.fullmatch(words[0]):
            del words[0]
        if words:
            place = type(block.place)(page=block.place.page, line=block.place.line + number)
            yield CommandLine(place=place, words=tuple(words))


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The commands and options that the programs of this repository accept."""

    dev: dict[str, frozenset[str] | None]
    """The arguments that each command of `./dev` knows; None if it passes all arguments on."""
    dev_packages: frozenset[str]
    tox_environments: frozenset[str]

    @classmethod
    def of(cls, repository: Path) -> Programs:
        script = (repository / "dev").read_text()
        tox = ConfigParser()
        tox.read(repository / "tox.ini")
        return cls(
            dev=dev_commands(script),
            dev_packages=frozenset(dev_packages(script)),
            tox_environments=frozenset(
                name.removeprefix("testenv:")
                for name in tox.sections()
                if name.startswith("testenv:")
            ),
        )

    def check(self, line: CommandLine) -> list[str] | None:
        """Raise an error for a command that the program refuses; return the arguments for pytest."""
        program, *arguments = line.words
        match program:
            case "pytest":
                return arguments
            case "./dev":
                return self._check_dev(line, arguments)
            case "harness":
                _check_arguments(line, build_parser(), arguments)
            case "python3" if any(word.endswith(".pyz") for word in arguments):
                while not arguments.pop(0).endswith(".pyz"):
                    pass
                _check_arguments(line, build_provisioning_parser(), arguments)
            case "tox":
                self._check_tox(line, arguments)
            case "apt-get":
                self._check_packages(line, arguments)
            case _ if program not in FOREIGN:
                raise line.place.refuse(f"Nothing here can check the command '{program}'.")
            case _:
                pass
        return None

    def _check_dev(self, line: CommandLine, arguments: list[str]) -> list[str] | None:
        command, *rest = arguments or ["help"]
        if command not in self.dev:
            raise line.place.refuse(
                f"'./dev {command}' is not known; known are {', '.join(sorted(self.dev))}."
            )
        if command == "demo":
            return self.check(CommandLine(place=line.place, words=("harness", "demo", *rest)))
        if command == "mutants":
            _check_arguments(line, build_mutation_parser(), rest)
            return None
        if command == "run":
            return self.check(CommandLine(place=line.place, words=tuple(rest)))
        known = self.dev[command]
        if known is not None and (unknown := [word for word in rest if word not in known]):
            raise line.place.refuse(f"'./dev {command}' does not know '{unknown[0]}'.")
        return None

    def _check_tox(self, line: CommandLine, arguments: list[str]) -> None:
        if arguments[:1] != ["-e"] or arguments[1] not in self.tox_environments:
            raise line.place.refuse(
                f"tox has no such environment; it has {', '.join(sorted(self.tox_environments))}."
            )

    def _check_packages(self, line: CommandLine, arguments: list[str]) -> None:
        packages = [word for word in arguments[1:] if not word.startswith("-")]
        if unknown := [name for name in packages if name not in self.dev_packages]:
            raise line.place.refuse(f"'./dev setup' does not install '{unknown[0]}'.")


def dev_commands(script: str) -> dict[str, frozenset[str] | None]:
    """Read the commands of `./dev` from its last `case`, and their arguments from the inner `case`."""
    _, found, cases = script.partition('case "$command" in\n')
    assert found, "The script './dev' has no 'case' over its command."
    commands: dict[str, frozenset[str] | None] = {}
    for name, body in re.findall(
        r"^([a-z-]+)\)\n(.*?)^ +;;$\n(?=\S)", cases, re.DOTALL | re.MULTILINE
    ):
        inner = re.findall(r"^ +([^\s()\"*]+)\)$", body, re.MULTILINE)
        commands[name] = None if '"$@"' in body else frozenset(inner)
    return {**commands, "help": frozenset()}


def dev_packages(script: str) -> set[str]:
    """Read the Debian packages that `./dev setup` may install."""
    listing = script[script.index("missing_packages() {") : script.index("install_packages() {")]
    return {*_PACKAGE_PAIR.findall(listing), *re.findall(r"echo ([a-z][a-z0-9-]+)", listing)}


def _check_arguments(
    line: CommandLine, parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> None:
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
            parser.parse_args(arguments)
    except SystemExit as ending:
        if ending.code:  # --help and --version end with 0
            words = stderr.getvalue().strip().splitlines()[-1]
            raise line.place.refuse(words) from ending


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield every option of a parser and of the commands below it."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action.choices, dict):
            for child in action.choices.values():
                yield from options_of(child)
