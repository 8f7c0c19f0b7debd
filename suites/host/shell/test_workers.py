"""A run with two workers has the same results as one process; all tests here share this run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import coverage
import pytest

from suites.host.shell.running import GREETING, SpecProject
from suites.unit.shell.samples import SCRIPT

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.command import CommandResult
    from suites.host.shell.running import WarmPytest


@pytest.fixture(scope="module")
def project(warm_pytest: WarmPytest, tmp_path_factory: pytest.TempPathFactory) -> SpecProject:
    made = SpecProject(tmp_path_factory.mktemp("workers"), warm_pytest)
    made.write(".shellspec", "")
    for number in range(4):
        made.write(f"spec/greeting{number}_spec.sh", GREETING)
    (made.root / "latin_spec.sh").write_bytes(
        b"It 'is caf\xe9'\nWhen call printf 'caf\xe9'\nThe output should equal x\nEnd\n"
        b"It 'is the same'\nWhen call printf 'caf\xe9'\nThe output should equal 'caf\xe9'\nEnd\n"
    )
    made.write("lib/choose.sh", SCRIPT)
    for side in ("left", "right"):
        made.write(
            f"{side}_spec.sh",
            f"Describe '{side}'\nInclude ./lib/choose.sh\nIt 'chooses {side}'\n"
            f"When call choose {side}\nThe output should include {side}\nEnd\nEnd\n",
        )
    return made


@pytest.fixture(scope="module")
def result(project: SpecProject) -> CommandResult:
    lib, lcov = project.root / "lib", project.root / "lcov.info"
    return project.run("-n", "2", "-q", f"--shell-cov={lib}", f"--shell-cov-lcov={lcov}")


def test_verdicts_of_all_workers_are_counted(result: CommandResult) -> None:
    assert "5 failed, 15 passed, 4 skipped, 4 xfailed" in result.stdout, result.render()


def test_report_escapes_bytes_that_are_not_utf8(result: CommandResult) -> None:
    assert r"latin_spec.sh::is caf\udce9" in result.stdout
    assert r'got: "caf\udce9"' in result.stdout


def test_coverage_of_all_workers_is_merged(project: SpecProject, result: CommandResult) -> None:
    assert result.stdout
    script: Path = project.root / "lib/choose.sh"
    data = coverage.CoverageData(basename=str(project.root / ".coverage.shell"))
    data.read()
    assert set(data.lines(str(script.resolve())) or []) == {4, 5, 7, 9}
    assert "LH:4" in (project.root / "lcov.info").read_text()
