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


def test_overhead_of_an_example_excludes_the_time_of_external_commands() -> None:
    bench = RealisticBench(cpu_s=10.0, external_cpu_s=1.0, wall_s=6.0, startup_cpu_s=0.5)

    assert bench.overhead_ms == pytest.approx(9000 / EXAMPLES)


def test_error_for_a_missing_command_has_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RequirementError, match=r"'awk'.*apt-get install mawk"):
        check_commands()


def test_reports_are_identical_only_if_each_example_passes_in_each_run() -> None:
    """Reports with an example that failed once, is missing once, or always failed are not identical."""
    passed = _REPORT.replace("FAILED", "PASSED")

    same = compare_reports([passed, passed])
    once, unreported = compare_reports([_REPORT, passed]), compare_reports([passed, ""])
    always = compare_reports([_REPORT, _REPORT])

    assert (same.runs, same.examples, same.are_identical) == (2, 2, True)
    assert list(once.differing) == list(always.never_passed) == ["a_spec.sh::three"]
    assert not (once.never_passed)
    assert not (always.differing)
    assert not any(each.are_identical for each in (once, unreported, always))


def test_realistic_suite_has_the_stated_number_of_examples(tmp_path: Path) -> None:
    write_suite(tmp_path)

    texts = [path.read_text() for path in sorted((tmp_path / "spec").iterdir())]
    assert sum(text.count(" It '") for text in texts) == EXAMPLES
    assert not any("@FILE@" in text or "@PART@" in text for text in texts)
