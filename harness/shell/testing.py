"""The public names for Python tests of shell code."""

from harness.shell.mocks.commands import (
    ANY,
    Answer,
    Call,
    Like,
    MockedCommand,
    UnmockedCommandError,
)
from harness.shell.sandbox.root_files import RootFiles
from harness.shell.spec.patterns import pattern_matches
from harness.shell.surroundings import give_surroundings
from harness.shell.warm_shell.evaluation import Evaluation, ShellTimeoutError
from harness.shell.warm_shell.shell import Shell

__all__ = [
    "ANY",
    "Answer",
    "Call",
    "Evaluation",
    "Like",
    "MockedCommand",
    "RootFiles",
    "Shell",
    "ShellTimeoutError",
    "UnmockedCommandError",
    "give_surroundings",
    "pattern_matches",
]
