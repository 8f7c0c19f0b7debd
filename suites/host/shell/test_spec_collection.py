"""pytest collects each example of a spec file as a test."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from suites.host.shell.running import GREETING, outcomes

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject


def test_each_example_of_a_spec_is_reported_as_a_test(project: SpecProject) -> None:
    project.write("spec/greeting_spec.sh", GREETING)

    result = project.run(f"--junitxml={project.root}/junit.xml")

    assert outcomes(result) == {
        "greets": "passed",
        "fails": "failed",
        "greets ann": "passed",
        "greets bob": "passed",
        "is skipped": "skipped",
        "is to be written": "xfail",
    }
    assert "spec/greeting_spec.sh:9: The output should equal 'hello moon'" in result.stdout
    assert 'expected: equal "hello moon"' in result.stdout
    assert 'got: "hello world"' in result.stdout
    cases = ET.parse(project.root / "junit.xml").iter("testcase")  # noqa: S314
    assert {case.get("name") for case in cases} == set(outcomes(result))


def test_examples_are_selected_by_keyword_or_tag_or_id(project: SpecProject) -> None:
    project.write("spec/greeting_spec.sh", GREETING)
    project.write("spec/other_spec.sh", "It 'is not slow'\nThe value a should equal a\nEnd\n")

    assert set(outcomes(project.run("-k", "bob"))) == {"greets bob"}
    assert "is not slow" not in outcomes(project.run("-k", "slow and greets"))
    assert "is not slow" not in outcomes(project.run("--shell-tag", "slow"))
    project.write(".shellspec", "--example '*bob|is not*'\n")
    assert set(outcomes(project.run())) == {"greets bob", "is not slow"}


def test_shell_tag_option_does_not_deselect_focused_examples(project: SpecProject) -> None:
    body = "The value a should equal a\nEnd\n"
    project.write(
        "a_spec.sh", f"fIt 'focused'\n{body}It 'tagged' slow:1\n{body}It 'other'\n{body}"
    )

    assert set(outcomes(project.run("--shell-focus"))) == {"focused"}
    assert set(outcomes(project.run("--shell-tag=slow"))) == {"focused", "tagged"}
    assert set(outcomes(project.run("--shell-tag=none,slow", "--shell-tag=no"))) == {
        "focused",
        "tagged",
    }


def test_run_stops_at_the_first_failure(project: SpecProject) -> None:
    project.write("spec/greeting_spec.sh", GREETING)

    assert set(outcomes(project.run("-x"))) == {"greets", "fails"}
    assert set(outcomes(project.run("--lf"))) == {"fails"}
    project.write(
        "fails_spec.sh",
        "It 'fails'\nThe value a should equal b\nEnd\n"
        "It 'is not begun'\n: >\"$SHELLSPEC_PROJECT_ROOT/begun\"\nThe value a should equal a\nEnd\n",
    )
    assert "1 failed" in project.run("-x", "-k", "fails_spec", "--shell-sandbox=off").stdout
    assert not (project.root / "begun").exists()


def test_failing_group_hooks_are_reported_as_errors(project: SpecProject) -> None:
    project.write(
        "hooks_spec.sh",
        "Describe 'group'\nAfterAll 'false'\nIt 'passes'\nThe value a should equal a\nEnd\nEnd\n",
    )

    result = project.run()

    assert "1 passed, 1 error" in result.stdout
    assert (
        "AfterAll 'false' of the group that begins at line 1 failed with status 1."
        in result.stdout
    )


def test_output_to_stderr_after_the_last_example_is_an_error(
    project: SpecProject,
) -> None:
    project.write("a_spec.sh", "It 'passes'\nThe value a should equal a\nEnd\necho late >&2\n")

    result = project.run()

    assert "1 passed, 1 error" in result.stdout
    assert "A group wrote to stderr:\nlate" in result.stdout


@pytest.mark.parametrize(
    ("statement", "message"),
    [("false", "exit code 1"), ("if true; fi", "line 5: syntax error near")],
)
def test_failing_statement_after_the_last_example_of_a_group_is_an_error(
    project: SpecProject, statement: str, message: str
) -> None:
    project.write(
        "a_spec.sh",
        f"Describe 'group'\nIt 'passes'\nThe value a should equal a\nEnd\n{statement}\nEnd\n"
        "It 'stands alone'\nThe value a should equal a\nEnd\n",
    )

    result = project.run()

    assert "2 passed, 1 error" in result.stdout
    assert "A statement of the group that begins at line 1 ended its shell" in result.stdout
    assert message in result.stdout


def test_example_block_that_runs_again_in_a_loop_is_an_error(project: SpecProject) -> None:
    project.write(
        "loop_spec.sh",
        "Describe 'group'\nfor i in 1 2; do\nIt 'looped'\nThe value a should equal a\nEnd\n"
        "done\nEnd\n",
    )

    result = project.run()

    assert "1 passed, 1 error" in result.stdout
    assert "The file runs a block again, for example in a loop" in result.stdout


@pytest.mark.parametrize("prefix", ["", "shellspec_"])
@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_project_options_and_hooks_of_helper_modules_are_applied(
    project: SpecProject, shell: str, prefix: str
) -> None:
    project.write(
        ".shellspec",
        f"--shell {shell}\n--require spec_helper\n--require other\n-I lib\n"
        "--env FROM_OPTIONS=yes # a comment\n--env GONE=soon\n",
    )
    project.write(
        "spec/spec_helper.sh",
        "spec_helper_precheck() { setenv FROM_PRECHECK=yes; unsetenv GONE; warn x; info x; }\n"
        "spec_helper_loaded() { log=loaded; }\n"
        f"spec_helper_configure() {{\n  {prefix}import more a 'b c'\n  log=$log:configured\n"
        f"  {prefix}before_all 'all=yes'\n  {prefix}before_each prepare 'log=$log:$all'\n"
        f"  {prefix}after_each ': >\"$SHELLSPEC_WORKDIR/after\"'\n"
        f"  {prefix}after_all 'echo end >&2'\n}}\n"
        "prepare() { log=$log:prepared; }\n",
    )
    project.write("lib/more.sh", "more=$#:$2\n")
    project.write("lib/other.sh", "other_loaded() { log=$log:other; }\n")
    project.write(
        "spec/helper_spec.sh",
        "It 'sees the helper'\n"
        "The variable log should equal loaded:other:configured:prepared:yes\n"
        "The variable more should equal '2:b c'\n"
        "The variable FROM_OPTIONS should be exported\n"
        "The variable FROM_PRECHECK should be exported\n"
        "The variable GONE should be undefined\n"
        'The file "$SHELLSPEC_WORKDIR/after" should not be exist\nEnd\n'
        "It 'comes after it'\nThe file \"$SHELLSPEC_WORKDIR/after\" should be exist\nEnd\n",
    )

    result = project.run()

    assert "2 passed, 1 error" in result.stdout, result.render()
    assert "AfterAll 'echo end >&2' failed with status 0" in result.stdout


def test_precheck_sees_the_shell_type_and_version_variables(project: SpecProject) -> None:
    project.write(".shellspec", "--require spec_helper\n")
    project.write(
        "spec/spec_helper.sh",
        "set -eu\nspec_helper_precheck() {\n"
        '  info "$VERSION"\n  if [ "$SHELL_TYPE" != bash ]; then abort "not $SHELL_TYPE"; fi\n'
        '  if [ "${SHELL_VERSION%%.*}" -lt 4 ]; then abort "too old"; fi\n}\n',
    )
    project.write(
        "spec/a_spec.sh",
        "It 'runs'\n"
        'The value "$SHELLSPEC_SHELL_VERSION" should equal "$BASH_VERSION"\n'
        'The value "$SHELLSPEC_SPECDIR" should equal "$SHELLSPEC_HELPERDIR"\n'
        "The variable SHELL_TYPE should be undefined\nEnd\n",
    )

    assert outcomes(project.run()) == {"runs": "passed"}


def test_variables_in_options_are_expanded(project: SpecProject) -> None:
    project.write(".shellspec", "--path \"${PATH}:${PWD}/bin\"\n--env 'PRICE=$5'\n")
    project.write("bin/tool", "#!/bin/sh\necho found\n").chmod(0o755)
    spec = "The variable PRICE should equal '$5'\nThe output should equal found\nEnd\n"
    project.write("spec/a_spec.sh", f"It 'finds the tool'\nWhen run command tool\n{spec}")

    assert outcomes(project.run()) == {"finds the tool": "passed"}


def test_sandbox_option_leaves_only_mocks_and_support_commands_on_path(
    project: SpecProject,
) -> None:
    project.write(".shellspec", "--sandbox\n")
    project.write(
        "spec/support/bin/@cat", '#!/bin/sh -e\n. "$SHELLSPEC_SUPPORT_BIN"\ninvoke cat "$@"\n'
    ).chmod(0o755)
    project.write("script.sh", "id\ncat file\n").chmod(0o755)
    project.write(
        "spec/a_spec.sh",
        "Mock id\n  echo nobody\nEnd\nIt 'runs no other'\nWhen run script ./script.sh\n"
        "The output should equal nobody\nThe status should equal 127\n"
        "The error should include 'cat: command not found'\nEnd\n"
        "It 'runs what supports'\nData 'text'\nWhen run command @cat\n"
        "The output should equal text\nEnd\n",
    )

    assert outcomes(project.run()) == {"runs no other": "passed", "runs what supports": "passed"}
    assert set(outcomes(project.run("--shell-time=virtual")).values()) == {"passed"}
    project.write(".shellspec", "--sandbox\n--sandbox-path /usr/bin\n")
    assert outcomes(project.run())["runs no other"] == "failed"


@pytest.mark.parametrize("shell", ["bash", "/bin/bash"])
def test_shell_option_of_the_project_selects_bash(project: SpecProject, shell: str) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    spec = "When run script ./version.sh\nThe output should be present\nEnd\n"
    project.write("version.sh", 'echo "$BASH_VERSION"\n').chmod(0o755)
    project.write("spec/a_spec.sh", f"It 'runs'\n{spec}")

    assert outcomes(project.run()) == {"runs": "passed"}


@pytest.mark.parametrize("shell", ["sh", "/bin/sh", "dash", "ash", "busybox", "'busybox ash'"])
def test_bash_code_fails_if_the_project_uses_another_shell(
    project: SpecProject, shell: str
) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    project.write("lib.sh", 'words() { local all=(a b); echo "${#all[@]}"; }\n')
    project.write(
        "spec/a_spec.sh",
        "Describe 'arrays'\nInclude ./lib.sh\nIt 'fails'\nWhen call words\n"
        "The output should equal 2\nEnd\nEnd\n"
        "It 'knows its shell'\n"
        'The value "${BASH_VERSION-none} $SHELLSPEC_SHELL_TYPE" should match pattern '
        "'none dash|none ash'\nEnd\n",
    )

    result = project.run()

    assert outcomes(result) == {"fails": "failed", "knows its shell": "passed"}, result.render()
    assert re.search(r"Syntax error|syntax error", result.stdout)


def test_coverage_option_is_refused_if_the_project_uses_dash(project: SpecProject) -> None:
    project.write(".shellspec", "--shell dash\n")
    project.write("spec/a_spec.sh", "It 'waits'\nThe value a should equal a\nEnd\n")

    result = project.run(f"--shell-cov={project.root}")

    assert result.exit_code == 2
    assert "'--shell-cov' records lines that bash runs" in result.stdout


def test_file_of_the_env_from_option_is_sourced_as_a_script(project: SpecProject) -> None:
    project.write(".shellspec", "--env-from spec/env.sh\n")
    project.write(
        "spec/env.sh",
        "#!/bin/sh\necho noise; echo noise >&2\nplace() { pwd; }\nFROM_FILE=plain\n"
        ': "${FROM_DEFAULT:=default}"\nexport FROM_DEFAULT\nexport PLACE="$(place)/spec"\n'
        'export NAMES="ann bob"\n',
    )
    project.write(
        "spec/a_spec.sh",
        "Describe 'environment'\nParameters:matrix\n  $NAMES\nEnd\n"
        'It "greets $1"\n'
        "When run command env\n"
        "The output should not include FROM_FILE\n"
        "The output should include FROM_DEFAULT=default\n"
        'The output should include "PLACE=$PWD/spec"\n'
        "The variable HX_ENV_FROM should be undefined\nEnd\nEnd\n",
    )

    assert outcomes(project.run()) == {"greets ann": "passed", "greets bob": "passed"}
    project.write(".shellspec", "--env-from spec/missing.sh\n")
    assert ".shellspec:1: '--env-from spec/missing.sh' names no file." in project.run().stdout


def test_only_files_that_match_the_pattern_option_are_collected(project: SpecProject) -> None:
    project.write(".shellspec", '--pattern "*/tests/*"\n')
    body = "The value a should equal a\nEnd\n"
    project.write("tests/deep/a.spec.bash", f"It 'is collected'\n{body}")
    project.write("tests/test_a.py", "")
    project.write("lib/a_spec.sh", f"It 'is of no interest'\n{body}")

    assert outcomes(project.run()) == {"is collected": "passed"}


def test_dynamic_parameters_see_the_variables_of_the_project(project: SpecProject) -> None:
    project.write(
        "spec/a_spec.sh",
        '%const FIXTURES: "$SHELLSPEC_HELPERDIR/fixtures"\n'
        "Describe 'rows'\nParameters:dynamic\n  for name in a b; do\n"
        '    %data "$name" "$FIXTURES/$name"\n  done\nEnd\n'
        'It "reads $1"\nThe value "$2" should equal "$SHELLSPEC_PROJECT_ROOT/spec/fixtures/$1"\n'
        "End\nEnd\n",
    )

    assert outcomes(project.run()) == {"reads a": "passed", "reads b": "passed"}


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_dynamic_parameters_may_use_descriptors(project: SpecProject, shell: str) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    project.write(
        "spec/a_spec.sh",
        "Describe 'rows'\nParameters:dynamic\n  exec 3>/dev/null\n"
        '  while read -r w <&3; do %data "$w"; done 3<<WORDS\na\nb\nWORDS\nEnd\n'
        'It "row $1"\nThe value "$1" should be present\nEnd\nEnd\n',
    )

    assert outcomes(project.run()) == {"row a": "passed", "row b": "passed"}


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("code", ["echo text\n%data a", "%data a\necho text", "echo text"])
def test_dynamic_parameters_that_print_text_are_refused(
    project: SpecProject, shell: str, code: str
) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    project.write("spec/a_spec.sh", f"Parameters:dynamic\n{code}\nEnd\nIt 'x'\n:\nEnd\n")

    result = project.run()

    assert (
        "a_spec.sh:1: The code of this 'Parameters' block failed, or printed other text than rows."
        in result.stdout
    )
    assert "stderr: text" in result.stdout


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("refuses", ["abort 'too old'", "error too old", "warn too old; false"])
def test_failing_precheck_fails_every_example(
    project: SpecProject, shell: str, refuses: str
) -> None:
    project.write(".shellspec", f"--require spec_helper --shell {shell}\n")
    project.write("spec/spec_helper.sh", f"spec_helper_precheck() {{ {refuses}; }}\n")
    project.write("spec/a_spec.sh", "It 'cannot run'\nThe value a should equal a\nEnd\n")

    result = project.run()

    assert outcomes(result) == {"cannot run": "failed"}
    assert "too old" in result.stdout


def test_example_with_a_warning_passes_if_the_project_allows_warnings(
    project: SpecProject,
) -> None:
    project.write("a_spec.sh", "It 'warns'\nWhen call echo x\nEnd\n")

    assert outcomes(project.run()) == {"warns": "failed"}
    assert outcomes(project.run("--no-warning-as-failure")) == {"warns": "passed"}


def test_syntax_error_in_a_spec_is_reported_with_file_and_line(project: SpecProject) -> None:
    project.write("a_spec.sh", "Describe 'open'\nIt 'never closes'\n  When call true\n")
    project.write("b_spec.sh", "Describe 'fine'\nEnd\nEnd\n")
    project.write(".shellspec", "--no-such-option\n")

    result = project.run()

    assert result.exit_code == 2
    assert ".shellspec:1: There is no option '--no-such-option'." in result.stdout
    project.write(".shellspec", "")
    result = project.run()
    assert "a_spec.sh:2: 'example' is not closed by an 'End'." in result.stdout
    assert "b_spec.sh:3: 'End' closes nothing." in result.stdout
