"""Errors outside the tests, such as a full disk, are reported in sentences, not as internal errors."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import PIPE, LocalRunner, end, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.host.shell.running import REPOSITORY, outcomes

if TYPE_CHECKING:
    from harness.provisioning.command import CommandResult
    from suites.host.shell.running import SpecProject

_PATIENCE_S = 60.0
_FINE = "It 'is fine{0}'\nWhen call true\nThe status should be success\nEnd\n"
_MOCKED = (
    "Describe 'mocked'\nMock tool\necho mocked\nEnd\n"
    "It 'has a mock'\nWhen run command tool\nThe output should equal mocked\nEnd\nEnd\n"
)
_AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs privileges to prepare the host")
_EACH_WAY = pytest.mark.parametrize("workers", ["0", "2"])


def _argv(project: SpecProject, *arguments: str) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "-p", "xdist.plugin"),
        *("-p", "harness.plugin.specs.hooks", "-v", "-rA", *arguments),
        *(f"--rootdir={project.root}", str(project.root)),
    ]


def _run_after(preparation: str, project: SpecProject, *arguments: str) -> CommandResult:
    """Run pytest as the last command of a script that prepares pytest's surroundings."""
    return LocalRunner().run(
        ["sh", "-c", f'{preparation}; exec "$@"', "sh", *_argv(project, *arguments)],
        timeout_s=_PATIENCE_S,
        env={"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


def _check_sentences(result: CommandResult) -> None:
    text = result.stdout + result.stderr
    assert "INTERNALERROR" not in text, result.render()
    assert "Traceback" not in text, result.render()
    assert ".py:" not in text.replace("warnings.py:", ""), result.render()


@_AS_ROOT
@_EACH_WAY
def test_sandbox_that_the_kernel_refuses_is_reported_once(
    project: SpecProject, workers: str
) -> None:
    for name in "abcd":
        project.write(f"{name}_spec.sh", "".join(_FINE.format(number) for number in range(5)))

    result = _run_after(
        'set -- setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin "$@"',
        project,
        *("-n", workers),
    )

    _check_sentences(result)
    assert result.exit_code == pytest.ExitCode.USAGE_ERROR, result.render()
    assert result.stdout.count("which this kernel refuses here") == 1, result.render()


@_EACH_WAY
def test_work_folder_that_cannot_be_locked_is_reported_once(
    project: SpecProject, tmp_path: Path, workers: str
) -> None:
    for name in "ab":
        project.write(f"{name}_spec.sh", "".join(_FINE.format(number) for number in range(5)))
    taken = tmp_path / f"harness-shells-{os.geteuid()}/.gate"
    taken.mkdir(parents=True)
    taken.parent.chmod(0o700)

    result = _run_after(f"export TMPDIR={tmp_path}", project, "-n", workers)

    _check_sentences(result)
    assert result.exit_code == pytest.ExitCode.USAGE_ERROR, result.render()
    assert result.stdout.count(f"The lock file '{taken}' can't be opened") == 1, result.render()


@_EACH_WAY
def test_deleted_work_folder_fails_only_tests_that_need_it(
    project: SpecProject, workers: str
) -> None:
    project.write(
        "a_spec.sh",
        "It 'deletes'\nrm -rf \"$SHELLSPEC_TMPBASE\"\nThe value a should equal a\nEnd\n",
    )
    project.write("b_spec.sh", _FINE.format("") + _MOCKED)
    project.write("c_spec.sh", _FINE.format(" too"))

    result = project.run("-n", workers, "--shell-sandbox=off")

    _check_sentences(result)
    assert "PASSED" in result.stdout
    if workers == "0":  # Each worker has its own folder.
        assert set(outcomes(result).values()) == {"passed", "failed"}, result.render()
        assert "The work folder of this run" in result.stdout


@_EACH_WAY
def test_limit_on_open_files_is_named_in_the_error(project: SpecProject, workers: str) -> None:
    for name in "ab":
        project.write(f"{name}_spec.sh", "".join(_FINE.format(number) for number in range(5)))

    result = _run_after("ulimit -n 40", project, "-n", workers)

    _check_sentences(result)
    assert "failed" in outcomes(result).values(), result.render()
    assert "Too many open files" in result.stdout
    assert "ulimit -n" in result.stdout


@_AS_ROOT
@_EACH_WAY
def test_full_disk_is_named_in_the_error(
    project: SpecProject, tmp_path: Path, workers: str
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    project.write(
        "a_spec.sh",
        "It 'fills'\n{ yes >\"$SHELLSPEC_TMPBASE/fill\"; } 2>/dev/null || :\n"
        f": >{project.root}/filled\nThe value a should equal a\nEnd\n",
    )
    wait = f"until [ -e {project.root}/filled ] || [ $SECONDS -gt 60 ]; do :; done\n"
    for name in "bcd":
        project.write(f"{name}_spec.sh", f"It 'waits'\n{wait}End\n{_MOCKED}")

    result = _run_on_a_small_disk(project, small, "-n", workers)

    _check_sentences(result)
    assert "No space left on device" in result.stdout, result.render()


def _run_on_a_small_disk(project: SpecProject, small: Path, *arguments: str) -> CommandResult:
    script = f'mount -t tmpfs -o size=256k small {small} && export TMPDIR={small} && exec "$@"'
    argv = _argv(project, *arguments, "--shell-sandbox=off", "-p", "no:cacheprovider")
    return LocalRunner().run(
        ["unshare", "-m", "sh", "-c", script, "sh", *argv],
        timeout_s=_PATIENCE_S,
        env={"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


def _sandboxes_of(pid: int) -> list[int]:
    """Return the sandbox processes below `pid`, outermost first."""
    parents: dict[int, int] = {}
    sandboxes: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            if b"throwaway_root.py" in (folder / "cmdline").read_bytes():
                sandboxes.append(int(folder.name))
        except OSError:
            continue
        parents[int(folder.name)] = int(status[1])

    def is_below(one: int) -> bool:
        while one in parents:
            one = parents[one]
            if one == pid:
                return True
        return False

    return sorted(one for one in sandboxes if is_below(one))


@_EACH_WAY
def test_sandbox_that_is_killed_from_outside_fails_only_its_example(
    project: SpecProject, workers: str
) -> None:
    project.write(
        "a_spec.sh",
        _FINE.format("") + "It 'waits'\nwait_long() { sleep 3602; }\nWhen run wait_long\n"
        "The status should be success\nEnd\n" + _FINE.format(" again"),
    )
    run = spawn(
        _argv(project, "-n", workers, "--shell-sandbox=throwaway"),
        stdout=PIPE,
        env={"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    try:

        def poll() -> Observation[int]:
            waiting = [
                folder
                for folder in Path("/proc").glob("[0-9]*")
                if _reads(folder / "cmdline") == b"sleep\x003602\x00"
            ]
            found = _sandboxes_of(run.pid) if waiting else []
            return Observation(found[0] if found else None, f"sandboxes {found}")

        victim = wait_for("the sandbox", poll, Deadline.after(_PATIENCE_S), interval_s=0.05)
        os.kill(victim, signal.SIGKILL)
        output = run.communicate(timeout=_PATIENCE_S)[0].decode()
    finally:
        end(run)

    assert "INTERNALERROR" not in output
    assert "Traceback" not in output
    assert "1 failed, 2 passed" in output
    assert "The shell of this file was killed by signal 9 (Killed)" in output


def _reads(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@_EACH_WAY
@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_helper_that_ends_the_shell_is_reported_once_per_spec_file(
    project: SpecProject, shell: str, workers: str
) -> None:
    project.write(".shellspec", f"--shell {shell}\n--require helper\n")
    project.write("spec/helper.sh", f'echo x >>"{project.root}/starts"\nset -e\nno_such_command\n')
    project.write("a_spec.sh", "".join(_FINE.format(number) for number in range(20)))

    result = project.run("-n", workers, "--shell-sandbox=off")

    _check_sentences(result)
    assert "20 failed" in result.stdout, result.render()
    assert result.stdout.count("no_such_command") == 1, result.render()
    assert result.stdout.count("The shell of this file ended early, with exit code 127") == 1
    starts = (project.root / "starts").read_text().split()
    assert len(starts) <= int(workers or 1) + 1


@pytest.mark.parametrize("code", [249, 250, 251])
def test_sandbox_message_printed_by_a_spec_is_not_taken_for_a_sandbox_error(
    project: SpecProject, code: int
) -> None:
    project.write("a_spec.sh", f"echo 'harness sandbox: no' >&2\nexit {code}\nIt 'runs'\n:\nEnd\n")

    output = project.run().stdout

    assert f"The shell of this file ended early, with exit code {code}." in output
