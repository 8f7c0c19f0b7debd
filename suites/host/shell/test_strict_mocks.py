"""The `shell` fixture refuses each command that the test does not expect."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from harness.errors import BadInputError, ExpectationError, HarnessError, RequirementError
from harness.limits import SHELL_OUTPUT, LimitError
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline, Observation, wait_for
from harness.shell.sandbox import Sandbox, SandboxKind
from harness.shell.testing import Call, Shell, UnmockedCommandError
from harness.shell.warm_shell.pool import WarmShellPool

_NOT_INSTALLED = "no-such-provisioning-tool"


@pytest.mark.parametrize("name", ["ctr", "crictl", "lsmod", "ldconfig", "nvidia-modprobe"])
@pytest.mark.parametrize("runs", ["{}", "bash -c {}", "dash -c {}", "env {}", "timeout 5 {}"])
def test_unmocked_provisioning_command_is_reported(shell: Shell, name: str, runs: str) -> None:
    with pytest.raises(
        UnmockedCommandError, match=f"'{name}.*' was run, but '{name}' is not mock"
    ):
        shell.evaluate(f"{runs.format(name)} || true")


def test_missing_command_is_reported_as_unmocked(shell: Shell) -> None:
    with pytest.raises(UnmockedCommandError, match=f"'{_NOT_INSTALLED} -q' was run"):
        shell.evaluate(f"{_NOT_INSTALLED} -q || echo fallback")
    with pytest.raises(UnmockedCommandError, match=f"'{_NOT_INSTALLED} -q' was run"):
        shell.evaluate(f"bash -c '{_NOT_INSTALLED} -q' || echo fallback")


def test_hidden_command_is_not_found(shell: Shell) -> None:
    shell.hide("dpkg", "nvidia-smi")

    result = shell.evaluate(
        "command -v dpkg nvidia-smi; nvidia-smi; /usr/bin/nvidia-smi; dash -c 'dpkg -l'"
    )

    assert result.status == 127
    assert result.stdout == ""
    assert "nvidia-smi: command not found" in result.stderr


def test_commands_can_be_hidden_and_allowed_after_the_first_evaluation(shell: Shell) -> None:
    with pytest.raises(UnmockedCommandError):
        shell.evaluate("dpkg --version")
    shell.allow("dpkg")
    shell.hide("nvidia-smi", "cut")

    result = shell.evaluate(
        "dash -c '/usr/bin/dpkg --version'; dpkg --version\n"
        "for f in /usr/local/bin/dpkg /usr/bin/cut /usr/bin/nvidia-smi; do test -e $f || echo $f; done"
    )
    assert result.stdout.count("Debian") == 2
    assert result.stdout.endswith("/usr/local/bin/dpkg\n/usr/bin/cut\n/usr/bin/nvidia-smi\n")


def test_denied_command_during_sourcing_is_reported(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("VERSION=$(dpkg --print-architecture)\n")
    shell.source(script)

    with pytest.raises(UnmockedCommandError, match=r"was sourced:\n'dpkg --print-architecture'"):
        shell.evaluate("true")


def test_mocks_answer_during_sourcing_if_mocked_is_true(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("VERSION=$(dpkg --print-architecture)-$EDITION\n")
    shell.source(script, env={"EDITION": "grid"}, mocked=True)
    with pytest.raises(UnmockedCommandError, match="'dpkg --print-architecture' was run"):
        shell.evaluate("true")
    shell.mock("dpkg").answers("riscv\n")

    assert shell.evaluate("true").variable("VERSION") == "riscv-grid"


@pytest.mark.parametrize("kind", [SandboxKind.THROWAWAY, SandboxKind.OFF])
def test_next_test_starts_from_the_state_after_sourcing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SandboxKind
) -> None:
    monkeypatch.setenv(SHELL_OUTPUT.variable, "1")
    script = tmp_path / "script.sh"
    script.write_text("greet() { echo hello; }\n")
    pool = WarmShellPool(cwd=tmp_path, scratch=tmp_path, sandbox=Sandbox(kind=kind))
    first, second = (Shell(pool, virtual=True, timeout_s=60) for _ in range(2))
    for shell in (first, second):
        shell.source(script)
        shell.mock("curl")
    for name in ("cut", "no-such-tool", "greet"):
        first.mock(name)
    first.setenv(LEFT="x")
    first.define("OTHER=y; cd /")
    most_of_the_limit = "curl $(printf %0700000d)"
    first.evaluate(f"{most_of_the_limit}; sleep 1000; cut; no-such-tool; greet; cat", stdin="text")
    first.finish()

    result = second.evaluate(
        "echo 1 | cut -c1; command -v no-such-tool; greet; echo $PWD ${LEFT-} ${OTHER-}; cat\n"
        f"{most_of_the_limit}; sleep 5; echo $(($(date +%s) - $(command -p date +%s)))"
    )
    second.finish()
    pool.close()

    assert result.stdout.splitlines()[:-1] == ["1", "hello", f"{tmp_path}"]
    assert 5 <= int(result.stdout.splitlines()[-1]) < 500
    assert [(sleep.seconds, sleep.at_s) for sleep in result.sleeps] == [(5, 0)]


@pytest.mark.parametrize("fd", [200, 209])
def test_output_limit_applies_again_in_the_next_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fd: int
) -> None:
    """Between tests, the size checks are paused."""
    monkeypatch.setenv(SHELL_OUTPUT.variable, "1")
    pool = WarmShellPool(
        cwd=tmp_path, scratch=tmp_path, sandbox=Sandbox(kind=SandboxKind.THROWAWAY)
    )
    first, second = (Shell(pool, virtual=True, timeout_s=5) for _ in range(2))
    first.evaluate("true")
    first.finish()

    second.evaluate("/bin/sleep 0.1")  # This is longer than the pause between two size checks.

    with pytest.raises(LimitError):
        second.evaluate(f"printf %02000000d >>/proc/self/fd/{fd}; while :; do :; done")
    pool.close()


def test_background_job_of_an_earlier_test_gets_no_mock_answer(tmp_path: Path) -> None:
    """Without a throw-away root, nothing ends processes that a test has left running."""
    pool = WarmShellPool(cwd=tmp_path, scratch=tmp_path, sandbox=Sandbox(kind=SandboxKind.OFF))
    first, second = (Shell(pool, virtual=False, timeout_s=60) for _ in range(2))
    for shell in (first, second):
        shell.mock("curl", optional=True).answers("mocked\n")
    go, said = tmp_path / "go", tmp_path / "said"
    wait = "until [ -e {} ]; do :; done"
    job = f"{wait.format(go)}; curl late >{said}.part; mv {said}.part {said}"
    first.evaluate(f"({job}) & disown")
    first.finish()

    second.evaluate(f": >{go}; {wait.format(said)}; curl own")
    second.finish()
    pool.close()

    second.assert_calls("curl own")
    assert said.read_text() == ""


def test_mock_answers_during_sourcing_do_not_affect_the_next_test(
    warm_shells: WarmShellPool, tmp_path: Path
) -> None:
    script = tmp_path / "script.sh"
    script.write_text("VERSION=$(echo 1 | cut -c1)\n")
    versions = []
    for mocked in (True, False, False):
        shell = Shell(warm_shells, virtual=False, timeout_s=30)
        shell.mock("cut", optional=True).answers("mocked\n")
        shell.source(script, mocked=mocked)
        versions.append(shell.evaluate("true").variable("VERSION"))
        shell.finish()

    assert versions == ["mocked", "1", "1"]


def test_mock_answer_for_a_killed_process_is_not_sent_to_the_next_test(
    warm_shells: WarmShellPool,
) -> None:
    first, second = (Shell(warm_shells, virtual=False, timeout_s=30) for _ in range(2))

    def let_it_be_killed(_: Call) -> None:
        first.path("/asked").touch()
        killed = first.path("/killed")
        wait_for(
            "the end of the process",
            lambda: Observation(True if killed.exists() else None, "it runs"),
            Deadline.after(10.0, SYSTEM_CLOCK),
            interval_s=0.01,
        )

    first.mock("slow").answers("late\n", exit_code=3, effect=let_it_be_killed)
    first.evaluate("slow & until [ -e /asked ]; do :; done; kill -KILL $!; wait $!; : >/killed")
    first.finish()

    second.mock("curl").answers("fresh\n")
    assert second.evaluate("curl; echo $?; curl; echo $?").stdout == "fresh\n0\n" * 2
    second.finish()


def test_unused_mock_answer_fails_the_test(shell: Shell) -> None:
    shell.mock("curl").answers("x")
    with pytest.raises(ExpectationError, match=r"did not happen:\n  curl \(any arguments\)"):
        shell.finish()
    shell.mock("curl").answers("x")
    shell.finish(has_failed=True)


def test_unmocked_call_does_not_affect_the_next_evaluation(shell: Shell) -> None:
    with pytest.raises(UnmockedCommandError):
        shell.evaluate("curl; wget")
    assert shell.evaluate("true").status == 0
    with pytest.raises(UnmockedCommandError) as refused:
        shell.evaluate("wget; curl")
    assert [name in str(refused.value) for name in ("'curl' was run", "'wget' was run")] == [
        True
    ] * 2


def test_variables_of_an_evaluation_override_variables_of_the_test(shell: Shell) -> None:
    shell.setenv(A="test", B="test")

    assert shell.evaluate("echo $A $B", env={"A": "own"}).stdout == "own test\n"
    assert shell.evaluate("echo $A $B").stdout == "test test\n"


@pytest.mark.parametrize("error", [ZeroDivisionError, ValueError, IndexError])
def test_mocks_and_files_work_after_a_mock_effect_raises_an_error(
    shell: Shell, error: type[Exception]
) -> None:
    def fail(_: Call) -> None:
        raise error

    shell.mock("curl").answers(effect=fail)
    shell.mock("/opt/gpu/tool").answers("mocked\n")
    shell.write("/proc/cmdline", "first\n")
    with pytest.raises(error):
        shell.evaluate("/opt/gpu/tool; curl")
    shell.write("/proc/cmdline", "second\n")

    result = shell.evaluate("/opt/gpu/tool; dash -c /opt/gpu/tool; cat /proc/cmdline")
    assert result.stdout == "mocked\nmocked\nsecond\n"


def test_mocked_command_answers_at_each_absolute_path_that_a_script_uses(
    shell: Shell, tmp_path: Path
) -> None:
    shell.mock("tool").answers("mocked\n")
    for folder in ("one", "two"):
        script = tmp_path / f"{folder}.sh"
        script.write_text(f"/opt/{folder}/bin/tool\nbasename $(command -v tool)\n")

        assert shell.run_script(script).stdout == "mocked\ntool\n"


@pytest.mark.parametrize("code", ["f() {\n  if true\n}", "echo 'open"])
def test_syntax_error_in_defined_code_raises_harness_error(shell: Shell, code: str) -> None:
    shell.define(code)

    with pytest.raises(HarnessError, match="'define' has a syntax error in line"):
        shell.evaluate("true")


def test_syntax_error_in_evaluated_code_raises_harness_error(shell: Shell) -> None:
    with pytest.raises(HarnessError, match=r"'evaluate' has a syntax error in line 2: .*fi"):
        shell.evaluate("echo a\nfi")


@pytest.mark.parametrize("end", ["a=b() { :; }", "if true; then", "echo 'open"])
def test_syntax_error_in_a_sourced_script_raises_harness_error(
    shell: Shell, tmp_path: Path, end: str
) -> None:
    script = tmp_path / "script.sh"
    script.write_text(f"f() {{ :; }}\n{end}\n")
    shell.source(script)

    with pytest.raises(
        HarnessError, match=r"sourced has a syntax error: .*script.sh: line [23]: "
    ):
        shell.call("f")


@pytest.mark.parametrize("name", ["builtin", "local", "return"])
def test_shell_builtin_that_mocks_need_cannot_be_mocked(shell: Shell, name: str) -> None:
    with pytest.raises(BadInputError, match=f"'{name}' can't be mocked"):
        shell.mock(name)


def test_defined_code_that_exits_raises_harness_error(shell: Shell) -> None:
    shell.define("exit 3")

    with pytest.raises(HarnessError, match="'define' ended the shell"):
        shell.evaluate("true")


def test_error_about_an_unmocked_command_shows_stdout_and_stderr(shell: Shell) -> None:
    with pytest.raises(UnmockedCommandError, match=r"stdout: before\nstderr: lsmod: not mocked"):
        shell.evaluate("echo before; lsmod")


def test_answer_of_a_mock_takes_virtual_time(shell: Shell) -> None:
    shell.mock("curl").answers(takes_s=1.25)
    assert [sleep.seconds for sleep in shell.evaluate("curl").sleeps] == [1.25]
    shell.mock("apt-get").answers("done\n", takes_s=300)

    result = shell.evaluate(
        "start=$SECONDS; apt-get install; echo $((SECONDS - start))\n"
        "timeout 60 apt-get update; echo $?; timeout 600 apt-get upgrade; echo $?\n"
        "timeout -s TERM 60 apt-get update; echo $?"
    )

    out = result.stdout.split()
    assert (out[0], out[2:]) == ("done", ["124", "done", "0", "124"])
    assert int(out[1]) >= 300


def test_spy_runs_and_records_the_real_command_or_function(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text('greet() { echo "hello $1"; COUNT=1; }\n')
    shell.source(script)
    shell.spy("greet")
    shell.spy("tar")

    result = shell.evaluate("greet moon; bash -c 'tar --version' | head -1")

    assert result.stdout.startswith("hello moon\ntar (GNU tar)")
    assert result.variable("COUNT") == "1"
    shell.assert_calls("greet moon", "tar --version")


def test_function_is_extracted_from_a_script_that_cannot_be_sourced(
    shell: Shell, tmp_path: Path
) -> None:
    script = tmp_path / "script.sh"
    script.write_text(
        "#!/bin/bash\nset -e\nrm -rf /nonexistent\n"
        'install() {\n  cat <<EOF\n}\nEOF\n  if true; then\n    echo "in ${1}"\n  fi\n}\n'
        "one() { echo one; }\nfunction two\n{\n  echo two\n}\n"
        "shopt -s extglob\nthree() {\n  case $1 in @(y|z)) echo three ;; esac; }\nexit 1\nfour() {\n  :\n}\n"
        "install; exit 1\n"
    )
    shell.extract(script, "install", "one", "two", "three")

    result = shell.evaluate("install x; one; two; three z")
    assert result.check().stdout == "}\nin x\none\ntwo\nthree\n"


@pytest.mark.parametrize("what", ["source", "extract"])
def test_sourcing_after_the_first_evaluation_is_refused(
    shell: Shell, tmp_path: Path, what: str
) -> None:
    script = tmp_path / "script.sh"
    script.write_text("f() { :; }\n")
    shell.evaluate("true")

    with pytest.raises(HarnessError, match=f"'{what}' comes too late"):
        getattr(shell, what)(script, *(["f"] if what == "extract" else []))


def test_code_sees_and_changes_the_files_that_the_test_wrote(shell: Shell) -> None:
    shell.hide("dpkg")
    shell.write("/usr/bin/dpkg", "of the test\n")
    shell.write("/etc/gpu/config", "a=1\n")
    shell.write("/var/run/gpu/tool", "#!/bin/sh\necho run\n", mode=0o755)

    result = shell.evaluate(". /etc/gpu/config; echo $a; /run/gpu/tool; echo b >>/etc/gpu/config")

    assert result.check().stdout == "1\nrun\n"
    assert shell.path("/etc/gpu/config").read_text() == "a=1\nb\n"
    assert not Path("/run/gpu").exists()
    shell.write("/etc/gpu/config", "c\n")
    assert shell.evaluate(f"cat {shlex.quote('/etc/gpu/config')}").stdout == "c\n"
    assert shell.evaluate("cat /usr/bin/dpkg").stdout == "of the test\n"


def test_unmocked_commands_are_denied_without_the_throwaway_root(tmp_path: Path) -> None:
    pool = WarmShellPool(cwd=tmp_path, scratch=tmp_path, sandbox=Sandbox(kind=SandboxKind.OFF))
    shell = Shell(pool, virtual=True, timeout_s=60)
    try:
        shell.mock("curl").answers("mocked\n")
        assert shell.evaluate("curl | cat").check().stdout == "mocked\n"
        with pytest.raises(UnmockedCommandError, match="'dpkg --version' was run"):
            shell.evaluate("dash -c 'dpkg --version'")
        with pytest.raises(RequirementError, match="would be written on the host"):
            shell.write("/etc/gpu", "")
    finally:
        shell.finish()
        pool.close()


@pytest.mark.parametrize("name", ["hostname", "/usr/bin/hostname"])
@pytest.mark.parametrize("mocked", [False, True])
def test_allowed_command_of_the_host_runs_while_a_script_is_sourced(
    shell: Shell, tmp_path: Path, mocked: bool, name: str
) -> None:
    script = tmp_path / "script.sh"
    script.write_text("H=$(hostname) P=$(/usr/bin/env /bin/hostname)\n")
    shell.allow(name)
    shell.source(script, mocked=mocked)

    assert shell.evaluate('[ -n "$H" ] && [ "$H" = "$P" ] && hostname').check().stdout
