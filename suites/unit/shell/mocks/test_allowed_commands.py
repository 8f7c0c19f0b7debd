"""The real commands that code under test may run."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from harness.shell.mocks.allowed_commands import (
    ALLOWED_COMMANDS,
    command_folders,
    denied_in,
    searched_path,
    write_denied_commands,
)

if TYPE_CHECKING:
    import pytest

_PAGE = Path(__file__).parents[4] / "docs/migrating-from-shellspec.md"


def test_documentation_lists_the_allowed_commands() -> None:
    text = _PAGE.read_text()
    paragraph = text.partition("not mocked, the real commands run:\n\n")[2].partition("\n\n")[0]

    assert set(re.findall(r"`([^`]+)`", paragraph)) == ALLOWED_COMMANDS


def test_target_of_an_allowed_symbolic_link_is_allowed(tmp_path: Path) -> None:
    for name in ("mawk", "curl", "readme"):
        (tmp_path / name).touch(mode=0o755 if name != "readme" else 0o644)
    (tmp_path / "awk.link").symlink_to("mawk")
    (tmp_path / "awk").symlink_to(tmp_path / "awk.link")
    (tmp_path / "folder").mkdir()

    assert denied_in(tmp_path, ["awk"]) == ["curl"]


def test_command_folders_exclude_the_project_except_its_virtual_environment(
    tmp_path: Path,
) -> None:
    for name in ("project/bin", "project/venv/bin", "host/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project/venv/pyvenv.cfg").touch()
    path = ":".join(
        f"{tmp_path}/{name}" for name in ("project", "project/bin", "project/venv/bin", "host/bin")
    )

    found = command_folders(f"{path}:relative:/no/such", tmp_path / "project")

    assert [folder for folder in found if tmp_path in folder.parents] == [
        tmp_path / "project/venv/bin",
        tmp_path / "host/bin",
    ]


def test_folders_that_cannot_be_listed_are_removed_from_the_path_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness can't deny the commands of such a folder, so the shell does not search it."""
    for name in ("closed", "open"):
        (tmp_path / name).mkdir()
    (tmp_path / "loop").symlink_to("loop")
    scandir = os.scandir

    def scan(folder: str | Path) -> object:
        if Path(folder).name == "closed":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", scan)
    path = ":".join(f"{tmp_path}/{name}" for name in ("closed", "loop", "x" * 300, "new", "open"))

    found = command_folders(path, tmp_path / "project")

    assert [folder for folder in found if tmp_path in folder.parents] == [tmp_path / "open"]
    assert searched_path(path) == f"{tmp_path}/new:{tmp_path}/open"


def test_denied_commands_are_links_to_one_script(tmp_path: Path) -> None:
    write_denied_commands(tmp_path / "denied", ["curl", "dpkg"])

    curl, dpkg = tmp_path / "denied/curl", tmp_path / "denied/dpkg"
    assert curl.samefile(dpkg)
    assert '__hx_request denied "$0" "$@"' in curl.read_text()
    assert curl.stat().st_mode & 0o111
