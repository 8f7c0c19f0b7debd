"""Merging the reports of shards."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import sqlite3
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from harness.cli import main
from harness.errors import BadInputError, HarnessError
from harness.limits import COVERAGE_ENTRIES, LimitError
from harness.merging.allure import merge_results
from harness.merging.complete import ShardReports, find_folders, read_shards
from harness.merging.junit import Case, case_name, cases_of, read_suite, write_merged
from harness.merging.merge import Merged, merge
from harness.merging.summary import cause_of, render_summary
from harness.sharding.durations import write_durations
from harness.sharding.manifest import ShardManifest, begin, digest_of, reports_of, write_manifest
from harness.shell.coverage import Tier
from harness.shell.coverage_data import combine, gather, write_data

if TYPE_CHECKING:
    from collections.abc import Sequence

TESTS = [f"a.py::test_{number}" for number in range(6)]
COMMONMARK = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def a_case(test_id: str, body: str = "") -> str:
    return (
        f'<testcase classname="a" name="{test_id.partition("::")[2]}" time="1.5">{body}</testcase>'
    )


def a_record(
    number: int = 1,
    tests: Sequence[str] = TESTS,
    *,
    count: int = 1,
    ran: Sequence[str] | None = None,
    collection: Sequence[str] = TESTS,
    start: int = 1,
    root: str = "/checkout",
    exit_status: int = 0,
    repeated: Sequence[str] = (),
) -> ShardManifest:
    return ShardManifest(
        number=number,
        count=count,
        collection_sha256=digest_of(collection),
        collected=len(collection),
        tests=tuple(tests),
        ran=tuple(tests if ran is None else ran),
        start=start,
        host=f"host{number}",
        root=root,
        started="2026-01-01T00:00:00+00:00",
        seconds=60.0,
        first_test_s=4.0,
        exit_status=exit_status,
        repeated=tuple(repeated),
    )


def a_shard(folder: Path, record: ShardManifest | None = None, body: str = "") -> Path:
    """Write the record and the JUnit report of a shard; `body` is the content of its first case."""
    record = record or a_record()
    shard = folder / str(record.number)
    for _ in range(record.start):
        begin(shard)
    write_manifest(shard, record)
    cases = [a_case(test, body if at == 0 else "") for at, test in enumerate(record.ran)]
    (reports_of(shard, record.start) / "junit.xml").write_text(
        f'<testsuites><testsuite name="pytest" tests="{len(cases)}" failures="0" errors="0" '
        f'skipped="0" time="3">{"".join(cases)}</testsuite></testsuites>'
    )
    return shard


def three_shards(folder: Path) -> None:
    for number in (1, 2, 3):
        tests = TESTS[number * 2 - 2 : number * 2]
        reports = a_shard(folder, a_record(number, tests, count=3)) / "start-1"
        (reports / "allure").mkdir()
        for test in tests:
            result = {"uuid": "u", "historyId": test, "stop": number}
            (reports / f"allure/{test[-1]}-result.json").write_text(json.dumps(result))
        write_durations(reports / "durations.json", dict.fromkeys(tests, 1.0))


def merged_one(folder: Path, *, is_partial: bool = False) -> Merged:
    return merge([folder / "1"], folder / "to", is_partial=is_partial, root=folder)


def merge_three(folder: Path) -> Merged:
    return merge([folder / "shards"], folder / "to", is_partial=False, root=folder)


def shard_of(record: ShardManifest) -> ShardReports:
    return ShardReports(folder=Path("1"), manifest=record)


def results_of(*cases: str) -> list[Case]:
    suite = ET.fromstring(f"<testsuite>{''.join(cases)}</testsuite>")  # noqa: S314 - our own
    return cases_of([suite], "1/1")


def a_failed_case(name: str, problem: str = "no") -> Case:
    return Case(
        name=name,
        shard="1/1",
        outcome="failed",
        seconds=1.0,
        problem=problem,
        is_broken=False,
        behaviours=(),
    )


def test_complete_set_of_shards_becomes_one_report_with_each_test_once(tmp_path: Path) -> None:
    """Tests come in the order of shard numbers and not of folder names."""
    three_shards(tmp_path / "shards")
    (tmp_path / "shards/3/bench.json").write_text("7")
    folders = [tmp_path / f"shards/{number}" for number in (3, 1, 2)]

    merged = merge(folders, tmp_path / "to", is_partial=False, root=tmp_path)

    assert json.loads((tmp_path / "to/bench.json").read_text()) == [
        {"shard": "3/3", "host": "host3", "file": "bench.json", "result": 7}
    ]
    assert [case.name for case in merged.cases] == [f"a::test_{number}" for number in range(6)]
    root = ET.parse(tmp_path / "to/junit.xml").getroot()  # noqa: S314 - our own
    assert (root.get("tests"), root.get("time")) == ("6", "9.000")
    assert len(list(root.iter("testcase"))) == 6
    assert len(list((tmp_path / "to/allure").iterdir())) == 6
    assert sorted(json.loads((tmp_path / "to/durations.json").read_text())) == TESTS
    assert "**6 tests**: 6 passed" in (tmp_path / "to/summary.md").read_text()


def test_results_of_a_test_come_from_the_shard_that_ran_it_last(
    tmp_path: Path,
) -> None:
    """Result files have random names, so their order says nothing about time."""
    results = {
        "kept": [{"a": 100, "b": 200}, {"c": 150}],
        "kept although its last file is older": [{"a": 200, "b": 100}, {"c": 150}],
        "kept by the first of two equals": [{"a": 100}, {"b": 100}],
        "replaced": [{"x": 100, "y": 200}, {"c": 250}],
        "replaced by all results": [{"x": 100}, {"b": 50, "c": 150, "d": 90}],
        "replaced once": [{"x": 100}, {"b": 300}, {"c": 200}],
    }
    kept = ["ab", "ab", "a", "c", "bcd", "b"]
    for test, folders in results.items():
        for number, stops in enumerate(folders):
            (tmp_path / str(number)).mkdir(exist_ok=True)
            for name, stop in stops.items():
                (tmp_path / f"{number}/{test}.{name}-result.json").write_text(
                    json.dumps({"uuid": name, "historyId": test, "stop": stop})
                )

    count = merge_results([tmp_path / str(number) for number in range(3)], tmp_path / "to")

    assert count == len(results)
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == sorted(
        f"{test}.{name}-result.json"
        for test, names in zip(results, kept, strict=True)
        for name in names
    )


def test_allure_environment_files_of_the_shards_are_merged(tmp_path: Path) -> None:
    for number, accelerator in enumerate(("tcg", "kvm", "tcg")):
        results = tmp_path / str(number)
        results.mkdir()
        (results / "environment.properties").write_text(
            f"# a=b\n!c=d\n\nkernel=root={accelerator}\naccelerator={accelerator}\n"
        )
        (results / "categories.json").write_text("[]")

    merge_results([tmp_path / str(number) for number in range(3)], tmp_path / "to")

    merged = tmp_path / "to/environment.properties"
    assert merged.read_text() == "kernel=root=tcg, root=kvm\naccelerator=tcg, kvm\n"
    assert (tmp_path / "to/categories.json").read_text() == "[]"


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        (
            {2: TESTS[2:4]},
            r"shards: Shard 1/3 is missing: give [\w ]+\. Shard 3/3 is missing: give [\w ]+\.$",
        ),
        (
            {1: TESTS[:2], 2: TESTS[2:4], 3: [*TESTS[4:], TESTS[1]]},
            "Shards 1/3 and 3/3 both ran 1 tests",
        ),
        (
            {1: TESTS[:2], 2: [TESTS[2], "b.py::other"], 3: TESTS[4:]},
            "6 tests together, not the 6 that were collected",
        ),
    ],
    ids=["missing", "overlap", "another test in place of one"],
)
def test_shards_with_missing_or_repeated_tests_are_refused_before_anything_is_written(
    tmp_path: Path, shards: dict[int, list[str]], message: str
) -> None:
    for number, tests in shards.items():
        a_shard(tmp_path / "shards", a_record(number, tests, count=3))

    with pytest.raises(BadInputError, match=message):
        merge_three(tmp_path)

    assert not (tmp_path / "to").exists()


def test_shard_that_collected_different_tests_is_reported_as_a_problem(tmp_path: Path) -> None:
    a_shard(tmp_path, a_record(1, TESTS[:3], count=2))
    a_shard(tmp_path, a_record(2, TESTS[3:], count=2, collection=[*TESTS, "b.py::new"]))

    _, [problem] = read_shards(find_folders([tmp_path]))

    assert "collected 7 tests, and shard 1/2 collected 6" in problem


def test_shard_of_a_run_with_a_different_number_of_shards_is_reported_as_a_problem(
    tmp_path: Path,
) -> None:
    """The shards are of two runs, although together they have each test exactly once."""
    for number, count in ((1, 3), (2, 2), (3, 3)):
        tests = TESTS[number * 2 - 2 : number * 2]
        a_shard(tmp_path, a_record(number, tests, count=count))

    _, [problem] = read_shards(find_folders([tmp_path]))

    assert problem == (
        "Shards 1/3 and 2/2 are from different runs: one run has 3 shards, and the other run 2. Give the "
        "folders of the shards of one run."
    )


def test_run_that_collected_no_tests_is_reported_as_a_problem(tmp_path: Path) -> None:
    """With a wrong `-k`, each shard ends well and nothing was tested."""
    a_shard(tmp_path, a_record(1, [], count=2, collection=[]))
    a_shard(tmp_path, a_record(2, [], count=2, collection=[]))

    _, [problem] = read_shards(find_folders([tmp_path]))

    assert problem.startswith("No shard collected a test")


def test_shard_whose_run_ended_early_is_reported_as_a_problem(tmp_path: Path) -> None:
    a_shard(tmp_path, a_record(1, TESTS[:1], count=2))
    a_shard(tmp_path, a_record(2, TESTS[1:], count=2, ran=TESTS[1:5]))

    _, [problem] = read_shards(find_folders([tmp_path]))

    assert "Shard 2/2 has no result of 1 of its 5 tests, such as 'a.py::test_5'" in problem


def test_killed_shard_and_folder_without_a_shard_are_reported_as_different_problems(
    tmp_path: Path,
) -> None:
    a_shard(tmp_path, a_record(1, TESTS[:3], count=2))
    (tmp_path / "2/start-1").mkdir(parents=True)
    (tmp_path / "other").mkdir()

    _, problems = read_shards(find_folders([tmp_path, tmp_path / "other"]))

    assert "/2: The shard was started once, but wrote no" in problems[0]
    assert "/other: There is no 'shard.json'" in problems[1]


def test_shard_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    folders = [a_shard(tmp_path / each) for each in ("one", "two")]

    with pytest.raises(BadInputError, match=r"has the reports of shard 1/1, and so has '.*one/1'"):
        read_shards(folders)


def test_partial_option_merges_an_incomplete_set_of_shards_and_prints_missing_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_shard(tmp_path / "shards", a_record(1, TESTS[:2], count=3))

    code = main(
        ["report", "merge", str(tmp_path / "shards/1"), "--partial", "--to", str(tmp_path / "to")]
    )

    assert code == 2
    assert "* Shard 2/3 is missing" in capsys.readouterr().out


def test_failures_are_grouped_by_cause_and_failed_tests_are_separated_from_broken_tests() -> None:
    page = render_summary(
        [shard_of(a_record())],
        [
            a_failed_case("a::test_1", "Waited 12.5 s for '/run/a1/x'.\nmore"),
            a_failed_case("a::test_2", "Waited 7 s for '/run/b2/y/z'."),
            dataclasses.replace(a_failed_case("a::test_3", "No disk."), is_broken=True),
            a_failed_case("a::test_4", "No disk."),
        ],
        [],
    )

    assert "3 expectations not met, 1 could not tell" in page
    assert "| 1/1 | 6 | 4 | 60 |" in page
    assert "### 1 failed: No disk." in page
    assert "### 2 failed: Waited N s for PATH." in page
    assert "### 1 could not tell: No disk." in page


@pytest.mark.parametrize(
    ("problem", "cause"),
    [
        ("at 0x7ffe: 12 of 13", "at N: N of N"),
        ("\n\nsecond line\nthird", "second line"),
        ("", "no message"),
        ("key 4f2a9bc01d3e77 is gone", "key N is gone"),
    ],
)
def test_cause_of_a_failure_has_placeholders_for_numbers(problem: str, cause: str) -> None:
    assert cause_of(problem) == cause


def test_merge_reports_restarted_shards_and_behaviours_and_bench_results(tmp_path: Path) -> None:
    body = (
        '<properties><property name="behaviour" value="3.1: module is built" /></properties>'
        '<failure message="No module.">trace</failure>'
    )
    a_shard(tmp_path, a_record(start=2), body)
    (tmp_path / "1/bench.json").write_text('{"clone_ready_s": 1}')
    (tmp_path / "1/bench-2.json").write_text("2")

    merged = merge([tmp_path / "1"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert merged.failed == 1
    assert json.loads((tmp_path / "to/behaviours.json").read_text()) == {
        "3.1: module is built": {"a::test_0": "failed"}
    }
    other, bench = json.loads((tmp_path / "to/bench.json").read_text())
    assert (other["file"], other["result"]) == ("bench-2.json", 2)
    assert bench == {
        "shard": "1/1",
        "host": "host1",
        "file": "bench.json",
        "result": {"clone_ready_s": 1},
    }
    page = (tmp_path / "to/summary.md").read_text()
    assert "Shard 1/1 was started 2 times" in page
    assert "Behaviours covered: 1, of which 0 hold." in page


@pytest.mark.parametrize(
    ("outcomes", "hold"),
    [
        ({"a": "passed", "b": "passed"}, 1),
        ({"a": "failed", "b": "passed"}, 0),
        ({"a": "passed", "b": "skipped"}, 0),
    ],
)
def test_behaviour_counts_as_holding_only_if_all_its_tests_passed(
    outcomes: dict[str, str], hold: int
) -> None:
    cases = [
        dataclasses.replace(
            a_failed_case(name), outcome=outcome, problem=None, behaviours=("1.1: it boots",)
        )
        for name, outcome in outcomes.items()
    ]

    page = render_summary([], cases, [])

    assert f"Behaviours covered: 1, of which {hold} hold." in page


def test_coverage_of_a_script_in_two_checkouts_is_combined_under_one_path(tmp_path: Path) -> None:
    for number in (1, 2):
        checkout = tmp_path / f"checkout{number}"
        checkout.mkdir()
        (checkout / "a.sh").write_text("true\nfalse\n")
        tests = TESTS[number * 3 - 3 : number * 3]
        shard = a_shard(tmp_path, a_record(number, tests, count=2, root=str(checkout)))
        write_data({Tier.MOCKED: {}}, [checkout], shard / "start-1/coverage.shell")

    merge([tmp_path], tmp_path / "to", is_partial=False, root=tmp_path / "checkout1")

    combined = combine([tmp_path / "to/coverage.shell"])
    assert list(combined.measured_files()) == [str(tmp_path / "checkout1/a.sh")]


def test_reports_of_a_shard_are_not_overwritten(tmp_path: Path) -> None:
    """The reports are protected even if symbolic links lead to their folder."""
    a_shard(tmp_path)
    for name in ("link", "other"):
        (tmp_path / name).symlink_to(tmp_path / "1")
    place = tmp_path / "link/start-1/allure"

    with pytest.raises(BadInputError, match="in the folder of the reports of shard 1/1"):
        merge([tmp_path / "other"], place, is_partial=False, root=tmp_path)

    assert not place.exists()


@pytest.mark.parametrize("name", ["allure/mine-result.json", "summary.md"])
def test_merge_refuses_to_replace_reports_that_no_merge_wrote(tmp_path: Path, name: str) -> None:
    a_shard(tmp_path)
    own = tmp_path / "to" / name
    own.parent.mkdir(parents=True)
    own.write_text("# Chapters\n")

    with pytest.raises(
        BadInputError,
        match=f"has '{name.partition('/')[0]}', which this merge would replace, but no merge wrote these",
    ):
        merged_one(tmp_path)

    assert own.exists()
    assert [path.name for path in (tmp_path / "to").iterdir()] == [name.partition("/")[0]]


def test_earlier_merge_is_replaced(tmp_path: Path) -> None:
    (a_shard(tmp_path) / "start-1/allure").mkdir()
    merged_one(tmp_path)
    (tmp_path / "to/allure/of-before-result.json").touch()

    merged_one(tmp_path)

    assert not (tmp_path / "to/allure/of-before-result.json").exists()


def test_merge_that_was_killed_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_shard(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("harness.merging.merge.write_durations", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            merged_one(tmp_path)
    assert not (tmp_path / "to/summary.md").exists()

    merged_one(tmp_path)

    assert (tmp_path / "to/summary.md").exists()
    assert not (tmp_path / "to/.summary.md").exists()


def test_symbolic_link_among_results_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "results/folder").mkdir(parents=True)
    (tmp_path / "results/attachment.txt").symlink_to("/etc/hostname")

    merge_results([tmp_path / "results"], tmp_path / "to")

    assert not list((tmp_path / "to").iterdir())


def test_result_of_one_shard_does_not_replace_the_result_of_another_shard(tmp_path: Path) -> None:
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
        (folder / "a-result.json").write_text(json.dumps({"uuid": f"of {folder}", "stop": 1}))

    with pytest.raises(BadInputError, match="Another shard has a file of this name"):
        merge_results(folders, tmp_path / "to")


def test_attachment_beyond_the_size_limit_is_refused(tmp_path: Path) -> None:
    """A sparse file of a few bytes on disk would fill the disk."""
    (tmp_path / "results").mkdir()
    with (tmp_path / "results/a-attachment.bin").open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(LimitError, match=r"a-attachment\.bin.*limit 'report-file-mib'"):
        merge_results([tmp_path / "results"], tmp_path / "to")


def test_summary_begins_with_the_cause_of_most_failures() -> None:
    """Each cause lists some of its tests; each shard has the number of its failures."""
    shards = [shard_of(a_record(number, TESTS[:3], count=2, start=number)) for number in (1, 2)]
    cases = [
        dataclasses.replace(a_failed_case("a::rare", "Rare."), shard="2/2"),
        *(
            dataclasses.replace(a_failed_case(f"a::test_{number}", "Usual."), shard="1/2")
            for number in range(11)
        ),
        *(
            dataclasses.replace(a_failed_case(f"a::often_{number}", "Often."), shard="2/2")
            for number in range(10)
        ),
        dataclasses.replace(a_failed_case("a::good"), shard="1/2", outcome="passed", problem=None),
    ]

    page = render_summary(shards, cases, [])

    causes = ("11 failed: Usual", "10 failed: Often", "1 failed: Rare")
    places = [page.index(f"### {each}.") for each in causes]
    assert places == sorted(places)
    assert (page.count("* `a::test_"), page.count("* `a::often_")) == (10, 10)
    assert re.findall(r"^\* and .*$", page, re.MULTILINE) == ["* and 1 more"]
    assert re.findall(r"Shard (\S+) was started (\d+) times", page) == [("2/2", "2")]
    assert "| 1/2 | 3 | 11 | 60 | 4 s | host1 |" in page
    assert "| 2/2 | 3 | 11 | 60 | 4 s | host2 |" in page


@pytest.mark.parametrize(
    "text",
    [
        "<script src=x></script>",
        "` <b> `",
        "](javascript:alert(1))",
        "![i](http://evil/x.png)",
        "[x]: http://evil/",
        "<http://evil/> www.evil.example https://evil/",
        "\n# heading\n\n* item",
        "\n|a|b|\n|-|-|\n",
        "&lt;script&gt; &#60;b&#62;",
        "*b* _i_ ~~s~~ $x$",
        "1. one",
        "+ one",
        "- one",
        "\x1b]0;owned\x07\x1b[2J \x00 \x85 \udce9 \u202e",
    ],
)
def test_text_of_a_guest_is_escaped_in_the_report_pages(text: str) -> None:
    """The text is in test names, host names, causes and messages. GitHub also links plain URLs."""
    shard = shard_of(dataclasses.replace(a_record(), host=text))

    page = render_summary([shard], [a_failed_case(f"a::test[{text}]", text)], [text], [text])

    assert page.isascii()
    assert "\x1b" not in page
    assert re.search(r"(?<!\\)://|www\.", page) is None
    html = COMMONMARK.render(page)
    tags = {each.partition(" ")[0] for each in re.findall(r"<(/?[a-zA-Z][^>]*)", html)}
    allowed = {"h1", "h2", "h3", "p", "strong", "ul", "li", "code"}
    allowed |= {"table", "thead", "tbody", "tr", "th", "td"}
    assert {tag.lstrip("/") for tag in tags} <= allowed
    assert html.count("<h1>") == 1
    assert html.count("<h3>") == 1
    assert html.count("<table>") == 1
    assert html.count("<ul>") == 3


def test_merged_junit_report_replaces_an_earlier_one_atomically_and_sums_all_suites(
    tmp_path: Path,
) -> None:
    def suite(**counts: int) -> ET.Element:
        return ET.Element("testsuite", {name: str(count) for name, count in counts.items()})

    path = tmp_path / "junit.xml"
    path.write_text("earlier")
    with path.open() as earlier:
        write_merged(
            [
                ("1/2", suite(tests=9, failures=1, errors=2, skipped=3, time=1)),
                ("2/2", suite(tests=40, failures=10, errors=20, skipped=5)),
            ],
            path,
        )
        assert earlier.read() == "earlier", "A reader has the whole earlier report."

    root = ET.parse(path).getroot()  # noqa: S314 - our own
    sums = {"tests": "49", "failures": "11", "errors": "22", "skipped": "8", "time": "1.000"}
    assert {name: root.get(name) for name in sums} == sums
    assert list(tmp_path.iterdir()) == [path]


def test_broken_test_is_included_in_the_number_of_failed_tests() -> None:
    broken = dataclasses.replace(a_failed_case("a"), is_broken=True)
    passed = dataclasses.replace(a_failed_case("b"), outcome="passed", problem=None)

    merged = Merged(cases=[broken, a_failed_case("c"), passed], problems=[], bad_ends=[])

    assert merged.failed == 2


def test_exit_status_of_a_failed_shard_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_shard(tmp_path, a_record(exit_status=2))

    code = main(["report", "merge", str(tmp_path / "1"), "--to", str(tmp_path / "to")])

    assert code == 2
    assert "* Shard 1/1 ended with exit status 2, " in capsys.readouterr().out


@pytest.mark.parametrize("status", [1, 2, 5, -9])
def test_exit_status_of_a_failed_shard_without_a_failed_test_is_reported(status: int) -> None:
    shard = shard_of(a_record(exit_status=status))

    said = shard.bad_end(results_of(a_case(TESTS[0])))

    assert said is not None
    assert f"Shard 1/1 ended with exit status {status}, " in said


def test_failed_test_explains_only_exit_status_1_of_a_shard() -> None:
    results = results_of(a_case(TESTS[0], "<failure/>"))

    assert shard_of(a_record(exit_status=1)).bad_end(results) is None
    assert shard_of(a_record(exit_status=2)).bad_end(results) is not None


def test_failed_test_does_not_explain_the_exit_status_of_another_shard(tmp_path: Path) -> None:
    for number, body in ((1, "<failure/>"), (2, "")):
        tests = TESTS[number * 3 - 3 : number * 3]
        a_shard(tmp_path, a_record(number, tests, count=2, exit_status=1), body)

    merged = merge([tmp_path], tmp_path / "to", is_partial=False, root=tmp_path)

    assert merged.failed == 1
    assert [each.partition(",")[0] for each in merged.bad_ends] == [
        "Shard 2/2 ended with exit status 1"
    ]


def test_exit_status_of_a_shard_without_tests_is_not_reported_as_a_failure() -> None:
    assert shard_of(a_record(tests=[], exit_status=5)).bad_end([]) is None


def test_shard_whose_results_differ_from_its_list_of_tests_is_refused(tmp_path: Path) -> None:
    report = a_shard(tmp_path, a_record(exit_status=3)) / "start-1/junit.xml"
    report.write_text(report.read_text().replace(a_case(TESTS[3]), ""))

    with pytest.raises(
        BadInputError,
        match=(
            r"lists 6 tests .*no result: 1 of them, such as 'a\.py::test_3'.* ended with exit status 3"
        ),
    ):
        merged_one(tmp_path)
    assert not (tmp_path / "to").exists()

    assert len(merged_one(tmp_path, is_partial=True).problems) == 1


@pytest.mark.parametrize(
    ("listed", "cases", "difference"),
    [
        (TESTS[:1], [*TESTS[:1], "a.py::b"], "not in its list: 1 of them, such as 'a::b'"),
        (TESTS[:1], TESTS[:1] * 2, "several entries: 1 of them, such as 'a::test_0'"),
        (TESTS[:1] * 2, TESTS[:1], "several entries: 1 of them, such as 'a.py::test_0'"),
    ],
    ids=["unlisted", "twice", "listed twice"],
)
def test_difference_between_the_results_and_the_list_of_tests_is_found(
    listed: Sequence[str], cases: Sequence[str], difference: str
) -> None:
    said = shard_of(a_record(tests=listed)).difference(results_of(*map(a_case, cases)))

    assert said is not None
    assert f"({difference})" in said.replace("results of tests that are ", "")


@pytest.mark.parametrize(
    "tests",
    [
        ["a/b_spec.sh::c", "a.b_spec.sh::c"],
        ["a_spec.sh::b::c", "a_spec.sh::b.c"],
        ["a/b/test_c.py::test_d[e]", "a.b/test_c.py::test_d[e]"],
    ],
)
def test_tests_with_the_same_name_in_the_junit_report_are_listed_together(
    tests: list[str],
) -> None:
    name = case_name(tests[0])
    classname, _, own = name.rpartition("::")
    case = f'<testcase classname="{classname}" name="{own}"/>'

    said = shard_of(a_record(tests=["a.py::b", *tests])).difference(
        results_of('<testcase classname="a" name="b"/>', case, case)
    )

    assert said is not None
    assert f"'{tests[0]}' and '{tests[1]}'" in said
    assert "rename" in said


def test_skipped_module_is_not_counted_as_a_test_result() -> None:
    module = '<testcase classname="" name="b"><skipped message="collection skipped"/></testcase>'
    results = results_of(a_case(TESTS[0]), module)

    assert shard_of(a_record(tests=TESTS[:1])).difference(results) is None


@pytest.mark.parametrize(
    ("results", "problem"),
    [
        (['<failure message="a"/>', ""], None),
        (["", "<failure>trace</failure>"], "trace"),
        (["", "", '<error message="a"/>'], "a"),
        (['<failure message="a"/>', '<failure message="b"/>'], "b"),
        (['<failure message="a"/>', "", '<error message="end"/>'], "end"),
        (['<failure message="a"/>', '<error message="b"/>', '<error message="end"/>'], "b"),
        (['<failure message="a"/>', '<skipped message="s"/>'], None),
    ],
)
def test_repeated_test_has_the_outcome_of_its_last_result(
    results: list[str], problem: str | None
) -> None:
    cases = results_of(*(a_case(TESTS[0], body) for body in results))

    assert [case.problem for case in cases] == [problem]
    record = a_record(tests=TESTS[:1], repeated=TESTS[:1])
    assert shard_of(record).difference(cases) is None


def test_time_and_properties_of_a_repeated_test_come_from_its_last_result() -> None:
    def result(seconds: int, behaviour: str, *names: str) -> str:
        properties = f'<property name="behaviour" value="{behaviour}"/>' + "".join(
            f'<property name="{each}" value="x"/>' for each in names
        )
        return (
            f'<testcase classname="a" name="b" time="{seconds}"><properties>{properties}</properties>'
            '<failure message="m"/></testcase>'
        )

    (case,) = results_of(result(1, "of before", "harness_could_not_tell"), result(2, "now"))

    assert (case.seconds, case.is_broken, case.results) == (2.0, False, 2)
    assert case.behaviours == ["now"]


def test_failure_in_the_call_phase_is_preferred_to_a_failure_in_the_teardown_phase() -> None:
    results = results_of(
        a_case(TESTS[0], '<failure message="call"/>'), a_case(TESTS[0], '<error message="end"/>')
    )

    assert [case.problem for case in results] == ["call"]
    assert shard_of(a_record(tests=TESTS[:1])).difference(results) is None


@pytest.mark.parametrize(
    ("test_id", "name"),
    [
        ("a/b/test_c.py::TestD::test_e[f::g/h.py-[i]]", "a.b.test_c.TestD::test_e[f::g/h.py-[i]]"),
        ("spec/a_spec.sh::group::says [x] and more", "spec.a_spec.sh.group::says [x] and more"),
        ("test_c.py::test_e", "test_c::test_e"),
    ],
)
def test_name_of_a_case_is_the_name_that_pytest_writes_into_junit_reports(
    test_id: str, name: str
) -> None:
    assert case_name(test_id) == name
    assert case_name(test_id, "ci") == f"ci.{name}"


ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c)"
JUNIT = (
    '<testsuites><testsuite tests="1" failures="0" errors="0"><testcase time="1.5"/></testsuite>'
    "</testsuites>"
)
ENTITIES = '<!DOCTYPE x [<!ENTITY a "lol">]>'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(('tests="1"', f'tests="{word}"') for word in ("1.5", "9" * 5000, "٣")),
        *(('time="1.5"', f'time="{word}"') for word in ("1e99", "inf")),
        ("</testsuites>", ""),
        ("<testsuites>", f"{ENTITIES}<testsuites>"),
        ("<testsuites>", '<!DOCTYPE x SYSTEM "file:///etc/hostname"><testsuites>'),
        ("<testsuites>", '<?xml version="1.0" encoding="no-such"?><testsuites>'),
        ("<testcase ", f"<testcase {'x' * (9 << 17)}='1' "),
        ("testsuite", "other"),
        ('failures="0"', 'failures="1"'),
        ('errors="0"', 'errors="1"'),
        ("</testsuites>", '<testsuite failures="1"/></testsuites>'),
    ],
)
def test_malformed_or_hostile_junit_report_raises_an_error_with_the_file_name(
    tmp_path: Path, old: str, new: str
) -> None:
    report = tmp_path / "junit.xml"
    report.write_text(JUNIT.replace(old, new))

    with pytest.raises(HarnessError, match=r"/junit\.xml: "):
        read_suite(report)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("start-1/allure/1-result.json", "[" * 100_000),
        ("start-1/durations.json", "5"),
        ("start-1/coverage.shell", "junk"),
        ("bench.json", "["),
        ("shard.json", "[" * 100_000),
    ],
)
def test_malformed_file_of_a_shard_raises_an_error_with_the_file_name(
    tmp_path: Path, name: str, content: str
) -> None:
    path = a_shard(tmp_path) / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)

    with pytest.raises(BadInputError, match=re.escape(path.name)):
        merged_one(tmp_path)
    assert not (tmp_path / "to/summary.md").exists()


@pytest.mark.parametrize("content", ['{"uuid": 5}', "[]", '{"uuid": "a", "stop": 1e15}'])
def test_file_that_is_not_a_result_of_allure_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results/a-result.json").write_text(content)

    with pytest.raises(BadInputError, match=r"a-result\.json: The file is not a result"):
        merge_results([tmp_path / "results"], tmp_path / "to")


def a_database(path: Path, statement: str) -> Path:
    """Write data of coverage.py with one line, and change it by a statement of SQL."""
    with contextlib.closing(sqlite3.connect(path)) as data, data:
        data.executescript(
            """
            create table coverage_schema(version int);
            create table meta(key, value);
            create table context(id, context);
            create table file(id, path);
            create table line_bits(file_id, context_id, numbits);
            insert into coverage_schema values (7);
            insert into line_bits values (1, 1, x'01');
            """
        )
        data.executescript(statement)
    return path


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            f"drop table line_bits; create view line_bits as {ENDLESS} select 1 as file_id, x from c",  # noqa: S608
            "it has an object that is not a plain table or index: 'line_bits'",
        ),
        (
            "alter table line_bits add column z as (zeroblob(900000000))",
            "it has an object that is not a plain table or index: 'line_bits'",
        ),
        (
            "create virtual table v using fts5(z)",
            "it has an object that is not a plain table or index",
        ),
        (
            "create trigger t after insert on meta begin delete from file; end",
            "an object that is not a plain table or index",
        ),
        (
            f"{ENDLESS} insert into line_bits select 1, 9 + x, zeroblob(100000) from c limit 9",  # noqa: S608
            "limit 'coverage-lines'",
        ),
        (
            f"{ENDLESS} insert into file select x, 'f' || x from c limit 300",  # noqa: S608
            "limit 'coverage-entries'",
        ),
        (
            f"{ENDLESS} insert into context select x, 'c' || x from c limit 300",  # noqa: S608
            "limit 'coverage-entries'",
        ),
        (
            f"{ENDLESS} insert into line_bits select 1, 9 + x, x'01' from c limit 300",  # noqa: S608
            "limit 'coverage-entries'",
        ),
    ],
    ids=[
        *("view", "computed column", "virtual table", "trigger"),
        *("many lines", "many files", "many contexts", "many pairs"),
    ],
)
def test_coverage_database_with_views_or_too_many_rows_raises_an_error(
    tmp_path: Path, statement: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coverage.py runs SQL on a file from another host."""
    monkeypatch.setenv(COVERAGE_ENTRIES.variable, "200")
    path = a_database(tmp_path / "coverage.shell", statement)

    with pytest.raises((BadInputError, LimitError), match=re.escape(problem)):
        combine([path])


@pytest.mark.parametrize(
    "statement",
    [
        "insert into file values (1, x'ff')",
        "insert into file values (1, 5)",
        "insert into file values (1, null)",
        "insert into meta values ('has_arcs', '0'), ('has_arcs', '1')",
        "insert into meta values ('has_arcs', '1')",
    ],
    ids=["bytes as a path", "number as a path", "no path", "two answers", "branches"],
)
def test_coverage_database_with_values_of_wrong_types_raises_an_error(
    tmp_path: Path, statement: str
) -> None:
    path = a_database(tmp_path / "coverage.shell", statement)

    with pytest.raises(BadInputError, match=r"coverage\.shell: The file is not data of coverage"):
        gather({path: "/"}, tmp_path / "to", tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bench.json", "link"),
        ("start-1/durations.json", "link"),
        ("start-1/coverage.shell", "link"),
        ("start-1/coverage.shell", "fifo"),
        ("start-1/junit.xml", "link"),
    ],
)
def test_symbolic_link_or_fifo_among_a_shards_files_is_refused(
    tmp_path: Path, name: str, kind: str
) -> None:
    """A link would copy a file of this host, and reading a FIFO never ends."""
    path = a_shard(tmp_path) / name
    path.unlink(missing_ok=True)
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    if kind == "link":
        path.symlink_to(secret)
    else:
        os.mkfifo(path)

    with pytest.raises(BadInputError, match=re.escape(path.name)):
        merged_one(tmp_path)


def test_merge_refuses_to_remove_a_shard_in_the_folder_of_an_earlier_merge(tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    (merged / "allure").mkdir(parents=True)
    (merged / "summary.md").touch()
    shard = a_shard(merged / "allure")

    with pytest.raises(
        BadInputError, match=r"shard 1/1 are in '.*/merged/allure', and the merge would remove"
    ):
        merge([shard], merged, is_partial=False, root=tmp_path)

    assert reports_of(shard, 1).is_dir()


@pytest.mark.parametrize("name", ["start-1", "start-1/allure"])
def test_symbolic_link_in_place_of_a_folder_of_reports_is_refused(
    tmp_path: Path, name: str
) -> None:
    path = a_shard(tmp_path) / name
    if not path.exists():
        path.mkdir()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(BadInputError, match="This path is a link"):
        merged_one(tmp_path)


@pytest.mark.parametrize(
    ("variable", "most", "message"),
    [
        ("HARNESS_LIMIT_REPORT_ELEMENTS", 7, "limit 'report-elements'"),
        ("HARNESS_LIMIT_REPORT_LEVELS", 3, "limit 'report-levels'"),
    ],
)
def test_junit_report_with_too_many_elements_or_levels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, most: int, message: str
) -> None:
    report = tmp_path / "junit.xml"
    report.write_text(JUNIT)
    monkeypatch.setenv(variable, str(most))
    read_suite(report)
    monkeypatch.setenv(variable, str(most - 1))

    with pytest.raises(LimitError, match=message):
        read_suite(report)


def test_large_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "junit.xml"
    report.touch()
    os.truncate(report, (1 << 20) + 1)
    monkeypatch.setenv("HARNESS_LIMIT_REPORT_FILE_MIB", "1")

    with pytest.raises(LimitError, match=r"junit\.xml.*: .*limit 'report-file-mib'"):
        read_suite(report)


@pytest.mark.parametrize(
    ("key", "value"),
    [("start", "-1"), ("start", "1" + "0" * 30), ("seconds", "Infinity"),
     ("number", "2"), ("number", "0"), ("count", "999999999"),
     ("collected", "-1"), ("first_test_s", "NaN"), ("exit_status", '"../../x"'),
     ("exit_status", "false"), ("exit_status", '1, "exit_status": 0')],
)  # fmt: skip
def test_shard_record_with_an_impossible_value_is_refused(
    tmp_path: Path, key: str, value: str
) -> None:
    write_manifest(tmp_path, a_record())
    record = tmp_path / "shard.json"
    record.write_text(re.sub(rf'"{key}": [^,\n]*', f'"{key}": {value}', record.read_text()))

    with pytest.raises(BadInputError, match=r"shard\.json"):
        read_shards([tmp_path])


def test_merge_on_a_full_disk_leaves_no_report_of_an_earlier_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_shard(tmp_path)
    merged_one(tmp_path)
    for name in ("behaviours.json", "bench.json", "coverage.shell"):
        (tmp_path / "to" / name).touch()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("harness.merging.merge.write_merged", refuse)
    with pytest.raises(OSError, match="No space left"):
        merged_one(tmp_path)

    assert [path.name for path in (tmp_path / "to").iterdir() if path.is_file()] == [".summary.md"]


def test_failed_write_of_a_result_raises_the_operating_system_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results/a-result.json").write_text('{"uuid": "a"}')

    def refuse(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("pathlib.Path.write_bytes", refuse)
    with pytest.raises(OSError, match="No space left"):
        merge_results([tmp_path / "results"], tmp_path / "to")


NUMBERS = st.one_of(st.integers(), st.floats(), st.text(max_size=8)).map(str)


@given(
    st.dictionaries(st.sampled_from(["tests", "errors", "time", "failures"]), NUMBERS), st.text()
)
def test_junit_report_with_any_attributes_and_text_is_merged_or_refused_with_an_error(
    tmp_path_factory: pytest.TempPathFactory, attributes: dict[str, str], text: str
) -> None:
    suite = ET.Element("testsuite", attributes)
    case = ET.SubElement(suite, "testcase", {"classname": text, "name": text, **attributes})
    ET.SubElement(case, "failure", message=text).text = text
    path = tmp_path_factory.mktemp("fuzz") / "junit.xml"
    path.write_bytes(ET.tostring(suite, "utf-8").replace(b"\0", b""))

    try:
        suites = read_suite(path)
    except HarnessError as error:
        assert "junit.xml" in str(error)  # noqa: PT017 - either is right
        return
    page = render_summary([], cases_of(suites, "1/1"), [])
    assert page.replace("\n", "").isprintable()
    write_merged([("1/1", each) for each in suites], path)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)),
       st.sampled_from(["tests", "ran", "start", "number", "count", "seconds", "host", "schema", "exit_status"]))  # fmt: skip
def test_shard_record_with_any_value_is_merged_or_refused_with_an_error(
    tmp_path_factory: pytest.TempPathFactory, value: object, key: str
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    a_shard(folder)
    record = folder / "1/shard.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), key: value}))

    try:
        merge([folder / "1"], folder / "to", is_partial=True, root=folder)
    except HarnessError as error:
        assert str(error)  # noqa: PT017 - either is right
