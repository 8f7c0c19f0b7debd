"""Reads JSON from files that other users can write; raises ValueError for an unexpected value.

This module uses only the standard library, since the first use of pydantic takes seconds in an
emulated guest. While a process reads leases, the process locks the folder of leases, so other
processes would wait for these seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.foreign_json import parse_json
from harness.gpu.passthrough import is_address, is_driver_name

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_LINE = 256
#: Linux numbers processes up to 2^22, see PID_MAX_LIMIT in include/linux/threads.h.
_LAST_PROCESS = 1 << 22
#: The number of characters of a wrong value that a message shows.
_SHOWN = 80


@dataclass(frozen=True)
class Value:
    """A value in a document, and its path; methods raise ValueError for a value of a wrong type."""

    value: object
    place: str = ""

    @classmethod
    def parse(cls, content: str | bytes) -> Value:
        return cls(parse_json(content))

    def __getitem__(self, key: str) -> Value:
        if not isinstance(self.value, dict):
            raise self._error("a mapping")
        if key not in self.value:
            raise ValueError(f"it has no '{self.place}{key}'")
        return Value(self.value[key], f"{self.place}{key}.")

    def by_address(self) -> Mapping[str, Value]:
        """Return the values of a mapping whose keys are PCI addresses."""
        if not isinstance(self.value, dict):
            raise self._error("a mapping")
        return {Value(key, self.place).address(): self[key] for key in self.value}

    def items(self) -> list[Value]:
        if not isinstance(self.value, list):
            raise self._error("a list")
        return [Value(each, self.place) for each in self.value]

    def address(self) -> str:
        if not isinstance(self.value, str) or not is_address(self.value):
            raise self._error("a PCI address")
        return self.value

    def addresses(self) -> tuple[str, ...]:
        return tuple(each.address() for each in self.items())

    def driver(self) -> str | None:
        if self.value is None:
            return None
        if not isinstance(self.value, str) or not is_driver_name(self.value):
            raise self._error("the name of a driver")
        return self.value

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self._error("text")
        return self.value

    def line(self) -> str:
        text = self.text()
        if not text.isprintable() or len(text) > _LONGEST_LINE:
            raise self._error("one printable line")
        return text

    def process(self) -> int:
        if type(self.value) is not int or not 0 < self.value <= _LAST_PROCESS:
            raise self._error("a process")
        return self.value

    def _error(self, expected: str) -> ValueError:
        found = (
            repr(self.value)[:_SHOWN] if isinstance(self.value, (str, int)) else "something else"
        )
        return ValueError(f"'{self.place.rstrip('.')}' is {found}, but {expected} was expected")
