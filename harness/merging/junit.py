"""JUnit reports: the test cases of all shards in one file, and what failed in them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

#: The property of a test that ended with an error of the harness.
BROKEN = "harness_could_not_tell"
#: The property that names what a test covers.
BEHAVIOUR = "behaviour"
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d{1,2})?")
_COUNTED = ("errors", "failures", "skipped", "tests")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A test in a JUnit report; `problem` is the message with which it failed."""

    name: str
    shard: str
    outcome: str
    seconds: float
    problem: str | None
    is_broken: bool
    behaviours: Sequence[str]


def read_suite(path: Path) -> list[ET.Element]:
    """Return the suites of a JUnit file; raises BadInputError that names it."""
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - as above
    except (OSError, ET.ParseError) as error:
        raise BadInputError(f"It is no JUnit report: {error}.", source=str(path)) from error
    suites = [root] if root.tag == "testsuite" else list(root.iter("testsuite"))
    for element in (each for suite in suites for each in (suite, *suite.iter("testcase"))):
        for key in ("time", *_COUNTED):
            if not _NUMBER.fullmatch(element.get(key) or "0"):
                raise BadInputError(
                    f"It is no JUnit report: '{key}' is {element.get(key)!r}, but a number was expected.",
                    source=str(path),
                )
    return suites


def cases_of(suite: ET.Element, shard: str) -> list[Case]:
    """Return the tests of a suite; one whose teardown failed too is there once."""
    found: dict[str, Case] = {}
    for element in suite.iter("testcase"):
        name = f"{element.get('classname', '')}::{element.get('name', '')}"
        problem = next((each for tag in ("failure", "error") for each in element.iter(tag)), None)
        properties = [
            (each.get("name"), each.get("value", "")) for each in element.iter("property")
        ]
        outcome = "passed" if element.find("skipped") is None else "skipped"
        case = Case(
            name=name,
            shard=shard,
            outcome=outcome if problem is None else "failed",
            seconds=float(element.get("time") or 0),
            problem=None if problem is None else problem.get("message") or problem.text or "",
            is_broken=any(key == BROKEN for key, _ in properties),
            behaviours=[value for key, value in properties if key == BEHAVIOUR],
        )
        if name not in found or problem is not None:
            found[name] = case
    return list(found.values())


def write_merged(suites: Iterable[tuple[str, ET.Element]], to: Path) -> None:
    """Write the suites of the shards into one file, each with its shard in its name."""
    root = ET.Element("testsuites", name="pytest tests")
    totals = dict.fromkeys(_COUNTED, 0)
    seconds = 0.0
    for shard, suite in suites:
        suite.set("name", f"shard {shard}")
        root.append(suite)
        seconds += float(suite.get("time") or 0)
        for key in _COUNTED:
            totals[key] += int(suite.get(key) or 0)
    for key, value in totals.items():
        root.set(key, str(value))
    root.set("time", f"{seconds:.3f}")
    part = to.with_name(f".{to.name}")
    ET.ElementTree(root).write(part, encoding="utf-8", xml_declaration=True)
    part.replace(to)
