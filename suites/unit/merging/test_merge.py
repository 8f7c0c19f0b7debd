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
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from harness.cli import main
from harness.errors import BadInputError, HarnessError
from harness.limits import COVERAGE_ENTRIES, LimitError
from harness.merging.allure import merge_results
from harness.merging.complete import find_folders, read_shards
from harness.merging.junit import Case, case_name, cases_of, read_suite, write_merged
from harness.merging.merge import Merged, merge
from harness.merging.summary import cause_of, render_summary
from harness.sharding.durations import write_durations
from harness.sharding.manifest import ShardManifest, begin, digest_of, reports_of, write_manifest
from harness.shell.coverage import Place, Tier
from harness.shell.coverage_data import combine, write_data

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TESTS = [f"a.py::test_{number}" for number in range(6)]


def a_case(test_id: str, body: str = "") -> str:
    return (
        f'<testcase classname="a" name="{test_id.partition("::")[2]}" time="1.5">{body}</testcase>'
    )


def a_shard(
    folder: Path,
    number: int,
    tests: Sequence[str],
    *,
    count: int = 3,
    ran: Sequence[str] | None = None,
    body: str = "",
    collection: Sequence[str] = TESTS,
    starts: int = 1,
    root: str = "/checkout",
    exit_status: int = 0,
    repeated: Sequence[str] = (),
) -> Path:
    """Write the reports of a shard; `body` is the content of its first test case in JUnit."""
    shard = folder / str(number)
    for _ in range(starts):
        begin(shard)
    reports = reports_of(shard, starts)
    (reports / "allure").mkdir()
    done = tests if ran is None else ran
    write_manifest(
        shard,
        ShardManifest(
            number=number,
            count=count,
            collection_sha256=digest_of(collection),
            collected=len(collection),
            tests=tuple(tests),
            ran=tuple(done),
            start=starts,
            host=f"host{number}",
            root=root,
            started="2026-01-01T00:00:00+00:00",
            seconds=60.0,
            first_test_s=4.0,
            exit_status=exit_status,
            repeated=tuple(repeated),
        ),
    )
    cases = [a_case(test, body if at == 0 else "") for at, test in enumerate(done)]
    (reports / "junit.xml").write_text(
        f'<testsuites><testsuite name="pytest" tests="{len(done)}" failures="0" errors="0" '
        f'skipped="0" time="3">{"".join(cases)}</testsuite></testsuites>'
    )
    for at, test in enumerate(done):
        result = {"uuid": f"{number}-{at}", "historyId": test, "stop": number}
        (reports / f"allure/{number}-{at}-result.json").write_text(json.dumps(result))
    write_durations(reports / "durations.json", dict.fromkeys(done, 1.0))
    return shard


def three_shards(folder: Path) -> None:
    for number in (1, 2, 3):
        a_shard(folder, number, TESTS[number * 2 - 2 : number * 2])


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


@pytest.mark.parametrize(
    ("folders", "kept"),
    [
        ([{"a": 100, "b": 200}, {}], "ab"),
        ([{"a": 200, "b": 100}, {"c": 150}], "ab"),
        ([{"a": 100, "b": 200}, {"c": 150}], "ab"),
        ([{"a": 100, "b": 200}, {"c": 250}], "c"),
        ([{"a": 100}, {"b": 50, "c": 150, "d": 90}], "bcd"),
        ([{"a": 100}, {"b": 100}], "a"),
        ([{"a": 100}, {"b": 300}, {"c": 200}], "b"),
    ],
)
def test_results_of_a_test_come_from_the_shard_that_ran_it_last(
    tmp_path: Path, folders: Sequence[dict[str, int]], kept: str
) -> None:
    """Result files have random names, so their order says nothing about time."""
    for number, results in enumerate(folders):
        (tmp_path / str(number)).mkdir()
        for name, stop in results.items():
            (tmp_path / f"{number}/{name}-result.json").write_text(
                json.dumps({"uuid": name, "historyId": "h", "stop": stop})
            )

    count = merge_results([tmp_path / str(each) for each in range(len(folders))], tmp_path / "to")

    assert count == 1
    assert sorted(path.name[0] for path in (tmp_path / "to").iterdir()) == list(kept)


def test_environment_files_of_the_shards_are_merged(tmp_path: Path) -> None:
    three_shards(tmp_path / "shards")
    for number, accelerator in enumerate(("tcg", "kvm", "tcg"), start=1):
        results = tmp_path / f"shards/{number}/start-1/allure"
        (results / "environment.properties").write_text(
            f"# a=b\n!c=d\n\nkernel=root={accelerator}\naccelerator={accelerator}\n"
        )
        (results / "categories.json").write_text("[]")

    merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    merged = tmp_path / "to/allure"
    assert (
        merged / "environment.properties"
    ).read_text() == "kernel=root=tcg, root=kvm\naccelerator=tcg, kvm\n"
    assert (merged / "categories.json").read_text() == "[]"


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        (
            {2: TESTS[2:4]},
            r"shards: Shard 1/3 is missing: give [\w ]+\. Shard 3/3 is missing: give [\w ]+\.$",
        ),
        ({1: TESTS[:2], 2: TESTS[1:4], 3: TESTS[4:]}, "Shards 1/3 and 2/3 both ran 1 tests"),
        (
            {1: TESTS[:2], 2: TESTS[2:4], 3: [*TESTS[4:], TESTS[1]]},
            "Shards 1/3 and 3/3 both ran 1",
        ),
        ({1: TESTS[:2], 2: TESTS[2:3], 3: TESTS[4:]}, "5 tests together, not the 6 that were"),
        (
            {1: TESTS[:2], 2: [TESTS[2], "b.py::other"], 3: TESTS[4:]},
            "6 tests together, not the 6 that were collected",
        ),
    ],
    ids=["missing", "overlap", "overlap of the last", "gap", "another test in place of one"],
)
def test_shards_with_missing_or_repeated_tests_are_refused_before_anything_is_written(
    tmp_path: Path, shards: dict[int, list[str]], message: str
) -> None:
    for number, tests in shards.items():
        a_shard(tmp_path / "shards", number, tests)

    with pytest.raises(BadInputError, match=message):
        merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert not (tmp_path / "to").exists()


def test_shard_that_collected_other_tests_is_refused(tmp_path: Path) -> None:
    a_shard(tmp_path, 1, TESTS[:3], count=2)
    a_shard(tmp_path, 2, TESTS[3:], count=2, collection=[*TESTS, "b.py::new"])

    with pytest.raises(BadInputError, match=r"collected 7 tests, and shard 1/2 collected 6"):
        merge([tmp_path], tmp_path / "to", is_partial=False, root=tmp_path)


def test_shard_of_a_run_with_another_count_of_shards_is_refused(tmp_path: Path) -> None:
    """The shards are of two runs, although together they have each test exactly once."""
    for number, count in ((1, 3), (2, 2), (3, 3)):
        a_shard(tmp_path, number, TESTS[number * 2 - 2 : number * 2], count=count)

    with pytest.raises(BadInputError, match=r"Shard 2/2 collected .* but not the same tests"):
        merge([tmp_path], tmp_path / "to", is_partial=False, root=tmp_path)


def test_shard_whose_run_ended_early_is_refused(tmp_path: Path) -> None:
    a_shard(tmp_path, 1, TESTS[:1], count=2)
    a_shard(tmp_path, 2, TESTS[1:], count=2, ran=TESTS[1:5])

    with pytest.raises(
        BadInputError, match=r"Shard 2/2 has no result of 1 of its 5 tests, such as 'a.py::test_5'"
    ):
        merge([tmp_path], tmp_path / "to", is_partial=False, root=tmp_path)


def test_merge_error_distinguishes_a_killed_shard_from_a_folder_without_a_shard(
    tmp_path: Path,
) -> None:
    three_shards(tmp_path / "shards")
    (tmp_path / "shards/2/shard.json").unlink()
    (tmp_path / "other").mkdir()

    with pytest.raises(
        BadInputError,
        match=r"(?s)shards/2: The shard was started once, but wrote no.*other: There is no 'shard\.json'",
    ):
        merge(
            [tmp_path / "shards", tmp_path / "other"],
            tmp_path / "to",
            is_partial=False,
            root=tmp_path,
        )


def test_shard_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    a_shard(tmp_path / "one", 1, TESTS, count=1)
    a_shard(tmp_path / "two", 1, TESTS, count=1)

    with pytest.raises(BadInputError, match=r"has the reports of shard 1/1, and so has '.*one/1'"):
        merge(
            [tmp_path / "one/1", tmp_path / "two/1"],
            tmp_path / "to",
            is_partial=True,
            root=tmp_path,
        )


def test_incomplete_set_of_shards_is_merged_on_request_and_missing_shards_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_shard(tmp_path / "shards", 1, TESTS[:2])

    code = main(
        ["report", "merge", str(tmp_path / "shards/1"), "--partial", "--to", str(tmp_path / "to")]
    )

    assert code == 2
    assert "* Shard 2/3 is missing" in capsys.readouterr().out


def test_failures_are_grouped_by_cause_and_failed_tests_are_separated_from_broken_tests(
    tmp_path: Path,
) -> None:
    shards, _ = read_shards([a_shard(tmp_path, 1, TESTS, count=1)])

    def failed(number: int, problem: str, *, is_broken: bool = False) -> Case:
        return Case(
            name=f"a::test_{number}",
            shard="1/1",
            outcome="failed",
            seconds=1,
            problem=problem,
            is_broken=is_broken,
            behaviours=(),
        )

    page = render_summary(
        shards,
        [
            failed(1, "Waited 12.5 s for '/run/a1/x'.\nmore"),
            failed(2, "Waited 7 s for '/run/b2/y/z'."),
            failed(3, "No disk.", is_broken=True),
            failed(4, "No disk."),
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
def test_cause_for_grouping_leaves_out_numbers_and_paths(problem: str, cause: str) -> None:
    assert cause_of(problem) == cause


def test_restarted_shards_and_the_behaviours_of_tests_are_reported(tmp_path: Path) -> None:
    body = (
        '<properties><property name="behaviour" value="3.1: module is built" /></properties>'
        '<failure message="No module.">trace</failure>'
    )
    a_shard(tmp_path, 1, TESTS, count=1, body=body, starts=2)
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
        ({"a": "passed", "b": "failed"}, 0),
        ({"a": "failed", "b": "passed"}, 0),
        ({"a": "passed", "b": "skipped"}, 0),
        ({"a": "skipped"}, 0),
    ],
)
def test_behaviour_is_shown_to_hold_only_if_all_its_tests_passed(
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
        shard = a_shard(tmp_path / "shards", number, tests, count=2, root=str(checkout))
        write_data({Tier.MOCKED: {}}, [checkout], shard / "start-1/coverage.shell")

    merge(
        [tmp_path / "shards"],
        tmp_path / "to",
        is_partial=False,
        root=tmp_path / "checkout1",
    )

    combined = combine([tmp_path / "to/coverage.shell"])
    assert list(combined.measured_files()) == [str(tmp_path / "checkout1/a.sh")]


def test_reports_of_a_shard_are_not_overwritten(tmp_path: Path) -> None:
    """This holds even if another path leads to the reports."""
    three_shards(tmp_path / "shards")
    (tmp_path / "link").symlink_to(tmp_path / "shards/2")
    place = tmp_path / "link/start-1/allure"

    with pytest.raises(BadInputError, match="in the reports of shard 2/3"):
        merge([tmp_path / "shards"], place, is_partial=False, root=tmp_path)

    assert len(list(place.iterdir())) == 2


@pytest.mark.parametrize("name", ["allure/mine-result.json", "summary.md"])
def test_folder_with_other_reports_is_refused(tmp_path: Path, name: str) -> None:
    three_shards(tmp_path / "shards")
    own = tmp_path / "to" / name
    own.parent.mkdir(parents=True)
    own.write_text("# Chapters\n")

    with pytest.raises(
        BadInputError,
        match=f"has '{name.partition('/')[0]}', which this merge would replace, but no merge wrote these",
    ):
        merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert own.exists()
    assert [path.name for path in (tmp_path / "to").iterdir()] == [name.partition("/")[0]]


def test_earlier_merge_is_replaced(tmp_path: Path) -> None:
    three_shards(tmp_path / "shards")
    merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)
    (tmp_path / "to/allure/of-before-result.json").touch()

    merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert not (tmp_path / "to/allure/of-before-result.json").exists()


def test_merge_that_was_killed_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_shards(tmp_path / "shards")
    with monkeypatch.context() as patch:
        patch.setattr("harness.merging.merge.write_durations", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)
    assert not (tmp_path / "to/summary.md").exists()

    merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert (tmp_path / "to/summary.md").exists()
    assert not (tmp_path / "to/.summary.md").exists()


def test_symbolic_link_among_results_is_not_followed(tmp_path: Path) -> None:
    three_shards(tmp_path / "shards")
    results = tmp_path / "shards/1/start-1/allure"
    (results / "attachment.txt").symlink_to("/etc/hostname")
    (results / "folder").mkdir()

    merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert len(list((tmp_path / "to/allure").iterdir())) == 6


def test_result_of_one_shard_does_not_replace_the_result_of_another_shard(tmp_path: Path) -> None:
    three_shards(tmp_path / "shards")
    first, second = (tmp_path / f"shards/{number}/start-1/allure" for number in (1, 2))
    for results in (first, second):
        (results / "categories.json").write_text("[]")
    next(second.glob("*-result.json")).rename(second / next(first.glob("*-result.json")).name)

    with pytest.raises(BadInputError, match="Another shard has a file of this name"):
        merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)


def test_attachment_beyond_the_size_limit_is_refused(tmp_path: Path) -> None:
    """A sparse file of a few bytes on disk would fill the disk."""
    path = a_shard(tmp_path, 1, TESTS, count=1) / "start-1/allure/a-attachment.bin"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(LimitError, match=r"a-attachment\.bin.*limit 'report-file-mib'"):
        merged_one(tmp_path)


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


def test_summary_begins_with_the_cause_of_most_failures(tmp_path: Path) -> None:
    """Each cause lists some of its tests; each shard has the number of its failures."""
    for number in (1, 2):
        tests = TESTS[number * 3 - 3 : number * 3]
        a_shard(tmp_path / "shards", number, tests, count=2, starts=number)
    shards, _ = read_shards(find_folders([tmp_path / "shards"]))
    cases = [
        dataclasses.replace(a_failed_case("a::rare", "Rare."), shard="2/2"),
        *(
            dataclasses.replace(a_failed_case(f"a::test_{number}", "Usual."), shard="1/2")
            for number in range(12)
        ),
        *(
            dataclasses.replace(a_failed_case(f"a::often_{number}", "Often."), shard="2/2")
            for number in range(10)
        ),
        dataclasses.replace(a_failed_case("a::good"), shard="1/2", outcome="passed", problem=None),
    ]

    page = render_summary(shards, cases, [])

    places = [page.index(f"### {each}.") for each in ("12 failed: Usual", "10 failed: Often")]
    assert [*places, page.index("### 1 failed: Rare.")] == sorted(
        [*places, page.index("### 1 failed: Rare.")]
    )
    assert (page.count("* `a::test_"), page.count("* `a::often_")) == (10, 10)
    assert re.findall(r"^\* and .*$", page, re.MULTILINE) == ["* and 2 more"]
    assert re.findall(r"Shard (\S+) was started (\d+) times", page) == [("2/2", "2")]
    assert "| 1/2 | 3 | 12 | 60 | 4 s | host1 |" in page
    assert "| 2/2 | 3 | 11 | 60 | 4 s | host2 |" in page


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
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
def test_text_of_a_guest_is_escaped_in_the_report_pages(tmp_path: Path, text: str) -> None:
    """This covers test names, host names, causes and messages. GitHub also links plain URLs."""
    (shard,), _ = read_shards([a_shard(tmp_path, 1, TESTS, count=1)])
    other = dataclasses.replace(shard, manifest=dataclasses.replace(shard.manifest, host=text))

    page = render_summary([other], [a_failed_case(f"a::test[{text}]", text)], [text], [text])

    assert page.isascii()
    assert "\x1b" not in page
    assert re.search(r"(?<!\\)://|www\.", page) is None
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(page)
    tags = {each.partition(" ")[0] for each in re.findall(r"<(/?[a-zA-Z][^>]*)", html)}
    allowed = {
        "h1",
        "h2",
        "h3",
        "p",
        "strong",
        "ul",
        "li",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
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
        assert earlier.read() == "earlier", "Who reads it meanwhile has all of the earlier one."

    root = ET.parse(path).getroot()  # noqa: S314 - our own
    sums = {"tests": "49", "failures": "11", "errors": "22", "skipped": "8", "time": "1.000"}
    assert {name: root.get(name) for name in sums} == sums
    assert list(tmp_path.iterdir()) == [path]


def test_broken_test_is_included_in_the_number_of_failed_tests() -> None:
    broken = dataclasses.replace(a_failed_case("a"), is_broken=True)
    passed = dataclasses.replace(a_failed_case("b"), outcome="passed", problem=None)

    merged = Merged(
        shards=[], cases=[broken, a_failed_case("c"), passed], problems=[], bad_ends=[]
    )

    assert merged.failed == 2


def merged_one(folder: Path, *, is_partial: bool = False) -> Merged:
    return merge([folder / "1"], folder / "to", is_partial=is_partial, root=folder)


@pytest.mark.parametrize("status", [1, 2, 5, -9])
def test_exit_status_of_a_failed_shard_without_a_failed_test_is_reported(
    tmp_path: Path, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    a_shard(tmp_path, 1, TESTS, count=1, exit_status=status)

    code = main(["report", "merge", str(tmp_path / "1"), "--to", str(tmp_path / "to")])

    assert code == 2
    assert f"* Shard 1/1 ended with exit status {status}, " in capsys.readouterr().out


@pytest.mark.parametrize("failure", ['<failure message="No."/>', "<failure/>"])
def test_exit_status_1_is_reported_only_for_a_shard_without_a_failed_test(
    tmp_path: Path, failure: str
) -> None:
    for number, body in ((1, failure), (2, "")):
        tests = TESTS[number * 3 - 3 : number * 3]
        a_shard(tmp_path, number, tests, count=2, exit_status=1, body=body)

    merged = merge([tmp_path], tmp_path / "to", is_partial=False, root=tmp_path)

    assert merged.failed == 1
    assert [each.partition(",")[0] for each in merged.bad_ends] == [
        "Shard 2/2 ended with exit status 1"
    ]


def test_exit_status_of_a_shard_without_tests_is_not_reported_as_a_failure(tmp_path: Path) -> None:
    a_shard(tmp_path, 1, [], count=1, collection=[], exit_status=5)

    assert merged_one(tmp_path).bad_ends == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (a_case(TESTS[3]), "", "no result: 1 of them, such as 'a.py::test_3'"),
        (
            a_case(TESTS[3]),
            a_case("a.py::other"),
            "not in its list: 1 of them, such as 'a::other'",
        ),
        (
            a_case(TESTS[3]),
            a_case(TESTS[3]) * 2,
            "several entries: 1 of them, such as 'a::test_3'",
        ),
    ],
    ids=["missing", "unlisted", "twice"],
)
def test_results_that_differ_from_the_list_of_tests_are_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    report = a_shard(tmp_path, 1, TESTS, count=1, exit_status=3) / "start-1/junit.xml"
    report.write_text(report.read_text().replace(old, new))

    with pytest.raises(
        BadInputError, match=f"Shard 1/1 lists 6 tests .*{message}.* ended with exit status 3"
    ):
        merged_one(tmp_path)
    assert not (tmp_path / "to").exists()

    assert len(merged_one(tmp_path, is_partial=True).problems) == 1


def test_list_of_tests_that_has_a_test_twice_is_refused(tmp_path: Path) -> None:
    a_shard(tmp_path, 1, TESTS, count=1)
    record = tmp_path / "1/shard.json"
    record.write_text(record.read_text().replace('"tests": [', '"tests": ["a.py::test_0",', 1))

    with pytest.raises(
        BadInputError, match=r"several entries: 1 of them, such as 'a\.py::test_0'"
    ):
        merged_one(tmp_path)


def test_skipped_module_is_not_counted_as_a_test_result(tmp_path: Path) -> None:
    report = a_shard(tmp_path, 1, TESTS, count=1) / "start-1/junit.xml"
    module = '<testcase classname="" name="b"><skipped message="collection skipped"/></testcase>'
    report.write_text(report.read_text().replace("</testsuite>", f"{module}</testsuite>"))

    assert merged_one(tmp_path).problems == []


@pytest.mark.parametrize(
    ("results", "problem"),
    [
        (['<failure message="a"/>', ""], None),
        (["", '<failure message="a"/>'], "a"),
        (["", "<failure>trace</failure>"], "trace"),
        (["", "", '<error message="a"/>'], "a"),
        (['<failure message="a"/>', '<failure message="b"/>'], "b"),
        (['<failure message="a"/>', "", '<error message="end"/>'], "end"),
        (["", '<failure message="a"/>', '<error message="end"/>'], "a"),
        (['<failure message="a"/>', '<error message="b"/>', '<error message="end"/>'], "b"),
        (['<failure message="a"/>', '<skipped message="s"/>'], None),
    ],
)
def test_repeated_test_has_the_outcome_of_its_last_result(
    tmp_path: Path, results: list[str], problem: str | None
) -> None:
    failed = int(problem is not None)
    a_shard(tmp_path, 1, TESTS, count=1, repeated=TESTS[:1], exit_status=failed)
    report = tmp_path / "1/start-1/junit.xml"
    cases = "".join(a_case(TESTS[0], body) for body in results)
    report.write_text(report.read_text().replace(a_case(TESTS[0]), cases))

    merged = merged_one(tmp_path)

    assert (merged.failed, merged.problems, merged.bad_ends) == (failed, [], [])
    assert merged.cases[0].problem == problem


def test_time_and_properties_of_a_repeated_test_come_from_its_last_result() -> None:
    def result(seconds: int, behaviour: str, *names: str) -> str:
        properties = f'<property name="behaviour" value="{behaviour}"/>' + "".join(
            f'<property name="{each}" value="x"/>' for each in names
        )
        return (
            f'<testcase classname="a" name="b" time="{seconds}"><properties>{properties}</properties>'
            '<failure message="m"/></testcase>'
        )

    first = result(1, "of before", "harness_could_not_tell")
    suite = ET.fromstring(f"<testsuite>{first}{result(2, 'now')}</testsuite>")  # noqa: S314 - our own

    (case,) = cases_of([suite], "1/1")

    assert (case.seconds, case.is_broken, case.results) == (2.0, False, 2)
    assert case.behaviours == ["now"]


def test_failure_in_the_call_phase_is_preferred_to_a_failure_in_the_teardown_phase(
    tmp_path: Path,
) -> None:
    a_shard(tmp_path, 1, TESTS, count=1)
    report = tmp_path / "1/start-1/junit.xml"
    both = a_case(TESTS[0], '<failure message="call"/>') + a_case(
        TESTS[0], '<error message="end"/>'
    )
    report.write_text(report.read_text().replace(a_case(TESTS[0]), both))

    assert [case.problem for case in merged_one(tmp_path).cases if case.problem] == ["call"]


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


DEEP = "<a>" * 5000 + "</a>" * 5000
ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c)"
ENTITIES = '<!DOCTYPE x [<!ENTITY a "lol">]>'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(('tests="6"', f'tests="{word}"') for word in ("1.5", "9" * 5000, "٣")),
        *(('time="1.5"', f'time="{word}"') for word in ("1e99", "inf")),
        ("<testsuites>", f"<testsuites>{DEEP}"),
        ("</testsuites>", ""),
        ("<testsuites>", f"{ENTITIES}<testsuites>"),
        ("<testsuites>", '<!DOCTYPE x SYSTEM "file:///etc/hostname"><testsuites>'),
        ("<testsuites>", '<?xml version="1.0" encoding="no-such"?><testsuites>'),
        ("<testcase ", f"<testcase {'x' * (2 << 20)}='1' "),
        ("testsuite", "other"),
        ('failures="0"', 'failures="1"'),
        ('errors="0"', 'errors="1"'),
        ("</testsuites>", '<testsuite failures="1"/></testsuites>'),
    ],
)
def test_hostile_junit_report_gives_an_error_message(tmp_path: Path, old: str, new: str) -> None:
    report = a_shard(tmp_path, 1, TESTS, count=1) / "start-1/junit.xml"
    report.write_text(report.read_text().replace(old, new))

    with pytest.raises(HarnessError, match=r"start-1/junit\.xml: "):
        merged_one(tmp_path)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("start-1/allure/1-0-result.json", "[" * 100_000),
        ("start-1/allure/1-0-result.json", '{"uuid": "a", "stop": 1' + "0" * 4000 + "}"),
        ("start-1/allure/1-0-result.json", '{"uuid": 5}'),
        ("start-1/allure/1-0-result.json", "[]"),
        ("start-1/allure/1-0-result.json", '{"uuid": "a", "stop": 1e15}'),
        ("start-1/durations.json", '{"a": 1' + "0" * 4000 + "}"),
        ("start-1/durations.json", "5"),
        ("start-1/coverage.shell", "junk"),
        ("bench.json", "[" * 100_000),
        ("shard.json", "[" * 100_000),
    ],
)
def test_hostile_file_of_a_shard_gives_an_error_message(
    tmp_path: Path, name: str, content: str
) -> None:
    path = a_shard(tmp_path, 1, TESTS, count=1) / name
    path.write_bytes(content.encode("latin-1"))

    with pytest.raises(BadInputError, match=re.escape(path.name)):
        merged_one(tmp_path)
    assert not (tmp_path / "to/summary.md").exists()


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (
            [
                "drop table line_bits",
                f"create view line_bits as {ENDLESS} select 1 as file_id, 1 as context_id, x as numbits from c",  # noqa: S608
            ],
            "it has an object that is not a plain table or index: 'line_bits'",
        ),
        (
            ["alter table line_bits add column z as (zeroblob(900000000))"],
            "it has an object that is not a plain table or index: 'line_bits'",
        ),
        (
            ["create virtual table v using fts5(z)"],
            "it has an object that is not a plain table or index",
        ),
        (
            ["create trigger t after insert on meta begin delete from file; end"],
            "an object that is not a plain table or index",
        ),
        (["update line_bits set numbits = zeroblob(300000)"], "limit 'coverage-lines'"),
        (
            [
                f"{ENDLESS} insert into line_bits select 1, 9 + x, zeroblob(100000) from c limit 9",  # noqa: S608
            ],
            "limit 'coverage-lines'",
        ),
        (
            [f"{ENDLESS} insert into context(context) select 'c' || x from c limit 300"],  # noqa: S608
            "limit 'coverage-entries'",
        ),
        (
            [f"{ENDLESS} insert into line_bits select 1, 9 + x, x'01' from c limit 300"],  # noqa: S608
            "limit 'coverage-entries'",
        ),
    ],
    ids=[
        *("view", "computed column", "virtual table", "trigger"),
        *("many lines", "many lines in pieces", "many contexts", "many pairs"),
    ],
)
def test_coverage_database_with_views_or_beyond_its_limits_gives_an_error_message(
    tmp_path: Path, statements: Sequence[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coverage.py runs SQL on a file from another host."""
    monkeypatch.setenv(COVERAGE_ENTRIES.variable, "200")
    script = tmp_path / "a.sh"
    script.write_text("echo\n")
    path = a_shard(tmp_path, 1, TESTS, count=1) / "start-1/coverage.shell"
    write_data({Tier.MOCKED: {str(script): {Place(1, 1, 1)}}}, [script], path)
    with contextlib.closing(sqlite3.connect(path)) as data, data:
        for statement in statements:
            data.execute(statement)

    for read in (lambda: merged_one(tmp_path), lambda: combine([path])):
        with pytest.raises((BadInputError, LimitError), match=re.escape(problem)):
            read()


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
def test_coverage_with_values_of_other_types_gives_an_error_message(
    tmp_path: Path, statement: str
) -> None:
    path = a_shard(tmp_path, 1, TESTS, count=1) / "start-1/coverage.shell"
    with contextlib.closing(sqlite3.connect(path)) as data, data:
        data.execute("create table coverage_schema(version int)")
        data.execute("insert into coverage_schema values (7)")
        for table in ("meta(key, value)", "context(id, context)", "file(id, path)"):
            data.execute(f"create table {table}")
        data.execute("create table line_bits(file_id, context_id, numbits)")
        data.execute(statement)

    with pytest.raises(BadInputError, match=r"coverage\.shell: The file is not data of coverage"):
        merged_one(tmp_path)


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
    path = a_shard(tmp_path, 1, TESTS, count=1) / name
    path.unlink(missing_ok=True)
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    if kind == "link":
        path.symlink_to(secret)
    else:
        os.mkfifo(path)

    with pytest.raises(BadInputError, match=re.escape(path.name)):
        merged_one(tmp_path)


def test_shard_in_the_folder_of_an_earlier_merge_is_not_removed(tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    (merged / "allure").mkdir(parents=True)
    (merged / "summary.md").touch()
    shard = a_shard(merged / "allure", 1, TESTS, count=1)

    with pytest.raises(
        BadInputError, match=r"shard 1/1 are in '.*/merged/allure', which would be removed"
    ):
        merge([shard], merged, is_partial=False, root=tmp_path)

    assert reports_of(shard, 1).is_dir()


@pytest.mark.parametrize("name", ["start-1", "start-1/allure"])
def test_symbolic_link_in_place_of_a_folder_of_reports_is_refused(
    tmp_path: Path, name: str
) -> None:
    path = a_shard(tmp_path, 1, TESTS, count=1) / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(BadInputError, match="This path is a link"):
        merged_one(tmp_path)


@pytest.mark.parametrize(
    ("variable", "most", "message"),
    [
        ("HARNESS_LIMIT_REPORT_ELEMENTS", 32, "limit 'report-elements'"),
        ("HARNESS_LIMIT_REPORT_LEVELS", 3, "limit 'report-levels'"),
    ],
)
def test_merge_refuses_a_report_beyond_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, most: int, message: str
) -> None:
    a_shard(tmp_path, 1, TESTS, count=1)
    monkeypatch.setenv(variable, str(most))
    merged_one(tmp_path)
    monkeypatch.setenv(variable, str(most - 1))

    with pytest.raises(LimitError, match=message):
        merged_one(tmp_path)


def test_large_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = a_shard(tmp_path, 1, TESTS, count=1) / "start-1/junit.xml"
    os.truncate(report, (1 << 20) + 1)
    monkeypatch.setenv("HARNESS_LIMIT_REPORT_FILE_MIB", "1")

    with pytest.raises(LimitError, match=r"junit\.xml.*: .*limit 'report-file-mib'"):
        merged_one(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("start", "-1"), ("start", "1" + "0" * 30), ("seconds", "Infinity"),
     ("number", "2"), ("number", "0"), ("count", "999999999"),
     ("collected", "-1"), ("first_test_s", "NaN"), ("exit_status", '"../../x"')],
)  # fmt: skip
def test_record_with_an_impossible_number_is_refused(tmp_path: Path, key: str, value: str) -> None:
    a_shard(tmp_path, 1, TESTS, count=1)
    record = tmp_path / "1/shard.json"
    record.write_text(re.sub(rf'"{key}": [^,\n]*', f'"{key}": {value}', record.read_text()))

    with pytest.raises(BadInputError, match=r"shard\.json"):
        merged_one(tmp_path, is_partial=True)


def test_merge_on_a_full_disk_leaves_no_report_of_an_earlier_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_shard(tmp_path, 1, TESTS, count=1)
    merged_one(tmp_path)
    for name in ("behaviours.json", "bench.json", "coverage.shell"):
        (tmp_path / "to" / name).touch()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("harness.merging.merge.write_merged", refuse)
    with pytest.raises(OSError, match="No space left"):
        merged_one(tmp_path)

    assert [path.name for path in (tmp_path / "to").iterdir() if path.is_file()] == [".summary.md"]


def test_failed_write_of_a_result_is_not_reported_as_an_error_in_the_file_of_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_shard(tmp_path, 1, TESTS, count=1)

    def refuse(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("pathlib.Path.write_bytes", refuse)
    with pytest.raises(OSError, match="No space left"):
        merged_one(tmp_path)


NUMBERS = st.one_of(st.integers(), st.floats(), st.text(max_size=8)).map(str)


@given(
    st.dictionaries(st.sampled_from(["tests", "errors", "time", "failures"]), NUMBERS), st.text()
)
def test_any_attributes_and_text_give_a_report_or_an_error_message(
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
def test_any_value_in_the_record_of_a_shard_gives_a_record_or_an_error_message(
    tmp_path_factory: pytest.TempPathFactory, value: object, key: str
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    a_shard(folder, 1, TESTS, count=1)
    record = folder / "1/shard.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), key: value}))

    try:
        merge([folder / "1"], folder / "to", is_partial=True, root=folder)
    except HarnessError as error:
        assert str(error)  # noqa: PT017 - either is right
