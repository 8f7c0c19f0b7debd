"""What the reports say about survivors and figures, and that the formats are valid."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from harness.mutate.mutants import mutants_of
from harness.mutate.page import render_page
from harness.mutate.reports import render_markdown, render_text, to_json, to_sarif
from harness.mutate.results import Outcome
from harness.mutate.run import Report, Result

_PATH = Path("scripts/a.sh")
_TEXT = 'f() {\n  a "<b>" || return 3  # ``` \u202e\n  c\n}\n'.encode()


def _report(*outcomes: Outcome) -> Report:
    mutants = mutants_of(_TEXT)
    results = [
        Result(script=_PATH, mutant=mutant, outcome=outcome, tests=("spec/a_spec.sh::a|b",))
        for mutant, outcome in zip(mutants, outcomes, strict=False)
    ]
    return Report(
        results=results,
        texts={_PATH: _TEXT},
        tests=1,
        unfit={"spec/a_spec.sh::fails": "it fails"},
        left_out=2,
        seconds=1.0,
        known_before=1,
    )


_EACH = (
    Outcome.SURVIVED, Outcome.KILLED, Outcome.TIMED_OUT, Outcome.NOT_REACHED, Outcome.NOT_TRIED
)  # fmt: skip


def test_score_is_calculated_from_tried_mutants_only() -> None:
    assert _report(*_EACH).score == 50.0
    assert _report(Outcome.NOT_TRIED).score is None
    assert "50 % of 4 planted defects were noticed" in render_text(_report(*_EACH))
    assert "No defect was tried." in render_text(_report(Outcome.NOT_TRIED))


def test_text_report_lists_surviving_mutants_with_the_tests_that_run_the_line() -> None:
    text = render_text(_report(*_EACH))
    assert "survived: scripts/a.sh:2:" in text
    assert "run by 'spec/a_spec.sh::a|b'" in text
    report = _report(*_EACH)
    report.results = [replace(each, tests=tuple("abcde")) for each in report.results]
    assert "run by 'a', 'b', 'c' and 2 more\n" in render_text(report)
    assert "1 were not tried for lack of time" in text
    assert "'spec/a_spec.sh::fails' was left out" in text
    assert "2 tests on machines were left out" in text
    assert "The outcome of 1 defects was known" in text


def test_no_report_format_contains_a_bidirectional_control_character() -> None:
    report = _report(*_EACH)
    reports = [
        render_text(report), render_markdown(report), render_page(report),
        json.dumps(to_json(report), ensure_ascii=False), json.dumps(to_sarif(report, "1"), ensure_ascii=False),
    ]  # fmt: skip
    assert not any("\u202e" in each for each in reports)


def test_page_escapes_the_script_and_marks_each_line_with_its_outcome() -> None:
    assert "<b>" not in render_page(_report(*_EACH))
    assert "<span>  c</span>" in render_page(_report(*_EACH))
    for outcomes, kind in (
        ((Outcome.KILLED, Outcome.SURVIVED, Outcome.NOT_REACHED), "survived"),
        ((Outcome.KILLED, Outcome.NOT_REACHED), "unreached"),
        ((Outcome.TIMED_OUT, Outcome.NOT_TRIED), "noticed"),
        ((Outcome.NOT_TRIED,), ""),
    ):
        report = _report(*outcomes)
        report.texts = {**report.texts, Path("other/a.sh"): _TEXT}
        first, second = render_page(report).split("<h2>")[1:]
        assert f'<div class="{kind}" id="L2">' in first, outcomes
        assert '<div class="" id="L2">' in second, outcomes


def test_markdown_fence_is_longer_than_any_fence_in_the_diff() -> None:
    text = render_markdown(_report(Outcome.SURVIVED))
    assert "````diff\n" in text
    assert "\n````\n" in text


def test_summary_shows_twenty_survivors_and_the_number_of_other_survivors() -> None:
    report = _report(Outcome.SURVIVED)
    for count, others in ((20, ""), (21, "And 1 more"), (25, "And 5 more")):
        report.results = report.results[:1] * count
        text = render_markdown(report)
        assert (text.count("<details>"), others in text) == (20, True)
        assert ("more survived" in text) == bool(others)


def test_each_row_of_the_markdown_table_has_the_same_columns() -> None:
    report = _report(*_EACH)
    report.results += [replace(each, script=Path("other/a|b.sh")) for each in report.results]
    report.texts = {**report.texts, Path("other/a|b.sh"): _TEXT}
    rows = [line for line in render_markdown(report).splitlines() if line.startswith("|")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {6}
    assert [row.partition("` ")[2] for row in rows[2:]] == ["| 2 | 1 | 1 | 1 |"] * 2
    # Outside a table, the backslash would be shown.
    assert "Run by `spec/a_spec.sh::a|b`\n" in render_markdown(report)


def test_json_report_has_each_mutant() -> None:
    report = _report(*_EACH)
    found = cast("list[dict[str, Any]]", to_json(report)["mutants"])
    assert [each["outcome"] for each in found] == [outcome.value for outcome in _EACH]
    assert json.loads(json.dumps(to_json(report)))["counts"]["survived"] == 1


def test_sarif_report_has_all_parts_that_its_schema_requires() -> None:
    """SARIF 2.1.0: version and runs; tool.driver.name; rules with an id; results with message.text."""
    report = _report(*_EACH)
    path = Path("scripts/a #<b>.sh")
    report.results = [replace(each, script=path) for each in report.results]
    report.texts = {path: _TEXT}
    assert "<summary>a #&lt;b&gt;.sh:2: " in render_markdown(report)
    survived, *others = report.results
    report.results = [replace(survived, mutant=replace(survived.mutant, last_line=3)), *others]
    sarif = cast("Any", to_sarif(report, "1.0"))
    assert sarif["version"] == "2.1.0"
    [run] = sarif["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    # The results are the mutant that survived, and the mutant on a line that no test reached.
    assert [result["level"] for result in run["results"]] == ["warning", "note"]
    for result in run["results"]:
        assert result["message"]["text"]
        assert rules[result["ruleIndex"]] == result["ruleId"]
        [location] = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "scripts/a%20%23%3Cb%3E.sh"
        assert place["region"]["startLine"] == 2
        assert place["region"]["endLine"] == (3 if result["level"] == "warning" else 2)
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())


def test_sarif_fingerprint_of_a_mutant_is_the_same_after_its_line_moves() -> None:
    report = _report(Outcome.SURVIVED)
    moved = _TEXT.replace(b"f() {\n", b"# new\nf() {\n  # new\n").replace(b"  c\n", b"  d\n")
    [result] = report.results
    there = next(
        m
        for m in mutants_of(moved)
        if m.new == result.mutant.new and m.operator is result.mutant.operator
    )
    other = Report(
        results=[Result(script=_PATH, mutant=there, outcome=Outcome.SURVIVED, tests=("a",))],
        texts={_PATH: moved}, tests=1, unfit={}, left_out=0, seconds=1.0,
    )  # fmt: skip
    prints = [
        cast("Any", to_sarif(each, "1"))["runs"][0]["results"][0]["partialFingerprints"]
        for each in (report, other)
    ]
    assert prints[0] == prints[1]
