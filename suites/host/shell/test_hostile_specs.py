"""Hostile specs get a clear verdict, and leave no process running."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from suites.host.shell.running import outcomes

if TYPE_CHECKING:
    from harness.provisioning.command import CommandResult
    from suites.host.shell.running import SpecProject

_HOSTILE = """\
Describe 'hostile'
  It 'writes 40 MB'
    big() { head -c 40000000 /dev/zero | tr '\\0' x; }
    When call big
    The length of output should equal 40000000
  End
  It 'starts a fork storm'
    storm() { storm | storm & storm; }
    When call storm
    The status should be success
  End
  It 'after the storm'
    When call echo fine
    The output should equal fine
  End
  It 'leaves processes behind'
    leave() { setsid sleep @MARK@ & nohup sleep @MARK@ >/dev/null 2>&1 & }
    When call leave
    The status should be success
  End
  It 'kills all it can'
    kill_all() { kill -9 -1; }
    When call kill_all
    The status should be success
  End
  It 'after the killing'
    When call echo fine
    The output should equal fine
  End
  It 'speaks in the name of the runner'
    speak() { printf 'end\\0many\\0' >&190; }
    When call speak
    The status should be success
  End
  It 'after the speech'
    When call echo fine
    The output should equal fine
  End
  It 'prints NUL bytes'
    When call printf 'a\\0b'
    The output should equal ab
  End
End
"""


def _run(project: SpecProject, *options: str) -> CommandResult:
    return project.run("--shell-sandbox=throwaway", *options)


def test_hostile_examples_get_verdicts_and_leave_no_processes(project: SpecProject) -> None:
    mark = f"9{os.getpid()}"
    project.write("hostile_spec.sh", _HOSTILE.replace("@MARK@", mark))

    result = _run(project)

    seen = outcomes(result)
    assert seen.pop("starts a fork storm") == "failed"
    assert seen == {
        "writes 40 MB": "passed",
        "after the storm": "passed",
        "leaves processes behind": "passed",
        "kills all it can": "failed",
        "after the killing": "passed",
        "speaks in the name of the runner": "failed",
        "after the speech": "passed",
        "prints NUL bytes": "passed",
    }
    assert "was killed by signal 9 (Killed); the code under test" in result.stdout
    assert "more processes than" in result.stdout
    assert "wrote to a descriptor of the harness" in result.stdout
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in _read(path)]


def test_endless_loop_is_ended_and_the_next_example_runs(project: SpecProject) -> None:
    project.write(
        "loop_spec.sh",
        "It 'loops for ever'\nloop() { while :; do :; done; }\nWhen call loop\n"
        "The status should be success\nEnd\n"
        "It 'comes after'\nThe value a should equal a\nEnd\n",
    )

    result = _run(project, "--shell-timeout=2")

    assert outcomes(result) == {"loops for ever": "failed", "comes after": "passed"}
    assert "ran longer than 2 s; it and all its processes were ended" in result.stdout


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_example_that_deletes_a_system_directory_fails_and_the_host_keeps_it(
    project: SpecProject,
) -> None:
    project.write(
        "mutant_spec.sh",
        "Describe 'a mutant'\nIt 'deletes too much'\n"
        'clean_up() { rm -rf "/usr/lib/${missing-}"; }\n'
        "When call clean_up\nThe status should be success\nEnd\nEnd\n",
    )
    before = len(list(Path("/usr/lib").iterdir()))

    result = _run(project)

    assert outcomes(result) == {"deletes too much": "failed"}
    assert "deleted /usr/lib, a directory that the system needs" in result.stdout
    assert len(list(Path("/usr/lib").iterdir())) == before


def test_carriage_returns_at_line_ends_of_a_spec_are_ignored(project: SpecProject) -> None:
    (project.root / "dos_spec.sh").write_bytes(
        b"It 'has DOS line ends'\r\nWhen call echo x\r\nThe output should equal x\r\nEnd\r\n"
    )

    assert outcomes(_run(project)) == {"has DOS line ends": "passed"}


def test_nul_byte_in_a_spec_is_reported_with_its_line(project: SpecProject) -> None:
    (project.root / "nul_spec.sh").write_bytes(b"It 'x'\nWhen call echo \0\nEnd\n")

    assert "nul_spec.sh:2: The line has a NUL byte" in _run(project).stdout


@pytest.mark.parametrize(
    ("body", "verdicts"),
    [
        (
            "It 'broken'\nif true; then\nEnd\nIt 'sound'\nThe value a should eq a\nEnd\n",
            {"broken": "failed", "sound": "passed"},
        ),
        (
            (
                "if true; then\nIt 'one'\nThe value a should eq a\nEnd\n"
                "It 'two'\nThe value a should eq a\nEnd\n"
            ),
            {"one": "failed", "two": "failed"},
        ),
    ],
    ids=["in an example", "in their group"],
)
def test_shell_syntax_error_fails_only_the_examples_that_contain_it(
    project: SpecProject, body: str, verdicts: dict[str, str]
) -> None:
    project.write("syntax_spec.sh", f"Describe 'x'\n{body}End\n")

    result = _run(project)

    assert outcomes(result) == verdicts
    assert "syntax error" in result.stdout


def test_examples_that_sleep_pass_in_virtual_time(project: SpecProject) -> None:
    examples = "".join(
        f"It 'sleeps {number}'\nWhen call sleep 500\nThe status should be success\nEnd\n"
        for number in range(100)
    )
    project.write("sleepers_spec.sh", f"Describe 'sleepers'\n{examples}End\n")

    result = _run(project, "--shell-time=virtual", "-q")

    assert "100 passed" in result.stdout


def test_control_characters_in_the_output_of_specs_are_escaped(project: SpecProject) -> None:
    """This applies to names, verdicts, reasons and output."""
    (project.root / "control_spec.sh").write_bytes(
        b"Describe 'group \x1b[31m\xe9'\n"
        b"It 'fails \x1b[2J'\nprintf '\\033[3J\\351'\nWhen call printf '\\033]0;title\\007\\351'\n"
        b"The output should equal x\nEnd\n"
        b"It 'skips'\nSkip \"$(printf '\\033[5m\\351')\"\nThe value a should equal a\nEnd\nEnd\n"
    )

    result = _run(project, "-rsP")

    assert "\x1b" not in result.stdout
    for text in (r"group \x1b[31m\udce9", r"fails \x1b[2J", r'got: "\x1b]0;title\x07\udce9"'):
        assert text in result.stdout
    assert r"\x1b[3J\udce9" in result.stdout
    assert r"\x1b[5m\udce9" in result.stdout


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("AfterAll speak\nIt 'x'\nThe value a should eq a\nEnd\n", "error"),
        ("speak\nIt 'x'\nThe value a should eq a\nEnd\n", "failed"),
    ],
    ids=["after all", "before the first example"],
)
def test_group_that_writes_to_the_harness_descriptors_is_reported(
    project: SpecProject, text: str, seen: str
) -> None:
    speak = "speak() { printf 'end\\0many\\0when\\0001\\000%05000d\\0' 9 >&190; }\n"
    project.write("group_spec.sh", f"Describe 'g'\n{speak}{text}End\n")

    result = _run(project)

    assert outcomes(result)["x"] == seen, result.stdout
    assert "wrote to a descriptor of the harness" in result.stdout
