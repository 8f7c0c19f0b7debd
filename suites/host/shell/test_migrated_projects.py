"""Translated tests give the code under test the same environment as the spec's project."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.shell.spec.migrate import migrate
from harness.shell.spec.migrated_project import MigratedProject
from harness.shell.spec.project import Project
from suites.host.shell.running import outcomes, row_evaluator

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject


def _outcomes(project: SpecProject, text: str) -> dict[str, str]:
    """Run a spec and its translation, check that their verdicts are equal, and return the verdicts."""
    spec = project.write("spec/it_spec.sh", text)
    found = MigratedProject.of(Project.of(spec, project.root), spec, project.root)
    module = migrate("spec/it_spec.sh", text, row_evaluator("it_spec.sh"), found)
    project.write("test_it.py", module)
    seen = outcomes(project.run())
    tests = {name: seen.pop(name) for name in list(seen) if name.startswith("test_")}
    assert sorted(tests.values()) == sorted(seen.values())
    return tests


def test_variables_in_the_path_of_an_include_are_expanded(project: SpecProject) -> None:
    project.write("lib/hello.sh", "hello() { echo hello; }\n")
    project.write("lib/world.sh", "world() { echo world; }\n")
    spec = """\
LIB=lib
Include "${LIB}/hello.sh"
Include "$SHELLSPEC_PROJECT_ROOT/lib/world.sh"
It 'x'
  both() { hello; world; }
  When call both
  The line 1 of output should equal hello
  The line 2 of output should equal world
End
"""

    assert _outcomes(project, spec) == {"test_x": "passed"}


def test_helper_modules_are_sourced_before_the_code_under_test(project: SpecProject) -> None:
    project.write(".shellspec", "--require spec_helper\n--env FLAVOUR=sweet\n")
    project.write("lib.sh", 'greet() { echo "$GREETING $1"; }\nfull=$FROM_HELPER\n')
    project.write("spec/support.sh", "supported() { echo support; }\n")
    project.write(
        "spec/spec_helper.sh",
        "export GREETING=hello FROM_HELPER=$SHELLSPEC_HELPERDIR\n"
        'double() { echo "$1$1"; }\nclean() { rm -f junk; echo x >cleaned; }\n'
        "spec_helper_precheck() { minimum_version 0.28.1; }\n"
        "spec_helper_configure() { import support; before_each clean; }\n",
    )
    spec = """\
Include ./lib.sh
It 'x'
  When call greet "$(double ab)"
  The output should equal 'hello abab'
  The variable full should equal "$SHELLSPEC_PROJECT_ROOT/spec"
  The variable FLAVOUR should equal sweet
  The file cleaned should be exist
  The result of function supported should equal support
End
It 'fails'
  When call greet "$(double ab)"
  The output should equal 'hello ab'
End
"""

    assert _outcomes(project, spec) == {"test_x": "passed", "test_fails": "failed"}


def test_translated_test_uses_the_paths_in_the_project_options(
    project: SpecProject,
) -> None:
    project.write(
        ".shellspec",
        "--helperdir tests -I lib --require helper --env-from env.sh --execdir @project/below\n"
        "--path /usr/bin:/bin:${PWD}/bin\n",
    )
    project.write("lib/helper.sh", "helped() { echo helped; }\n")
    project.write("env.sh", "export FROM_FILE=yes\n")
    project.write("bin/tool", "#!/bin/sh\necho tool\n").chmod(0o755)
    project.write("below/data", "")
    spec = """\
It 'x'
  all() { helped; tool; echo "$FROM_FILE ${SHELLSPEC_HELPERDIR##*/} ${PWD##*/}"; }
  When call all
  The line 1 of output should equal helped
  The line 2 of output should equal tool
  The line 3 of output should equal 'yes tests below'
End
"""

    assert _outcomes(project, spec) == {"test_x": "passed"}


@pytest.mark.parametrize("option", ["-eu", "-o errexit"])
def test_errexit_of_a_helper_module_affects_run_examples_but_not_call_examples(
    project: SpecProject, option: str
) -> None:
    project.write(".shellspec", "--require spec_helper\n")
    project.write("spec/spec_helper.sh", f"set {option}\n")
    spec = """\
f() { false; echo on; }
It 'runs'
  When run f
  The status should equal 1
End
It 'calls'
  When call f
  The output should equal on
End
"""

    assert _outcomes(project, spec) == {"test_runs": "passed", "test_calls": "passed"}


HOOKS = {
    "f() {\n  after_each x\n}": True, "f() { after_all x; }": True, ": # after_all": False,
    "before_each x": False,
}  # fmt: skip


def test_after_hooks_of_a_helper_module_are_marked_for_translation_by_hand() -> None:
    found = {text: MigratedProject(spec="a_spec.sh", helper_text=text) for text in HOOKS}

    spec = "It 'x'\nWhen call true\nThe status should equal 0\nEnd\n"
    modules = {
        text: migrate("a_spec.sh", spec, row_evaluator("a_spec.sh"), each)
        for text, each in found.items()
    }
    assert {text: "by hand (the pro" in module for text, module in modules.items()} == HOOKS


def test_translated_test_sets_the_documented_shellspec_variables(project: SpecProject) -> None:
    spec = """\
Describe 'group'
  It 'x'
    write() { echo text >"$SHELLSPEC_WORKDIR/file"; sh -c 'echo "$SHELLSPEC_PROJECT_ROOT"'; }
    When call write
    The output should equal "$PWD"
    The contents of file "$SHELLSPEC_WORKDIR/file" should equal text
    The path "$SHELLSPEC_TMPBASE" should be directory
    The variable SHELLSPEC_SPECFILE should equal spec/it_spec.sh
    The variable SHELLSPEC_EXAMPLE_ID should equal 1-1
    The variable SHELLSPEC_GROUP_ID should equal 1
    The variable SHELLSPEC_UNIXTIME should be valid number
    The value "a${SHELLSPEC_TAB}b${SHELLSPEC_LF}c" should equal "$(printf 'a\\tb\\nc')"
  End
End
"""

    assert _outcomes(project, spec) == {"test_group_x": "passed"}


def test_work_directory_is_writable_without_a_throwaway_root(project: SpecProject) -> None:
    text = """\
It 'x'
  When call mkdir "$SHELLSPEC_WORKDIR/x"
  The dir "$SHELLSPEC_WORKDIR/x" should exist
End
"""
    project.write("test_it.py", migrate("it_spec.sh", text, row_evaluator("it_spec.sh")))

    result = project.run("--shell-sandbox=off")

    assert outcomes(result) == {"test_x": "passed"}, result.render()


def test_translated_test_does_not_fail_on_warnings_if_the_project_allows_warnings(
    project: SpecProject,
) -> None:
    project.write(".shellspec", "--no-warning-as-failure\n")
    spec = """\
value=$(echo 1)
It 'x'
  f() { echo out; echo err >&2; return "$value"; }
  When call f
  The output should equal out
End
"""

    assert _outcomes(project, spec) == {"test_x": "passed"}


def test_translated_project_with_sandbox_option_finds_mocks_and_support_commands(
    project: SpecProject,
) -> None:
    project.write(".shellspec", "--sandbox\n")
    project.write("spec/support/bin/helps", "#!/bin/sh\necho helped\n").chmod(0o755)
    spec = """\
It 'finds a support command'
  When call helps
  The output should equal helped
End
It 'finds a mock'
  Mock curl
    printf '%s\\n' "got $1"
  End
  in_child() { "$BASH" -c 'curl a'; }
  When call in_child
  The output should equal 'got a'
End
"""

    assert set(_outcomes(project, spec).values()) == {"passed"}


def test_translated_project_in_a_subfolder_keeps_its_working_directory(
    project: SpecProject,
) -> None:
    project.write("below/.shellspec", "")
    project.write("below/lib.sh", "f() { cat data; }\n")
    project.write("below/data", "content\n")
    text = "Include ./lib.sh\nIt 'x'\nWhen call f\nThe output should equal content\nEnd\n"
    spec = project.write("below/spec/it_spec.sh", text)
    found = MigratedProject.of(Project.of(spec, project.root), spec, project.root)
    module = migrate("it_spec.sh", text, row_evaluator("it_spec.sh"), found)

    result = project.run(str(project.write("test_it.py", module)))

    assert outcomes(result)["test_x"] == "passed", result.render()


def test_translated_project_in_a_hidden_folder_keeps_its_path(project: SpecProject) -> None:
    project.write(".tools/.shellspec", "")
    spec = project.write(".tools/spec/it_spec.sh", "")

    found = MigratedProject.of(Project.of(spec, project.root), spec, project.root)

    assert (found.options["project"], found.folder) == (".tools", ".tools")
