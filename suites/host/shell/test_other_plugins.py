"""Plugins of pytest that implement hooks of the run protocol work for examples of specs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from suites.host.shell.running import GREETING, outcomes

if TYPE_CHECKING:
    from harness.provisioning.command import CommandResult
    from suites.host.shell.running import SpecProject

_RECORDER = """\
import pytest
from pathlib import Path

SEEN = Path(__file__).with_name("seen")

def _record(hook, nodeid):
    with SEEN.open("a") as file:
        file.write(f"{hook} {nodeid.split('::')[-1]}\\n")

"""
_HOOKS = {
    "runtest_setup": "def pytest_runtest_setup(item): _record('runtest_setup', item.nodeid)",
    "runtest_call": "def pytest_runtest_call(item): _record('runtest_call', item.nodeid)",
    "runtest_teardown": (
        "def pytest_runtest_teardown(item): _record('runtest_teardown', item.nodeid)"
    ),
    "runtest_logreport": (
        "def pytest_runtest_logreport(report):\n"
        "    if report.when == 'teardown': _record('runtest_logreport', report.nodeid)"
    ),
    "runtest_logfinish": (
        "def pytest_runtest_logfinish(nodeid): _record('runtest_logfinish', nodeid)"
    ),
    "runtest_makereport": (
        "@pytest.hookimpl(wrapper=True)\n"
        "def pytest_runtest_makereport(item, call):\n"
        "    if call.when == 'call': _record('runtest_makereport', item.nodeid)\n"
        "    return (yield)"
    ),
    "runtest_protocol": (
        "def pytest_runtest_protocol(item): _record('runtest_protocol', item.nodeid)"
    ),
}
_EXAMPLES = ["greets", "fails", "greets ann", "greets bob", "is skipped", "is to be written"]


_CONTROLLER = """\
from pathlib import Path

class Recorder:
    def pytest_runtest_logreport(self, report):
        with Path(__file__).with_name("seen").open("a") as file:
            file.write(f"{report.when} {report.nodeid.split('::')[-1]}\\n")

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())
"""


def test_worker_without_other_plugins_reports_only_the_call_phase_of_a_passed_example(
    project: SpecProject,
) -> None:
    project.write("conftest.py", _CONTROLLER)
    project.write("greeting_spec.sh", GREETING)

    project.run("-n", "1")

    seen = (project.root / "seen").read_text().splitlines()
    assert [line for line in seen if line.endswith(" greets ann")] == ["call greets ann"]


@pytest.mark.parametrize(
    ("options", "phases"),
    [
        ((), ["call"]),
        (("--timeout=60",), ["setup", "call", "teardown"]),
        (("-o", "timeout=60"), ["setup", "call", "teardown"]),
    ],
    ids=["without a limit", "limit of an option", "limit of the configuration"],
)
def test_example_reports_all_phases_if_the_timeout_plugin_has_a_limit(
    project: SpecProject, options: tuple[str, ...], phases: list[str]
) -> None:
    project.write("conftest.py", _CONTROLLER)
    project.write("greeting_spec.sh", GREETING)

    project.run("-n", "1", "-p", "pytest_timeout", *options)

    seen = (project.root / "seen").read_text().splitlines()
    assert [line.split()[0] for line in seen if line.endswith(" greets ann")] == phases


def test_example_fails_at_the_limit_of_its_timeout_marker(project: SpecProject) -> None:
    project.write(
        "conftest.py",
        "import pytest\n\n\ndef pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        if item.name == 'hangs':\n"
        "            item.add_marker(pytest.mark.timeout(2))\n",
    )
    project.write(
        "slow_spec.sh",
        "It 'hangs'\nWhen run sleep 60\nThe status should be success\nEnd\n"
        "It 'is quick'\nWhen call true\nThe status should be success\nEnd\n",
    )

    result = project.run("-p", "pytest_timeout")

    assert outcomes(result) == {"hangs": "failed", "is quick": "passed"}, result.render()
    assert "Timeout (>2.0s)" in result.stdout


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize("hook", _HOOKS)
def test_hooks_of_another_plugin_run_for_each_example(
    project: SpecProject, hook: str, workers: str
) -> None:
    project.write("conftest.py", _RECORDER + _HOOKS[hook])
    project.write("greeting_spec.sh", GREETING)

    result = project.run("-n", workers)

    seen = (project.root / "seen").read_text().splitlines()
    assert {f"{hook} {name}" for name in _EXAMPLES} == set(seen), result.render()


def test_timeout_plugin_ends_an_example_and_the_next_example_passes(
    project: SpecProject,
) -> None:
    project.write(
        "slow_spec.sh",
        "It 'is quick'\nWhen call true\nThe status should be success\nEnd\n"
        "It 'hangs'\nWhen run sleep 60\nThe status should be success\nEnd\n"
        "It 'is quick too'\nWhen call true\nThe status should be success\nEnd\n"
        "It 'is the last'\nWhen call true\nThe status should be success\nEnd\n",
    )

    result = project.run("-p", "pytest_timeout", "--timeout=2")

    assert outcomes(result) == {
        "is quick": "passed",
        "hangs": "failed",
        "is quick too": "passed",
        "is the last": "passed",
    }, result.render()
    assert "Timeout (>2.0s)" in result.stdout


def test_random_order_shuffles_spec_files_but_not_the_examples_in_a_file(
    project: SpecProject,
) -> None:
    for name in "abcdef":
        project.write(f"{name}_spec.sh", GREETING.replace("'greeting'", f"'{name}'"))
    in_order = project.run("-n", "0")

    shuffled = project.run("-p", "pytest_randomly", "--randomly-seed=17")

    assert sorted(_endings(shuffled)) == sorted(_endings(in_order))
    files = list(dict.fromkeys(name for name, _ in _endings(shuffled)))
    assert files != sorted(files)
    for name in files:
        assert [ending for file, ending in _endings(shuffled) if file == name] == [
            ending for file, ending in _endings(in_order) if file == name
        ]


def test_random_order_still_uses_one_shell_for_each_file(project: SpecProject) -> None:
    examples = "".join(
        f"It 'is number {number}'\nWhen call true\nThe status should equal 0\nEnd\n"
        for number in range(12)
    )
    project.write("a_spec.sh", f'echo started >>"$SHELLSPEC_PROJECT_ROOT/shells"\n{examples}')

    result = project.run("-p", "pytest_randomly", "--randomly-seed=17", "--shell-sandbox=off")

    assert set(outcomes(result).values()) == {"passed"}, result.render()
    assert (project.root / "shells").read_text() == "started\n"


def test_option_failed_first_runs_the_example_that_failed_last_before_other_examples(
    project: SpecProject,
) -> None:
    project.write("a_spec.sh", GREETING)
    project.run("-n", "0")

    again = project.run("-n", "0", "--ff")

    assert next(ending for _, ending in _endings(again)).startswith("fails FAILED"), again.render()


def _endings(result: CommandResult) -> list[tuple[str, str]]:
    """Return the file and the outcome of each example, in the order of the output."""
    pattern = r"(\w+)_spec\.sh::(?:.*::)?(\S.*? (?:PASSED|FAILED|SKIPPED|XFAIL))"
    return [(found[1], found[2]) for found in re.finditer(pattern, result.stdout)]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_rerun_plugin_runs_a_failed_example_again(project: SpecProject, workers: str) -> None:
    project.write(
        "flaky_spec.sh",
        "Describe 'flaky'\n"
        "It 'passes'\nWhen call true\nThe status should be success\nEnd\n"
        "It 'passes at the second attempt'\necho x >>\"$SHELLSPEC_PROJECT_ROOT/count\"\n"
        'count() { grep -c x "$SHELLSPEC_PROJECT_ROOT/count"; }\n'
        "When call count\nThe output should equal 2\nEnd\n"
        "It 'passes as well'\nWhen call true\nThe status should be success\nEnd\n"
        "It 'fails always'\nWhen call false\nThe status should be success\nEnd\nEnd\n",
    )

    result = project.run(
        "-p", "pytest_rerunfailures", "--reruns=2", "-n", workers, "--shell-sandbox=off"
    )

    assert "1 failed, 3 passed, 3 rerun" in result.stdout, result.render()


_FAILING_AFTER_ALL = """\
Describe 'clean-up'
  AfterAll false
  It 'passes before the clean-up fails'
    When call true
    The status should be success
  End
End
"""


@pytest.mark.parametrize("spec", [GREETING, _FAILING_AFTER_ALL + GREETING])
def test_failed_example_is_reported_if_the_rerun_plugin_has_no_rerun_option(
    project: SpecProject, spec: str
) -> None:
    project.write("a_spec.sh", spec)

    result = project.run("-p", "pytest_rerunfailures", "-n", "0", "--shell-sandbox=off")

    assert result.exit_code == 1, result.render()
    assert "INTERNALERROR" not in result.stdout, result.render()
    assert outcomes(result) == outcomes(project.run("-n", "0", "--shell-sandbox=off"))
