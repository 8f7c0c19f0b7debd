"""The kinds of defects that are planted in shell code: typical mistakes in provisioning scripts."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Operator(Enum):
    """A kind of defect. The value of a member is the kind's name in reports; `what` describes the kind."""

    what: str

    def __new__(cls, name: str, what: str) -> Self:
        member = object.__new__(cls)
        member._value_ = name
        member.what = what
        return member

    ARGUMENT = ("argument", "an argument of a command is left out")
    ARGUMENT_ORDER = ("argument-order", "two arguments are swapped")
    ARITHMETIC = ("arithmetic", "an arithmetic operator is replaced by another")
    ASSIGNMENT = ("assignment", "a variable gets another value")
    BACKGROUND = ("background", "a command runs in the background, or no longer does")
    CASE = ("case", "a branch or a pattern of 'case' is left out")
    COMMAND = ("command", "a command is left out")
    COMPARISON = ("comparison", "a test compares in another way")
    CONDITION = ("condition", "a condition is always true or always false")
    DEFAULT = ("default", "the default of a variable is changed, or is always used")
    EXIT_CODE = ("exit-code", "a function or the script returns another exit code")
    EXPORT = ("export", "a variable is not exported")
    FAILURE = ("failure", "the failure of a command is not handled: '|| …' is left out")
    FUNCTION = ("function", "a function does nothing and succeeds")
    HERE_DOCUMENT = ("here-document", "a line of a here-document is left out")
    LIST = ("list", "'&&', '||' or ';' is replaced by another of these")
    LOCAL = ("local", "a variable is not local")
    LOOP = ("loop", "a loop ends by another condition")
    MODE = ("mode", "a file gets another mode")
    NEGATION = ("negation", "a condition is negated")
    NUMBER = ("number", "a number is one higher: a count of tries, a pause, a time limit")
    OPTION = ("option", "a one-letter option is left out")
    ORDER = ("order", "two commands run in the other order")
    PATTERN = ("pattern", "a pattern lacks a wildcard or an anchor")
    PIPELINE = ("pipeline", "a command of a pipeline is left out")
    QUOTES = ("quotes", "an expansion has no quotes")
    REDIRECTION = (
        "redirection",
        "output goes elsewhere, or overwrites a file instead of extending it",
    )
    SHELL_OPTION = ("shell-option", "'set -e', '-u' or 'pipefail' is left out")
    SUBSHELL = ("subshell", "commands of a subshell run in the shell itself")
    SUBSTITUTION = ("substitution", "the output of a command, or a change of a value, is left out")
    UNIT = ("unit", "systemctl does not wait for a unit")
    WRAPPER = ("wrapper", "a command runs without its retries, time limit or privileges")
