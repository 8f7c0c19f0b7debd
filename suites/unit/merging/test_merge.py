"""Merging the reports of shards."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from harness.cli import main
from harness.errors import BadInputError
from harness.merging.junit import Case
from harness.merging.merge import merge
from harness.merging.summary import cause_of, render_summary
from harness.sharding.durations import write_durations
from harness.sharding.manifest import ShardManifest, begin, digest_of, reports_of, write_manifest
from harness.shell.coverage import Tier
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
            exit_status=0,
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


def test_complete_set_becomes_one_with_each_test_once(tmp_path: Path) -> None:
    three_shards(tmp_path / "shards")

    merged = merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert [case.name for case in merged.cases] == [f"a::test_{number}" for number in range(6)]
    root = ET.parse(tmp_path / "to/junit.xml").getroot()  # noqa: S314 - our own
    assert root.get("tests") == "6"
    assert len(list(root.iter("testcase"))) == 6
    assert len(list((tmp_path / "to/allure").iterdir())) == 6
    assert sorted(json.loads((tmp_path / "to/durations.json").read_text())) == TESTS
    assert "**6 tests**: 6 passed" in (tmp_path / "to/summary.md").read_text()


def test_environments_of_the_shards_become_one(tmp_path: Path) -> None:
    three_shards(tmp_path / "shards")
    for number, accelerator in enumerate(("tcg", "kvm", "tcg"), start=1):
        results = tmp_path / f"shards/{number}/start-1/allure"
        (results / "environment.properties").write_text(f"harness=1\naccelerator={accelerator}\n")
        (results / "categories.json").write_text("[]")

    merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    merged = tmp_path / "to/allure"
    assert (merged / "environment.properties").read_text() == "harness=1\naccelerator=tcg, kvm\n"
    assert (merged / "categories.json").read_text() == "[]"


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ({1: TESTS[:2], 3: TESTS[4:]}, "Shard 2/3 is missing"),
        ({1: TESTS[:2], 2: TESTS[1:4], 3: TESTS[4:]}, "Shards 1/3 and 2/3 both ran 1 tests"),
        ({1: TESTS[:2], 2: TESTS[2:3], 3: TESTS[4:]}, "5 tests together, but 6 were collected"),
    ],
    ids=["missing", "overlap", "gap"],
)
def test_set_with_gaps_or_overlaps_is_refused_before_anything_is_written(
    tmp_path: Path, shards: dict[int, list[str]], message: str
) -> None:
    for number, tests in shards.items():
        a_shard(tmp_path / "shards", number, tests)

    with pytest.raises(BadInputError, match=message):
        merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert not (tmp_path / "to").exists()


def test_shard_of_another_collection_is_refused(tmp_path: Path) -> None:
    a_shard(tmp_path, 1, TESTS[:3], count=2)
    a_shard(tmp_path, 2, TESTS[3:], count=2, collection=[*TESTS, "b.py::new"])

    with pytest.raises(BadInputError, match=r"collected 7 tests and shard 1/2 6"):
        merge([tmp_path], tmp_path / "to", is_partial=False, root=tmp_path)


def test_shard_whose_run_ended_early_is_refused(tmp_path: Path) -> None:
    a_shard(tmp_path, 1, TESTS, count=1, ran=TESTS[:4])

    with pytest.raises(
        BadInputError, match=r"no result of 2 of its 6 tests, such as 'a.py::test_4'"
    ):
        merge([tmp_path / "1"], tmp_path / "to", is_partial=False, root=tmp_path)


def test_same_shard_twice_is_refused(tmp_path: Path) -> None:
    a_shard(tmp_path / "one", 1, TESTS, count=1)
    a_shard(tmp_path / "two", 1, TESTS, count=1)

    with pytest.raises(BadInputError, match=r"It has shard 1/1, as '.*one/1' has"):
        merge(
            [tmp_path / "one/1", tmp_path / "two/1"],
            tmp_path / "to",
            is_partial=True,
            root=tmp_path,
        )


def test_incomplete_set_is_merged_on_request_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_shard(tmp_path / "shards", 1, TESTS[:2])

    code = main(
        ["report", "merge", str(tmp_path / "shards/1"), "--partial", "--to", str(tmp_path / "to")]
    )

    assert code == 2
    assert "* Shard 2/3 is missing" in capsys.readouterr().out


def test_failures_are_grouped_by_cause_and_families_kept_apart() -> None:
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
        [],
        [
            failed(1, "Waited 12.5 s for '/run/a1/x'.\nmore"),
            failed(2, "Waited 7 s for '/run/b2/y/z'."),
            failed(3, "No disk.", is_broken=True),
        ],
        [],
    )

    assert "2 expectations not met, 1 could not tell" in page
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
def test_cause_has_no_numbers_nor_paths(problem: str, cause: str) -> None:
    assert cause_of(problem) == cause


def test_behaviours_and_repeated_starts_are_reported(tmp_path: Path) -> None:
    body = (
        '<properties><property name="behaviour" value="3.1: module is built" /></properties>'
        '<failure message="No module.">trace</failure>'
    )
    a_shard(tmp_path, 1, TESTS, count=1, body=body, starts=2)
    (tmp_path / "1/bench.json").write_text('{"clone_ready_s": 1}')

    merged = merge([tmp_path / "1"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert merged.failed == 1
    assert json.loads((tmp_path / "to/behaviours.json").read_text()) == {
        "3.1: module is built": {"a::test_0": "failed"}
    }
    (bench,) = json.loads((tmp_path / "to/bench.json").read_text())
    assert bench == {
        "shard": "1/1",
        "host": "host1",
        "file": "bench.json",
        "result": {"clone_ready_s": 1},
    }
    page = (tmp_path / "to/summary.md").read_text()
    assert "Shard 1/1 was started 2 times" in page
    assert "Behaviours covered: 1, of which 0 hold." in page


def test_coverage_of_two_checkouts_is_of_one_script(tmp_path: Path) -> None:
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


def test_report_that_is_no_junit_is_refused_by_name(tmp_path: Path) -> None:
    shard = a_shard(tmp_path, 1, TESTS, count=1)
    (shard / "start-1/junit.xml").write_text("<testsuites>")

    with pytest.raises(BadInputError, match=r"junit\.xml: It is no JUnit report"):
        merge([shard], tmp_path / "to", is_partial=False, root=tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [('tests="2"', 'tests="x"'), ('time="1.5"', 'time="nan"'), ("</testsuites>", "")],
)
def test_junit_report_of_another_form_is_named(tmp_path: Path, old: str, new: str) -> None:
    three_shards(tmp_path / "shards")
    report = tmp_path / "shards/2/start-1/junit.xml"
    report.write_text(report.read_text().replace(old, new))

    with pytest.raises(BadInputError, match=r"2/start-1/junit\.xml: It is no JUnit report"):
        merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert not (tmp_path / "to").exists()


def test_reports_of_a_shard_are_not_overwritten(tmp_path: Path) -> None:
    three_shards(tmp_path / "shards")
    place = tmp_path / "shards/2/start-1"

    with pytest.raises(BadInputError, match="in the reports of shard 2/3"):
        merge([tmp_path / "shards"], place, is_partial=False, root=tmp_path)

    assert len(list((place / "allure").iterdir())) == 2


def test_folder_with_other_reports_is_refused(tmp_path: Path) -> None:
    three_shards(tmp_path / "shards")
    own = tmp_path / "to/allure/mine-result.json"
    own.parent.mkdir(parents=True)
    own.touch()

    with pytest.raises(BadInputError, match="has 'allure', which no merge wrote"):
        merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert own.exists()
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["allure"]


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


def test_link_among_results_is_not_followed(tmp_path: Path) -> None:
    three_shards(tmp_path / "shards")
    results = tmp_path / "shards/1/start-1/allure"
    (results / "attachment.txt").symlink_to("/etc/hostname")
    (results / "folder").mkdir()

    merge([tmp_path / "shards"], tmp_path / "to", is_partial=False, root=tmp_path)

    assert len(list((tmp_path / "to/allure").iterdir())) == 6


@pytest.mark.parametrize(("number", "count"), [(4, 3), (0, 3), (1, 999_999_999)])
def test_record_of_a_shard_that_can_not_be_is_refused(
    tmp_path: Path, number: int, count: int
) -> None:
    a_shard(tmp_path, number, TESTS, count=count)

    with pytest.raises(BadInputError, match=r"shard\.json"):
        merge([tmp_path], tmp_path / "to", is_partial=True, root=tmp_path)


def test_name_of_a_test_stays_within_its_code() -> None:
    case = Case(
        name="a::test[`<b>`\n# x]",
        shard="1/1",
        outcome="failed",
        seconds=1.0,
        problem="no",
        is_broken=False,
        behaviours=(),
    )

    assert "* `a::test['<b>' # x]` (shard 1/1)" in render_summary([], [case], [])
