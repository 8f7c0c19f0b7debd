"""Which files of a project are copied, and which lines of a script count as changed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from harness.errors import BadInputError
from harness.mutate.project_copy import Project, digest_of_all, parse_changed_lines
from harness.mutate.worker import TestChoice, Worker
from harness.shell.mocks.scripted_runner import ScriptedRunner


def _without_git(root: Path, *scripts: Path) -> Project:
    runner = ScriptedRunner()
    runner.expect(["git", "-C", str(root), "rev-parse", "--show-toplevel"], exit_code=128)
    return Project(root, scripts, runner)


def test_copy_of_a_project_outside_git_omits_dot_git_and_dot_venv_and_node_modules(
    tmp_path: Path,
) -> None:
    root, copy = tmp_path / "project", tmp_path / "copy"
    for name in ("a.sh", "spec/a_spec.sh", ".venv/bin/python", ".git/HEAD", "x/node_modules/m.js"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "link").symlink_to("a.sh")
    (root / "folder").symlink_to("spec")
    project = _without_git(root, Path("a.sh"))
    files = project.files()
    assert {str(file) for file in files} == {"a.sh", "spec/a_spec.sh", "link", "folder"}
    assert project.copy(files, copy) == copy
    assert (copy / "link").is_symlink()
    assert (copy / "folder").is_symlink()
    assert (copy / "spec/a_spec.sh").read_text() == "spec/a_spec.sh"


def test_existing_report_files_are_not_copied_with_the_project(tmp_path: Path) -> None:
    for name in ("a.sh", "out.json", "old.json"):
        (tmp_path / name).touch()
    runner = ScriptedRunner()
    runner.expect(["git", "-C", str(tmp_path), "rev-parse", "--show-toplevel"], exit_code=128)
    reports = [Path("out.json"), tmp_path / "absent.html", Path("a.sh")]

    project = Project(tmp_path, [Path("a.sh")], runner, without=reports)

    assert [str(file) for file in project.files()] == ["a.sh", "old.json"]


def test_mutated_script_in_the_copy_keeps_its_mode_and_is_restored_after_an_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "project").mkdir()
    script = tmp_path / "project/a.sh"
    script.write_text("a\n")
    script.chmod(0o754)
    project = _without_git(tmp_path / "project", Path("a.sh"))
    worker = Worker(project, project.files(), tmp_path / "worker", TestChoice(paths=()))
    copy = worker.top / "a.sh"

    with contextlib.suppress(ZeroDivisionError), worker.planted(Path("a.sh"), b"b\n"):
        assert (copy.read_text(), copy.stat().st_mode & 0o777) == ("b\n", 0o754)
        raise ZeroDivisionError

    assert (copy.read_text(), copy.stat().st_mode & 0o777) == ("a\n", 0o754)
    assert script.read_text() == "a\n"


def test_script_that_is_missing_or_outside_the_project_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "a.sh").touch()
    with pytest.raises(BadInputError, match=r"There is no such script"):
        _without_git(root, Path("b.sh"))
    with pytest.raises(BadInputError, match=r"outside of the project"):
        _without_git(root, Path("../a.sh"))


def test_digest_of_all_files_excludes_the_given_files() -> None:
    digests = {"a": "1", "b": "2"}
    assert digest_of_all(digests, ["b"]) == digest_of_all({"a": "1", "b": "3"}, ["b"])
    for others in ({"a": "1", "b": "3"}, {"a": "1", "c": "2"}, {"a": "1"}):
        assert digest_of_all(digests, []) != digest_of_all(others, [])


def test_changed_lines_of_a_diff_are_numbered_as_in_the_new_file() -> None:
    diff = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y\n@@ -3 +3,2 @@\n-a\n+b\n+c\n@@ -9,2 +10,0 @@\n-d\n-e\n"
    assert parse_changed_lines(diff) == {1, 3, 4, 10, 11}


def test_copy_has_the_existing_files_that_git_lists_and_a_script_that_git_ignores(
    tmp_path: Path,
) -> None:
    """A file that git lists may have been deleted, and git may ignore the script itself."""
    for name in ("a.sh", "ignored.sh", "module/b.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one\ntwo\n")
    (tmp_path / "link").symlink_to("module")
    git = ["git", "-C", str(tmp_path)]
    files = [*git, "ls-files", "-z", "--full-name", "--cached", "--others", "--exclude-standard"]
    options = [
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "--text",
        "-U0",
        "--inter-hunk-context=0",
    ]
    changed = ["diff", *options, "main", "--", str(tmp_path / "a.sh")]
    with (
        ScriptedRunner()
        .expect([*git, "rev-parse", "--show-toplevel"], stdout=f"{tmp_path}\n")
        .expect([*files, str(tmp_path)], stdout="a.sh\0gone.sh\0link\0module\0")
        .expect([*git, "rev-parse", "--verify", "--quiet", "main^{commit}"])
        .expect([*git, "cat-file", "-e", "main:ignored.sh"], exit_code=128)
        .expect([*git, "rev-parse", "--verify", "--quiet", "main^{commit}"])
        .expect([*git, "cat-file", "-e", "main:a.sh"])
        .expect([*git, *changed], stdout="@@ -2 +2 @@\n")
    ) as runner:
        project = Project(tmp_path, [Path("ignored.sh")], runner)

        found = project.files()
        new = project.changed_lines(Path("ignored.sh"), "main")
        assert project.changed_lines(Path("a.sh"), "main") == {2}

    assert [str(file) for file in found] == ["a.sh", "ignored.sh", "link", "module/b.sh"]
    assert {1, 2} <= new
    before = project.digests(found)
    (tmp_path / "a.sh").chmod(0o755)
    assert {name for name, digest in project.digests(found).items() if digest != before[name]} == {
        "a.sh"
    }
