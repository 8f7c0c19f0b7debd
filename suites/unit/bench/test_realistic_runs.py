"""The figures of the realistic suite, and the comparison of its verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.bench.realistic import EXAMPLES, write_suite
from harness.bench.realistic_runs import RealisticBench, check_commands, compare_reports
from harness.errors import RequirementError

if TYPE_CHECKING:
    from pathlib import Path

_REPORT = "PASSED a_spec.sh::one - two\nFAILED a_spec.sh::three - a reason\n1 failed, 1 passed\n"


def test_overhead_excludes_external_commands() -> None:
    bench = RealisticBench(cpu_s=10.0, external_cpu_s=1.0, wall_s=6.0, startup_cpu_s=0.5)

    assert bench.overhead_ms == pytest.approx(9000 / EXAMPLES)


def test_missing_command_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RequirementError, match=r"'awk'.*apt-get install mawk"):
        check_commands()


def test_equal_reports_have_no_differing_example() -> None:
    report = "PASSED a_spec.sh::one\nPASSED a_spec.sh::two\n2 passed\n"

    compared = compare_reports([report, report])

    assert (compared.runs, compared.examples, compared.are_identical) == (2, 2, True)


def test_example_that_failed_once_differs() -> None:
    compared = compare_reports([_REPORT, _REPORT.replace("FAILED", "PASSED")])

    assert list(compared.differing) == ["a_spec.sh::three"]
    assert not compared.are_identical


def test_example_that_was_not_reported_each_time_differs() -> None:
    compared = compare_reports(["PASSED a_spec.sh::one\n", ""])

    assert not compared.are_identical


def test_example_that_always_failed_does_not_count_as_identical() -> None:
    compared = compare_reports([_REPORT, _REPORT])

    assert not compared.differing
    assert list(compared.never_passed) == ["a_spec.sh::three"]
    assert not compared.are_identical


def test_suite_has_the_stated_number_of_examples(tmp_path: Path) -> None:
    write_suite(tmp_path)

    texts = [path.read_text() for path in sorted((tmp_path / "spec").iterdir())]
    assert sum(text.count(" It '") for text in texts) == EXAMPLES
    assert not any("@FILE@" in text or "@PART@" in text for text in texts)
