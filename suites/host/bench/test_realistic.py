"""The realistic suite passes, and the CPU time of each command that it calls is recorded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.bench.call_accounting import call_accounting
from harness.bench.realistic import EXTERNAL_COMMANDS, write_suite
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S = 120.0


def test_examples_of_the_realistic_suite_pass_and_run_each_command_that_is_measured(
    tmp_path: Path,
) -> None:
    write_suite(tmp_path)

    with call_accounting(EXTERNAL_COMMANDS) as accounting:
        result = LocalRunner().run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
                *("--shell-time=virtual", "--shell-sandbox=off", f"--rootdir={tmp_path}"),
                str(tmp_path / "spec" / "node01_spec.sh"),
            ],
            timeout_s=_TIMEOUT_S,
            env=accounting.environment,
        )
        calls = accounting.calls()

    assert result.ok, result.render()
    assert {call.name for call in calls} == set(EXTERNAL_COMMANDS)
    assert all(call.cpu_s > 0 for call in calls)


def test_measurement_records_cpu_time_and_keeps_the_exit_code_of_each_command() -> None:
    script = """
      true
      dash -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit 7'
      echo $?
      echo "$(/bin/true; dash -c 'exit 3'; echo $?)"
    """

    with call_accounting(["dash"]) as accounting:
        ran = LocalRunner().run(
            ["bash", "-c", script],
            timeout_s=_TIMEOUT_S,
            env=accounting.environment,
        )
        slow, *quick = accounting.calls()

    assert ran.stdout.split() == ["7", "3"], ran.render()
    assert [call.name for call in quick] == ["dash"]
    assert all(slow.cpu_s > 3 * call.cpu_s > 0 for call in quick)


def test_measured_command_runs_without_ld_preload() -> None:
    with call_accounting(["env"]) as accounting:
        ran = LocalRunner().run(
            ["bash", "-c", "env; :"], timeout_s=_TIMEOUT_S, env=accounting.environment
        )

    assert "HARNESS_BENCH_CALLS" in ran.stdout
    assert "LD_PRELOAD" not in ran.stdout
