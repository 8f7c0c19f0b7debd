"""What of a project is copied, and which lines of a script count as changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import BadInputError
from harness.mutate.project_copy import Project, digest_of_all, parse_changed_lines
from harness.shell.mocks.scripted_runner import ScriptedRunner


def _without_git(root: Path, *scripts: Path) -> Project:
    runner = ScriptedRunner()
    runner.expect(["git", "-C", str(root), "rev-parse", "--show-toplevel"], exit_code=128)
    return Project(root, scripts, runner)


def test_without_git_all_is_copied_except_environments(tmp_path: Path) -> None:
    root, copy = tmp_path / "project", tmp_path / "copy"
    for name in ("a.sh", "spec/a_spec.sh", ".venv/bin/python", ".git/HEAD", "x/node_modules/m.js"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "link").symlink_to("a.sh")
    project = _without_git(root, Path("a.sh"))
    files = project.files()
    assert {str(file) for file in files} == {"a.sh", "spec/a_spec.sh", "link"}
    assert project.copy(files, copy) == copy
    assert (copy / "link").is_symlink()
    assert (copy / "spec/a_spec.sh").read_text() == "spec/a_spec.sh"


def test_script_elsewhere_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "a.sh").touch()
    with pytest.raises(BadInputError, match=r"There is no such script"):
        _without_git(root, Path("b.sh"))
    with pytest.raises(BadInputError, match=r"outside of the project"):
        _without_git(root, Path("../a.sh"))


def test_digest_leaves_out_the_given_files() -> None:
    digests = {"a": "1", "b": "2"}
    assert digest_of_all(digests, ["b"]) == digest_of_all({"a": "1", "b": "3"}, ["b"])
    assert digest_of_all(digests, []) != digest_of_all({"a": "1", "b": "3"}, [])


def test_changed_lines_come_from_the_new_file() -> None:
    diff = "--- a/x\n+++ b/x\n@@ -3 +3,2 @@\n-a\n+b\n+c\n@@ -9,2 +10,0 @@\n-d\n-e\n"
    assert parse_changed_lines(diff) == {3, 4, 10, 11}
