"""What the report says of an example whose shell ended before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject

_LIBRARY = """\
set -eu
report() { echo 'about to read'; echo "model: ${GPU_MODEL}"; }
give_up() { echo 'no driver' >&2; exit 86; }
"""


def _example(body: str, group: str = "") -> str:
    return f"Describe 'group'\n  Include ./lib.sh\n{group}\n  It 'ends'\n{body}\n  End\nEnd\n"


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox ash"])
@pytest.mark.parametrize(
    ("body", "group", "shown"),
    [
        (
            "When call report",
            "",
            ["a_spec.sh:5:", "GPU_MODEL", "about to read", "When call report"],
        ),
        ("When call give_up", "", ["a_spec.sh:5:", "exit code 86", "no driver", "When run"]),
        ("true\nWhen call give_up a", "", ["a_spec.sh:6:", "no driver"]),
        ("When call true", "BeforeEach 'give_up'", ["BeforeEach 'give_up' exited", "no driver"]),
        ("When call true", "BeforeEach 'exit 0'", ["BeforeEach 'exit 0' exited", "exit code 0"]),
        ("When call true", "AfterEach 'give_up'", ["AfterEach 'give_up' exited", "no driver"]),
        (
            "When call true",
            "BeforeAll 'give_up'",
            ["BeforeAll 'give_up' of the group that begins at line 1", "86", "no driver"],
        ),
        (
            "When call true",
            "AfterAll 'give_up'",
            ["AfterAll 'give_up' of the group that begins at line 1", "86", "no driver"],
        ),
        ("When call true\nThe status should be success\nexit 3", "", ["last line reached was 6"]),
    ],
)
def test_report_names_the_cause_that_ended_the_shell(
    project: SpecProject, shell: str, body: str, group: str, shown: list[str]
) -> None:
    project.write(".shellspec", f"--shell '{shell}'\n")
    project.write("lib.sh", _LIBRARY)
    project.write("spec/a_spec.sh", _example(body, group))

    result = project.run()

    assert result.exit_code == 1
    for text in shown:
        assert text in result.stdout
    assert "The shell of this file ended early" not in result.stdout


def test_before_all_of_a_file_that_exits_is_named(project: SpecProject) -> None:
    project.write("spec/a_spec.sh", "BeforeAll 'exit 7'\nIt 'ends'\nWhen call true\nEnd\n")

    result = project.run()

    assert "BeforeAll 'exit 7' ended the shell of this file with exit code 7" in result.stdout


_MATCHERS = """\
set -u
spec_helper_configure() {
  shellspec_syntax 'shellspec_matcher_be_semver'
  shellspec_matcher_be_semver() {
    shellspec_matcher__match() {
      case $SHELLSPEC_SUBJECT in ([0-9]*.[0-9]*) return 0 ;; esac
      SHELLSPEC_EXPECT=semver
      return 1
    }
    shellspec_matcher__failure_message() { shellspec_putsn "wanted: $1 as $2"; }
    shellspec_matcher__failure_message_when_negated() { shellspec_putsn "unwanted: $1"; }
    shellspec_syntax_param count [ $# -eq 0 ] || return 0
    shellspec_matcher_do_match
  }
  shellspec_syntax 'shellspec_matcher_end'
  shellspec_matcher_end() { exit 3; }
}
"""


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize(
    ("value", "matcher", "shown"),
    [
        ("580.1", "be semver", None),
        ("580", "be semver", "wanted: 580 as semver"),
        ("580.1", "not be semver", "unwanted: 580.1"),
        ("580", "be nothing", "there is no matcher 'be nothing'"),
    ],
)
def test_custom_matcher_under_nounset(
    project: SpecProject, shell: str, value: str, matcher: str, shown: str | None
) -> None:
    project.write(".shellspec", f"--shell {shell}\n--require spec_helper\n")
    project.write("spec/spec_helper.sh", _MATCHERS)
    project.write(
        "spec/a_spec.sh",
        f"It 'a'\nWhen call echo {value}\nThe output should {matcher}\nEnd\n",
    )

    result = project.run()

    assert result.exit_code == (1 if shown else 0)
    assert (shown or "1 passed") in result.stdout
