"""The shell that a name in `.shellspec` selects."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.shell.shells import BASH, ShellKind, find_shell

if TYPE_CHECKING:
    from pathlib import Path


def _program(folder: Path, name: str, link: str) -> Path:
    """Put an executable `name` and a link to it into `folder`; return the link."""
    folder.joinpath(name).touch(mode=0o755)
    if link != name:
        folder.joinpath(link).symlink_to(name)
    return folder / link


def test_shell_is_identified_by_the_target_of_its_link(tmp_path: Path) -> None:
    shells: list[tuple[str, str, ShellKind, bool]] = [
        ("bash", "bash", ShellKind.BASH, False),
        ("bash", "sh", ShellKind.BASH, True),
        ("dash", "sh", ShellKind.DASH, True),
        ("dash", "dash", ShellKind.DASH, True),
        ("busybox", "ash", ShellKind.ASH, True),
        ("busybox", "sh", ShellKind.ASH, True),
    ]
    for number, (name, link, kind, is_posix) in enumerate(shells):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = _program(folder, name, link)

        found = find_shell(str(path), source=".shellspec", line=1)

        assert (found.kind, found.is_posix, found.command) == (kind, is_posix, (str(path),))


def test_command_that_starts_busybox_contains_the_applet(tmp_path: Path) -> None:
    path = _program(tmp_path, "busybox", "busybox")

    for value, applet in (("", "ash"), (" ash", "ash"), (" sh", "sh")):
        found = find_shell(f"{path}{value}", source=".shellspec", line=1)

        assert found.command == (str(path), applet)
        assert found.shebang == f"#!{path} {applet}"


def test_bash_without_a_path_is_searched_on_path_when_it_starts() -> None:
    assert find_shell("bash", source=".shellspec", line=1) is BASH
    assert BASH.shebang == f"#!{shutil.which('bash')}"


def test_unsupported_shell_behind_sh_is_refused_with_its_real_name(tmp_path: Path) -> None:
    path = _program(tmp_path, "zsh", "sh")

    with pytest.raises(BadInputError, match=rf"'--shell {path}' is zsh on this host"):
        find_shell(str(path), source=".shellspec", line=1)


def test_unsupported_shells_are_refused() -> None:
    values: list[str] = ["", "ksh", "/bin/mksh", "yash", "zsh", "busybox hush", "bash -x"]
    for value in values:
        with pytest.raises(BadInputError, match="Specs run in bash, dash and BusyBox ash"):
            find_shell(value, source=".shellspec", line=1)


def test_missing_shell_is_refused() -> None:
    values: list[str] = ["/opt/none/bash", "/opt/none/dash"]
    for value in values:
        with pytest.raises(BadInputError, match=f"There is no '{value}' on this host"):
            find_shell(value, source=".shellspec", line=1)
