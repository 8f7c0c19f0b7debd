"""Stores results of mutants under digests of scripts and tests, so that a run can be resumed."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from harness.lease import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: The format version of the stored data; increase it when the meaning of the data changes.
_FORMAT = 1


class Outcome(Enum):
    """The result of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    NOT_REACHED = "not reached"
    NOT_TRIED = "not tried"

    @property
    def is_noticed(self) -> bool:
        return self in {Outcome.KILLED, Outcome.TIMED_OUT}


@dataclass(kw_only=True)
class Reach:
    """The lines of scripts that run in a test without a mutant, and the test's duration.

    `read` lists the scripts that the test's process opens, but of which no line runs. Any line of a
    script in `read` may affect the test.
    """

    lines: dict[str, list[int]]
    read: list[str]
    cpu_s: float
    wall_s: float
    problem: str = ""


@dataclass
class Tried:
    """The known results of a mutant: tests that passed, and tests that failed or timed out.

    A test's result counts only while the test's file has the digest that is stored with the result.
    """

    passed: dict[str, str] = field(default_factory=dict)
    noticed: dict[str, tuple[str, str]] = field(default_factory=dict)


class Results:
    """A file to which lines with results are appended; an incomplete last line is ignored.

    `surroundings` is a digest of everything that the tests may depend on, except the tests and the
    scripts themselves.
    """

    def __init__(self, folder: Path, surroundings: str) -> None:
        make_private_folder(folder)
        name = hashlib.sha256(f"{_FORMAT} {surroundings}".encode()).hexdigest()[:24]
        self._path = folder / f"{name}.jsonl"
        self._reaches: dict[str, Reach] = {}
        self._tried: dict[str, Tried] = {}
        for line in self._kept():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                self._take(line)

    def _kept(self) -> Iterator[dict[str, Any]]:
        if not self._path.is_file():
            return
        content = self._path.read_bytes()
        # a killed run may have left an incomplete line: end this line before the next one
        if content and not content.endswith(b"\n"):
            with self._path.open("ab") as file:
                file.write(b"\n")
        for line in content.splitlines():
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value

    def _take(self, line: Mapping[str, Any]) -> None:
        if line["kind"] == "reach":
            self._reaches[line["key"]] = Reach(**line["reach"])
            return
        tried = self._tried.setdefault(line["key"], Tried())
        if line["kind"] == "passed":
            tried.passed.update(line["tests"])
        elif line["kind"] == "noticed":
            tried.noticed[line["test"]] = (line["digest"], str(Outcome(line["outcome"]).value))

    def _add(self, line: Mapping[str, object]) -> None:
        self._take(line)
        # write each line in one call, so that simultaneous runs do not mix their lines
        with self._path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")

    def reach_of(self, key: str) -> Reach | None:
        return self._reaches.get(key)

    def keep_reach(self, key: str, reach: Reach) -> None:
        self._add({"kind": "reach", "key": key, "reach": vars(reach)})

    def noticed(self, key: str, tests: Mapping[str, str]) -> tuple[Outcome, str] | None:
        """Return the outcome and name of a test that is known to notice the mutant, or None."""
        for test, (digest, outcome) in self._tried.get(key, Tried()).noticed.items():
            if tests.get(test) == digest:
                return Outcome(outcome), test
        return None

    def untried(self, key: str, tests: Mapping[str, str]) -> list[str]:
        """Return the tests that are not known to pass with the mutant."""
        passed = self._tried.get(key, Tried()).passed
        return [test for test, digest in tests.items() if passed.get(test) != digest]

    def keep_noticed(self, key: str, outcome: Outcome, test: str, digest: str) -> None:
        self._add(
            {
                "kind": "noticed",
                "key": key,
                "outcome": outcome.value,
                "test": test,
                "digest": digest,
            }
        )

    def keep_passed(self, key: str, tests: Mapping[str, str]) -> None:
        self._add({"kind": "passed", "key": key, "tests": dict(tests)})
