"""Runs `harness mutate`, as a user does, on a small project with a spec and a test in Python."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.provisioning.command import CommandResult, LocalRunner, spawn
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline, Observation, wait_for

_KUBELET = """\
#!/bin/bash
start_kubelet() {
  systemctl start --no-block kubelet || return 3
  rm -f /run/kubelet-needed
}
"""
_UNCALLED = """\
nobody_calls_this() {
  reboot
}
"""
_SCRIPT = f"""\
{_KUBELET}
wait_for_gpu() {{
  local tries=0
  until nvidia-smi; do
    tries=$((tries + 1))
    if [ "$tries" -ge 3 ]; then
      return 1
    fi
  done
}}

{_UNCALLED}"""
_SPEC = """\
Include scripts/kubelet.sh
Describe 'start_kubelet'
  systemctl() { echo "systemctl $*"; return "$code"; }
  It 'starts the unit'
    code=0
    When call start_kubelet
    The output should equal 'systemctl start --no-block kubelet'
    The status should equal 0
  End
  It 'passes a failure on'
    code=1
    When call start_kubelet
    The output should be present
    The status should equal 3
  End
End
"""
_TEST = """\
def test_gives_up(shell):
    shell.source("scripts/kubelet.sh")
    smi = shell.mock("nvidia-smi").answers("", exit_code=1)
    assert shell.call("wait_for_gpu").status == 1
    assert len(smi.calls) == 3
"""
_BROKEN = """\
def test_is_broken(shell):
    shell.source("scripts/kubelet.sh")
    assert shell.call("nobody_calls_this").status == 1000
"""


class _Project:
    """A project in a folder, and the cache folder in which `harness mutate` stores its results."""

    def __init__(self, root: Path) -> None:
        self.root = root / "project"
        self._env = {
            "XDG_CACHE_HOME": str(root / "cache"),
            "TMPDIR": str(root / "tmp"),
            "PYTHONPATH": str(Path(__file__).parents[3]),
        }
        (root / "tmp").mkdir()
        self.write("scripts/kubelet.sh", _SCRIPT)
        self.write("pytest.ini", "[pytest]\n")
        self.write("harness/__init__.py", "raise ImportError('a package of the project')\n")
        self.write("spec/kubelet_spec.sh", _SPEC)
        self.write("tests/test_gpu.py", _TEST)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def contents(self) -> dict[str, tuple[bytes, int]]:
        files = [path for path in self.root.rglob("*") if path.is_file()]
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    def start(self, *arguments: str) -> Any:
        return spawn(self._argv(*arguments), env=self._env, cwd=self.root)

    def _argv(self, *arguments: str) -> list[str]:
        # Like the installed command, this does not import modules from the current directory.
        program = "import sys; del sys.path[0]; from harness.cli import main; sys.exit(main())"
        return [sys.executable, "-c", program, "mutate", "scripts/kubelet.sh", *arguments]

    def run(self, *arguments: str) -> CommandResult:
        argv = ["env", f"--chdir={self.root}", *self._argv(*arguments)]
        return LocalRunner().run(argv, timeout_s=500.0, env=self._env)

    def outcomes(self, *arguments: str) -> tuple[CommandResult, dict[str, str]]:
        """Run `harness mutate`; return its result, and the outcomes of defects by their changed lines."""
        report = self.root.parent / "report.json"
        result = self.run(*arguments, f"--json={report}")
        mutants = json.loads(report.read_text())["mutants"]
        return result, {_change(each["diff"]): each["outcome"] for each in mutants}


def _change(diff: str) -> str:
    lines = [line for line in diff.splitlines()[2:] if line.startswith(("-", "+"))]
    return "\n".join(f"{line[0]}{line[1:].strip()}" for line in lines)


@pytest.fixture
def project(tmp_path: Path) -> _Project:
    return _Project(tmp_path)


def test_command_reports_the_outcome_of_each_mutant_and_leaves_the_files_unchanged(
    project: _Project,
) -> None:
    before = project.contents()
    reports = {kind: project.root.parent / kind for kind in ("html", "sarif", "markdown")}
    options = [f"--{kind}={path}" for kind, path in reports.items()]

    result, outcomes = project.outcomes("--fail-under=99", *options)

    assert result.exit_code == 1, result.render()
    start = "-systemctl start --no-block kubelet || return 3\n+"
    assert outcomes[f"{start}systemctl start --no-block kubelet"] == "killed"
    assert outcomes[f"{start}systemctl start kubelet || return 3"] == "killed"
    assert outcomes[f"{start}systemctl start --no-block kubelet || return 0"] == "killed"
    assert outcomes["-rm -f /run/kubelet-needed\n+:"] == "survived"
    assert outcomes['-if [ "$tries" -ge 3 ]; then\n+if [ "$tries" -gt 3 ]; then'] == "killed"
    assert outcomes['-if [ "$tries" -ge 3 ]; then\n+if false; then'] == "timed out"
    assert outcomes["-reboot\n+:"] == "not reached"
    assert "survived: scripts/kubelet.sh:4:3: a command is left out" in result.stdout
    assert "-  rm -f /run/kubelet-needed" in result.stdout
    assert "spec/kubelet_spec.sh::start_kubelet::starts the unit" in result.stdout
    assert "kubelet-needed" in reports["html"].read_text()
    assert "```diff" in reports["markdown"].read_text()
    sarif = json.loads(reports["sarif"].read_text())
    assert sarif["runs"][0]["results"][0]["locations"]
    assert project.contents() == before

    # The new test runs only with mutants that survived the first run.
    project.write("tests/test_rm.py", _TEST.replace("gives_up", "removes").replace("== 3", "> 0"))
    again, outcomes_again = project.outcomes()
    assert again.exit_code == 0, again.render()
    assert outcomes_again == outcomes
    assert "defects was known from an earlier run" in again.stdout


def test_script_that_turns_on_extglob_is_mutated(project: _Project) -> None:
    """Without extglob, bash can't parse the pattern; bash turns extglob on only when it runs the script."""
    project.write(
        "scripts/kubelet.sh",
        "shopt -s extglob\nis_ours() {\n  case $1 in\n    *_@(kube|gpu)*) return 0 ;;\n  esac\n"
        "  return 1\n}\n",
    )
    project.write(
        "tests/test_gpu.py",
        'def test_ours(shell):\n    shell.source("scripts/kubelet.sh")\n'
        '    assert shell.call("is_ours", "a_gpu").status == 0\n'
        '    assert shell.call("is_ours", "other").status == 1\n',
    )

    _, outcomes = project.outcomes("--tests=tests")

    assert outcomes["-return 1\n+return 0"] == "killed"


def test_killed_run_leaves_the_files_unchanged_and_is_continued_by_the_next_run(
    project: _Project,
) -> None:
    project.write("scripts/kubelet.sh", _KUBELET + _UNCALLED)
    before = project.contents()
    process = project.start("--workers=1", "--tests=spec")
    results = project.root.parent / "cache"

    def kept() -> Observation[int]:
        lines = sum(file.read_bytes().count(b"\n") for file in results.rglob("*.jsonl"))
        return Observation(lines if lines > 5 else None, f"{lines} results are kept")

    at_kill = wait_for("some results", kept, Deadline.after(300.0, SYSTEM_CLOCK), interval_s=0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    assert project.contents() == before

    def gone() -> Observation[bool]:
        place = str(project.root.parent / "tmp")
        listed = LocalRunner().run(["ps", "-ww", "-e", "-o", "pid,args"], timeout_s=60.0)
        alive = [line for line in listed.stdout.splitlines() if place in line]
        return Observation(None if alive else True, f"processes {alive} still run")

    wait_for("the end of its processes", gone, Deadline.after(60.0, SYSTEM_CLOCK))
    kept_before = {file: file.read_bytes() for file in results.rglob("*.jsonl")}
    result, outcomes = project.outcomes("--workers=1", "--tests=spec")
    assert result.exit_code == 0, result.render()
    assert set(outcomes.values()) >= {"killed", "survived", "not reached"}
    assert at_kill > 5
    for file, content in kept_before.items():
        assert file.read_bytes().startswith(content[: content.rfind(b"\n") + 1])
    folders = list((project.root.parent / "tmp").glob("harness-mutate-*/run-*"))
    assert not folders, "the copies of the killed run are still there"


def test_mutate_with_since_option_mutates_only_lines_that_changed_since_the_revision(
    project: _Project,
) -> None:
    project.write(".gitattributes", "*.sh -diff\n")
    git = ["git", "-C", str(project.root), "-c", "user.email=a@example.org", "-c", "user.name=a"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        LocalRunner().run([*git, *words], timeout_s=60.0).check("git")
    project.write("scripts/kubelet.sh", _SCRIPT.replace("rm -f", "rm -rf"))
    result, outcomes = project.outcomes("--since=HEAD")
    assert result.exit_code == 0, result.render()
    assert outcomes
    assert all("rm -rf" in change for change in outcomes)
    wrong = project.run("--since=nothing")
    assert wrong.exit_code == 2
    assert "There is no revision 'nothing'." in wrong.stderr


def test_python_test_that_reads_the_mutated_script_kills_the_mutant(
    project: _Project,
) -> None:
    project.write("scripts/kubelet.sh", _KUBELET + _UNCALLED)
    project.write("tests/test_gpu.py", _BROKEN)
    project.write(
        "tests/test_text.py",
        "from pathlib import Path\n"
        "TEXT = (Path(__file__).parents[1] / 'scripts/kubelet.sh').read_text()\n"
        "def test_text():\n"
        "    assert '\\n  reboot\\n' in TEXT\n",
    )
    result, outcomes = project.outcomes("--tests", "tests")
    assert "'tests/test_gpu.py::test_is_broken' was left out" in result.stdout
    assert "'reboot' is not mocked" in result.stdout
    assert outcomes["-reboot\n+:"] == "killed"
    assert outcomes["-rm -f /run/kubelet-needed\n+:"] == "not reached"


def test_mutate_command_fails_if_tests_cannot_be_collected(project: _Project) -> None:
    project.write("tests/test_wrong.py", "import nothing_of_that_name\n")
    result = project.run("--tests", "tests")
    assert result.exit_code == 2
    assert "nothing_of_that_name" in result.stderr
    assert "Traceback" not in result.stderr.partition("\n")[0]
