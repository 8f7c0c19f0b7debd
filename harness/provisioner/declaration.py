"""The file `provisioner.json` in the evidence, which says how to read the provisioner's result."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pydantic

from harness.errors import BadInputError, HarnessError, listed
from harness.foreign_files import read_plain
from harness.foreign_json import ForeignJsonError, parse_json
from harness.limits import JSON
from harness.provisioner import gpu_node
from harness.provisioner.outcome import FORBID, OutcomeDeclaration

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioner import Provisioner
    from harness.provisioner.outcome import EventFiles

DECLARATION_NAME = "provisioner.json"


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The provisioner that ran on the node; `source` is the file that declares this provisioner."""

    __pydantic_config__ = FORBID

    schema: Literal[1] = 1
    name: str
    source: str
    outcome: OutcomeDeclaration
    files: tuple[str, ...] = ()
    """Paths, or patterns of paths, of the files that were collected in addition."""
    commands: tuple[str, ...] = ()
    """The names of the commands whose output was collected in addition."""

    def named(self, exit_code: int | None) -> str:
        """Return an exit code with its name, for messages."""
        if exit_code is None:
            return "no exit code"
        if exit_code in self.outcome.exit_codes:
            return f"{exit_code} ({self.outcome.exit_codes[exit_code]})"
        if not self.outcome.exit_codes:
            return str(exit_code)
        return f"{exit_code} (without a name in 'outcome.exit_codes' of '{self.source}')"

    def exit_code(self, expected: int | str) -> int:
        """Return the exit code that has the name `expected`; return a number unchanged.

        Raises BadInputError if no exit code has the name `expected`.
        """
        if isinstance(expected, int):
            return expected
        for number, name in self.outcome.exit_codes.items():
            if name == expected:
                return number
        raise BadInputError(
            f"No exit code has the name '{expected}'; the declared names are "
            f"{listed(self.outcome.exit_codes.values())}. Use a declared name, or declare '{expected}'.",
            source=self.source,
            key="outcome.exit_codes",
        )

    def require(self, pattern: Literal["log.decision", "log.step"]) -> str:
        """Return the regular expression for log lines that the key `pattern` declares.

        Raises BadInputError if the provisioner does not declare `pattern`.
        """
        log = self.outcome.log
        found = None
        if log is not None:
            found = log.decision if pattern == "log.decision" else log.step
        if found is None:
            raise self.missing(pattern)
        return found

    @property
    def events(self) -> EventFiles:
        """Return the declaration of the event files. Raises BadInputError if no event files are declared."""
        if self.outcome.events is None:
            raise self.missing("events")
        return self.outcome.events

    def missing(self, *keys: str) -> BadInputError:
        """Return the error for an `outcome` that declares none of `keys`."""
        quoted = " or ".join(f"'outcome.{key}'" for key in keys)
        return BadInputError(
            f"Provisioner '{self.name}' does not declare {quoted}, so the harness cannot tell whether the "
            f"node is as expected; add {'this key' if len(keys) == 1 else 'one of these keys'}.",
            source=self.source,
            key=f"outcome.{keys[0]}",
        )


#: The provisioner of a node whose evidence names no provisioner, such as an existing node.
GPU_NODE = Declaration(name=gpu_node.NAME, source=gpu_node.SOURCE, outcome=gpu_node.OUTCOME)


@functools.cache
def _adapter() -> pydantic.TypeAdapter[Declaration]:
    """Return the adapter for `provisioner.json`, cached since making the adapter is slow."""
    return pydantic.TypeAdapter(Declaration)


def write_declaration(provisioner: Provisioner, folder: Path) -> None:
    """Write the declaration of a provisioner into an evidence folder."""
    declaration = Declaration(
        name=provisioner.name,
        source=provisioner.where,
        outcome=provisioner.outcome,
        files=tuple(provisioner.evidence.files),
        commands=tuple(provisioner.evidence.commands),
    )
    (folder / DECLARATION_NAME).write_bytes(_adapter().dump_json(declaration, indent=2) + b"\n")


def read_declaration(folder: Path) -> Declaration:
    """Read the declaration of a provisioner from an evidence folder.

    If the folder contains no `provisioner.json`, return the declaration of the harness's own
    provisioner. Raises HarnessError if `provisioner.json` is damaged, or has a newer schema.
    """
    file = folder / DECLARATION_NAME
    try:
        content = read_plain(file, limit=JSON)
        parse_json(content)
        return _adapter().validate_json(content, strict=True)
    except FileNotFoundError:
        return GPU_NODE
    except (OSError, ForeignJsonError, pydantic.ValidationError) as error:
        raise HarnessError(
            f"'{file}' does not say how the provisioner's result is read ({error}); collect the "
            "evidence again, or judge it with the harness version that collected it."
        ) from error
