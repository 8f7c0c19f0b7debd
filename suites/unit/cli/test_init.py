"""`harness init` writes a whole project, or nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import pytest
import yaml

from harness.cli import init, main
from harness.image.catalogue import Recipe, load_catalogue
from harness.provisioner.yaml_file import read_provisioner

if TYPE_CHECKING:
    from pathlib import Path


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_init_writes_a_project_and_prints_the_next_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "gpu tests"

    umask = os.umask(0o077)
    try:
        assert main(["init", str(folder)]) == 0
    finally:
        os.umask(umask)

    written = files_below(folder)
    assert {"pytest.ini", "images/node.yaml", "tests/e2e/test_first_node.py"} < set(written)
    assert (folder / "scripts/prepare_node.sh").stat().st_mode & 0o777 == 0o700
    assert not (folder / "pytest.ini").stat().st_mode & 0o111
    assert f"cd '{folder}' && harness doctor && pytest" in capsys.readouterr().out


def test_init_writes_into_the_current_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("ours")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'ours'\n")
    (tmp_path / "fixtures").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "images/__init__.py").touch()

    assert main(["init"]) == 0

    assert (tmp_path / "pytest.ini").is_file()
    assert (tmp_path / "README.md").read_text() == "ours"


def test_image_and_provisioner_and_workflow_of_a_new_project_are_valid(tmp_path: Path) -> None:
    main(["init", str(tmp_path)])

    image = load_catalogue(tmp_path / "images").get("node")
    provisioner = read_provisioner(tmp_path / "provisioner.yaml")

    assert isinstance(image, Recipe)
    assert "jq" in image.file.packages
    assert "cloud-init" in image.file.packages
    assert provisioner.outcome.exit_codes == {0: "ready", 3: "no-gpu"}
    text = (tmp_path / ".github/workflows/gpu-nodes.yml").read_text()
    steps = yaml.safe_load(text)["jobs"]["test"]["steps"]
    assert "@VERSION@" not in text
    assert any("gpu-node-harness==" in step.get("run", "") for step in steps)


def test_init_writes_nothing_if_a_path_of_the_project_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (name, kind) in enumerate(
        (
            ("pytest.ini", "file"),
            ("tests/README.md", "link"),
            ("scripts/prepare_node.sh", "folder"),
        )
    ):
        folder = tmp_path / str(number)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_text("ours")
        elif kind == "link":
            path.symlink_to("gone")
        else:
            path.mkdir()
        before = sorted(folder.rglob("*"))

        assert main(["init", str(folder)]) == 2, name

        assert f"'{name}'" in capsys.readouterr().err, name
        assert sorted(folder.rglob("*")) == before, name


def test_init_refuses_a_folder_with_configuration_that_pytest_would_ignore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (name, text) in enumerate(
        (
            ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-q'\n"),
            ("pyproject.toml", "[tool.pytest]\n"),
            ("tox.ini", "[tox]\n\n[pytest]\n"),
            ("setup.cfg", "[tool:pytest]\n"),
            ("pytest.toml", ""),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_text(text)

        assert main(["init", str(folder)]) == 2, name

        assert f"{folder / name}: This file configures pytest" in capsys.readouterr().err, name
        assert files_below(folder) == {name: text.encode()}, name


def test_init_refuses_a_file_in_place_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("project", "project/tests")):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("ours")

        assert main(["init", str(folder / "project")]) == 2, name

        assert f"{path}: This is a file" in capsys.readouterr().err, name
        assert files_below(folder) == {name: b"ours"}, name
        assert [one for one in folder.rglob("*") if one.is_dir()] == [*{path.parent} - {folder}], (
            name
        )


def test_failed_write_removes_the_files_that_init_has_written(tmp_path: Path) -> None:
    """The test makes a write fail in the middle of a file, as a full disk does."""
    files = init.project_files()
    files["tests/unit/unwritable"] = (cast("bytes", "no bytes"), False)

    with pytest.raises(TypeError):
        init.write_project(tmp_path / "new" / "project", files)

    assert list(tmp_path.iterdir()) == []
