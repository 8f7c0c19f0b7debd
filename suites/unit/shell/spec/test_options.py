"""Option files: the options that they set, and files that can't be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.shell.shells import find_shell
from harness.shell.spec.options import SpecOptions, is_spec, read_options
from harness.shell.spec.project import SHELLSPEC_VERSION, Project, environment

if TYPE_CHECKING:
    from pathlib import Path


def test_option_file_that_is_not_text_is_reported_and_its_specs_are_collected(
    tmp_path: Path,
) -> None:
    (tmp_path / ".shellspec").write_bytes(b"--pattern \xff\xfe\n")

    with pytest.raises(BadInputError, match=r"cannot be read.*utf-8") as refusal:
        read_options(tmp_path)

    assert refusal.value.source == str(tmp_path / ".shellspec")
    assert is_spec(tmp_path / "some_spec.sh")
    assert not is_spec(tmp_path / "some.sh")


WITHOUT_VALUE = """
    --color --no-color --kcov --no-kcov --quiet -q --profile -p --no-profile --fail-fast --no-fail-fast --xtrace -x
    --no-xtrace --xtrace-only -X --quick --no-quick --repair -r --only-failures --next-failure -n --banner
    --no-banner --deref --no-deref -L --keep-tmpdir --no-keep-tmpdir --fail-no-examples --no-fail-no-examples
    --fail-low-coverage --no-fail-low-coverage --boost --no-boost --dry-run --no-timeout
"""
WITH_VALUE = """
    --format -f --output -o --reportdir --jobs -j --random --color-mode --kcov-path --kcov-options
    --kcov-common-options --covdir --tmpdir --failure-exit-code --error-exit-code --profile-limit --log-file
    --directory -c --chdir -C --skip-message --pending-message --timeout
"""


def test_shellspec_options_about_reports_and_coverage_are_ignored(tmp_path: Path) -> None:
    text = "\n".join(
        [*WITHOUT_VALUE.split(), "-D tests --default-path=x"]
        + [f'{each} "$(nproc)"' for each in WITH_VALUE.split()]
    )

    assert options(tmp_path, text) == SpecOptions()


def test_option_in_an_option_file_sets_its_field(tmp_path: Path) -> None:
    settings: list[tuple[str, str, object]] = [
        ("-P a -P b", "pattern", "b"),
        ("-E a -Eb --example 'c d'", "examples", ("a", "b", "c d")),
        ("-e A=b -eC=d", "env", (("A", "b"), ("C", "d"))),
        ("--path=/a:/b", "path", "/a:/b"),
        ("--execdir @basedir", "exec_dir", "@basedir"),
        ("--sandbox --sandbox-path /x", "sandbox_path", "/x"),
        ("--sandbox --no-sandbox", "mocks_only", False),
        ("--no-warning-as-failure -w", "warning_as_failure", True),
        ("-s /bin/bash", "shell", find_shell("/bin/bash", source="", line=None)),
        ("--env-from .shellspec-local", "env_from", ".shellspec-local"),
    ]
    for text, field, value in settings:
        assert getattr(options(tmp_path, text), field) == value
        (tmp_path / ".shellspec").rename(tmp_path / ".shellspec-local")
        assert getattr(read_options(tmp_path), field) == value


def options(folder: Path, text: str, local: str = "") -> SpecOptions:
    (folder / ".shellspec").write_text(text)
    (folder / ".shellspec-local").write_text(local)
    return read_options(folder)


def test_later_options_replace_single_values_and_extend_lists(tmp_path: Path) -> None:
    found = options(
        tmp_path,
        "--require one --require two # --require none\n--helperdir a\n--tag x --tag y:1,w\n-I lib\n"
        "--env A=1=2 -e B\n--pattern '*_test.sh'\n",
        "--helperdir=b\n-T z\n--load-path x\n-Imore\n--no-warning-as-failure\n-F\n--require three\n",
    )

    assert found.requires == ("one", "two", "three")
    assert (found.helper_dir, found.pattern) == ("b", "*_test.sh")
    assert found.tags == ("x", "y:1", "w", "z")
    assert found.load_path == ("lib", "x", "more")
    assert found.env == (("A", "1=2"), ("B", ""))
    assert (found.warning_as_failure, found.focus) == (False, True)
    assert options(tmp_path, "--focus\n", "--no-focus\n--warning-as-failure\n") == SpecOptions()


def test_variables_in_options_are_expanded_and_substitutions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACE", "/opt")
    monkeypatch.delenv("ABSENT", raising=False)

    found = options(tmp_path, "-I $PLACE/lib -I ${PWD}/x -I '$PLACE' -I a$ABSENT\n")

    assert found.load_path == ("/opt/lib", f"{tmp_path}/x", "$PLACE", "a")
    for code in ("$(pwd)", "`pwd`", "${A:-b}"):
        with pytest.raises(BadInputError, match="are expanded; replace"):
            options(tmp_path, f'-I "{code}"\n')


def test_invalid_option_is_refused_with_its_line(tmp_path: Path) -> None:
    refusals: list[tuple[str, int, str]] = [
        ("--tag x\n--frobnicate\n", 2, "There is no option '--frobnicate'"),
        ("--tag\n", 1, "'--tag' needs a value"),
        ("\n\n--tag 'x\n", 3, "No closing quotation"),
        ("--env-from absent.env\n", 1, "'--env-from absent.env' names no file"),
    ]
    for text, line, why in refusals:
        with pytest.raises(BadInputError, match=why) as refused:
            options(tmp_path, text)

        assert refused.value.line == line


def test_pattern_of_the_nearest_project_decides_which_files_are_specs(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / ".shellspec").write_text("--pattern '*_test.sh'\n")
    (tmp_path / "inner/.shellspec").write_text("--pattern 'y.sh|*/inner/x*|deep/z*'\n")

    (tmp_path / "inner/deep").mkdir()
    assert Project.of(tmp_path / "inner/deep/a_spec.sh", tmp_path).root == tmp_path / "inner"
    assert Project.of(tmp_path / "a_spec.sh", tmp_path / "inner").root == tmp_path
    specs = {
        "a_test.sh": True, "a_spec.sh": False, "below/a_test.sh": True, "below/a_spec.sh": False,
        "inner/x.sh": True, "inner/y.sh": True, "inner/a_test.sh": False, "inner/x.py": False,
        "inner/deep/z.sh": True, "inner/z.sh": False,
    }  # fmt: skip
    assert {name: is_spec(tmp_path / name) for name in specs} == specs


def test_spec_runs_in_the_directory_of_its_project(tmp_path: Path) -> None:
    places: list[tuple[str, str]] = [
        ("@project", ""),
        ("@project/a", "a"),
        ("@specfile", "spec/deep"),
        ("@specfile/b", "spec/deep/b"),
        ("@basedir", "spec"),
        ("@basedir/b", "spec/b"),
    ]
    for number, (option, place) in enumerate(places):
        root = tmp_path / str(number)
        root.mkdir()
        project = Project(root=root, options=options(root, f"--execdir {option}\n"))
        (root / "spec/deep").mkdir(parents=True)
        (root / "spec/.shellspec-basedir").touch()

        assert project.exec_dir(root / "spec/deep/a_spec.sh") == root / place
        (root / "spec/deep/.shellspec").touch()
        if option == "@basedir":
            assert project.exec_dir(root / "spec/deep/a_spec.sh") == root / "spec/deep"


def test_spec_shell_has_the_environment_variables_of_its_project(tmp_path: Path) -> None:
    found = options(
        tmp_path, "-e A=1 -e A=2 --env SHELLSPEC_VERSION=9 -I lib\n--path /opt\n--helperdir help\n"
    )
    project = Project(root=tmp_path, options=found)

    env = environment(
        project, tmp_path / "spec/a_spec.sh", tmp_path, tmp_path / "7", tmp_path / "mocks"
    )

    assert (env["A"], env["SHELLSPEC_SPECFILE"], env["SHELLSPEC_SPEC_NO"]) == (
        "2", "spec/a_spec.sh", "7",
    )  # fmt: skip
    assert env["SHELLSPEC_VERSION"] == SHELLSPEC_VERSION
    assert env["SHELLSPEC_LOAD_PATH"] == f"{tmp_path}/help:{tmp_path}/lib"
    assert env["PATH"] == f"{tmp_path}/help/support/bin:/opt"
    assert "HX_PATH" not in env


def test_sandbox_option_sets_path_to_the_support_folder_and_the_sandbox_path(
    tmp_path: Path,
) -> None:
    paths: list[tuple[str, str]] = [("", ""), ("--sandbox-path /opt:/x\n", ":/opt:/x")]
    for option, path in paths:
        project = Project(root=tmp_path, options=options(tmp_path, f"--sandbox\n{option}"))

        env = environment(project, tmp_path / "a_spec.sh", tmp_path, tmp_path, tmp_path)

        assert env["HX_PATH"] == f"{tmp_path}/spec/support/bin{path}"
