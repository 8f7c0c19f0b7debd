"""Reads JUnit reports, finds the failures in them, and writes one report for all shards."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import BadInputError
from harness.limits import REPORT_ELEMENTS, REPORT_LEVELS
from harness.sharding.report_file import open_report, write_report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

#: The property of a test that ended because the harness could not check the node.
BROKEN = "harness_could_not_tell"
#: The property that names the behaviour that a test covers.
BEHAVIOUR = "behaviour"
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?")
_COUNT = re.compile(r"[0-9]{1,9}")
_CHUNK = 1 << 16
_LONGEST_TAG = 1 << 20
_COUNTED = ("errors", "failures", "skipped", "tests")
_FAILED = ("failure", "error")
#: pytest's messages for modules that it could not collect.
_OF_COLLECTION = frozenset({"collection failure", "collection skipped"})
_OF_SPEC = re.compile(r"\.sh(?:\.|::)")
#: The group that xdist appends to the name of a test.
_GROUP = re.compile(r"@[^@/\]]+$")
#: The limit of a duration: longer than any run, but so small that sums stay finite.
_MOST_SECONDS = 1e9


@dataclass(frozen=True, kw_only=True)
class Case:
    """A test in a JUnit report; `problem` is the message of its failure, or None.

    `results` is the number of the report's `testcase` elements that are about this test;
    `is_of_test` is false for a module that could not be collected.
    """

    name: str
    shard: str
    outcome: str
    seconds: float
    problem: str | None
    is_broken: bool
    behaviours: Sequence[str]
    results: int = 1
    is_of_test: bool = True


class _BoundedTree(ET.TreeBuilder):
    """Builds a tree of XML; refuses entities, deep nesting and more elements than pytest ever writes."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source
        self.events = 0
        self._depth = 0
        self._elements = 0

    @override
    def start(self, tag: str, attrs: dict[str, str], /) -> ET.Element:
        self.events += 1
        self._depth += 1
        self._elements += 1 + len(attrs)
        REPORT_LEVELS.check(self._depth, self._source)
        REPORT_ELEMENTS.check(self._elements, self._source)
        return super().start(tag, attrs)

    @override
    def end(self, tag: str, /) -> ET.Element:
        self._depth -= 1
        return super().end(tag)

    @override
    def data(self, data: str, /) -> None:
        self.events += 1
        super().data(data)

    def doctype(self, _name: str, _public_id: str | None, _system: str | None, /) -> None:
        """Refuse a document type, since only a document type can declare entities."""
        raise BadInputError(
            "The file is not a JUnit report: it declares a document type.", source=self._source
        )


def read_suite(path: Path) -> list[ET.Element]:
    """Return the suites of a JUnit file; raises BadInputError, which names the file, or LimitError."""
    source = str(path)
    tree = _BoundedTree(source)
    parser = ET.XMLParser(target=tree)  # noqa: S314 - see _BoundedTree
    seen = pending = 0
    try:
        with open_report(path) as file:
            while chunk := file.read(_CHUNK):
                parser.feed(chunk)
                # For a tag with millions of attributes, the parser would need minutes and much memory.
                pending, seen = pending + len(chunk) if tree.events == seen else 0, tree.events
                if pending > _LONGEST_TAG:
                    raise BadInputError(
                        "The file is not a JUnit report: it has a tag of more than 1 MiB.",
                        source=source,
                    )
        root: ET.Element = parser.close()
    except (ET.ParseError, ValueError, LookupError) as error:
        # LookupError and ValueError come from an unknown encoding.
        raise BadInputError(f"The file is not a JUnit report: {error}.", source=source) from error
    suites = [root] if root.tag == "testsuite" else root.findall("testsuite")
    if not suites:
        raise BadInputError(
            "The file is not a JUnit report: it has no 'testsuite'.", source=source
        )
    for element in (each for suite in suites for each in (suite, *suite.iter("testcase"))):
        for key, form in (("time", _SECONDS), *((each, _COUNT) for each in _COUNTED)):
            word = element.get(key) or "0"
            if not form.fullmatch(word) or not 0 <= float(word) < _MOST_SECONDS:
                raise BadInputError(
                    f"The file is not a JUnit report: '{key}' is {word[:40]!r}, but a number was "
                    "expected.",
                    source=source,
                )
    for suite in suites:
        said = sum(int(suite.get(each) or 0) for each in ("errors", "failures"))
        tags = {each.tag for case in suite.iter("testcase") for each in case}
        if said and not tags.intersection(_FAILED):
            raise BadInputError(
                f"The file is not a JUnit report: it counts {said} failures and errors, but its test "
                "cases have none.",
                source=source,
            )
    return suites


def cases_of(suites: Iterable[ET.Element], shard: str) -> list[Case]:
    """Return the tests of a shard's suites, each once.

    For a repeated test, the last result is used. If both a test and its teardown failed, the first
    of the two results is used.
    """
    found: dict[str, list[ET.Element]] = {}
    for element in (each for suite in suites for each in suite.iter("testcase")):
        name = f"{element.get('classname', '')}::{element.get('name', '')}"
        found.setdefault(name, []).append(element)
    return [_case(name, elements, shard) for name, elements in found.items()]


def _case(name: str, elements: Sequence[ET.Element], shard: str) -> Case:
    last = elements[-1]
    if len(elements) > 1 and last.find("error") is not None and last.find("failure") is None:
        earlier = elements[-2]
        if any(earlier.find(tag) is not None for tag in _FAILED):
            last = earlier
    problem = next((each for tag in _FAILED for each in last.iter(tag)), None)
    said = [each.get("message", "") for each in last if each.tag in (*_FAILED, "skipped")]
    properties = [(each.get("name"), each.get("value", "")) for each in last.iter("property")]
    outcome = "passed" if last.find("skipped") is None else "skipped"
    return Case(
        name=name,
        shard=shard,
        outcome=outcome if problem is None else "failed",
        seconds=float(last.get("time") or 0),
        problem=None if problem is None else problem.get("message") or problem.text or "",
        is_broken=any(key == BROKEN for key, _ in properties),
        behaviours=[value for key, value in properties if key == BEHAVIOUR],
        results=len(elements),
        is_of_test=not _OF_COLLECTION & set(said),
    )


def case_name(test_id: str, prefix: str = "") -> str:
    """Return the name of a test in a `Case`: the class name and the name in pytest's JUnit report.

    `prefix` is the value of pytest's `--junit-prefix`.
    """
    path, found, rest = test_id.partition("::")
    names, bracket, parameters = rest.partition("[")
    address = [path.replace("/", ".").removesuffix(".py"), *(names.split("::") if found else ())]
    address[-1] += bracket + parameters
    if prefix:
        address.insert(0, prefix)
    return f"{'.'.join(address[:-1])}::{address[-1]}"


def _key(name: str) -> str:
    # Pytest 9.2 closes a bracket that a name leaves open. The names of a spec's groups may have
    # brackets and colons, so the node id does not show where the names end.
    closed = name.removesuffix("]")
    return closed.replace("::", ".") if _OF_SPEC.search(closed) else closed


def namesakes(tests: Sequence[str]) -> tuple[str, str] | None:
    """Return two tests that have the same name in a JUnit report, or None."""
    seen: dict[str, str] = {}
    for test in tests:
        other = seen.setdefault(_key(case_name(test)), test)
        if other != test:
            return other, test
    return None


def differences(
    tests: Sequence[str], repeated: Iterable[str], cases: Sequence[Case], prefix: str
) -> dict[str, list[str]]:
    """Return, by kind of difference, the tests for which a shard's list and JUnit report differ.

    `repeated` are the tests in the list that ran more than once.
    """
    listed = {_key(case_name(test, prefix)): test for test in tests}
    again = {_key(case_name(test, prefix)) for test in repeated}
    known = {
        name if (name := _key(case.name)) in listed else _key(_GROUP.sub("", case.name)): case
        for case in cases
    }
    # pytest writes two cases for a test if both the test and its teardown failed.
    twice = [
        case.name
        for name, case in known.items()
        if name not in again and case.results > (1 if case.problem is None else 2)
    ]
    return {
        "no result": [test for name, test in listed.items() if name not in known],
        "results of tests that are not in its list": [
            case.name for name, case in known.items() if name not in listed and case.is_of_test
        ],
        "several entries": [
            *(test for test, count in Counter(tests).items() if count > 1),
            *twice,
        ],
    }


def write_merged(suites: Iterable[tuple[str, ET.Element]], to: Path) -> None:
    """Write the suites of all shards into one file; each suite is named after its shard."""
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
    write_report(to, ET.tostring(root, encoding="utf-8", xml_declaration=True))
