"""If pytest took an option's value for a test and so read no ini file, the harness refuses to run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import BadInputError
from harness.plugin import unread_ini

if TYPE_CHECKING:
    from pathlib import Path


def _config(here: Path, *words: str, inipath: Path | None = None) -> Any:
    return SimpleNamespace(
        inipath=inipath, invocation_params=SimpleNamespace(dir=here, args=words)
    )


def test_option_with_a_separate_path_argument_is_refused_if_pytest_did_not_read_the_ini_file(
    tmp_path: Path,
) -> None:
    for number, (name, text) in enumerate(
        (
            ("pytest.ini", ""),
            (".pytest.ini", ""),
            ("pytest.toml", ""),
            (".pytest.toml", ""),
            ("pyproject.toml", "[tool.pytest.ini_options]\n"),
            ("tox.ini", "[pytest]\n"),
            ("setup.cfg", "[tool:pytest]\n"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_text(text)
        here = folder / "tests"
        here.mkdir()

        with pytest.raises(BadInputError) as refused:
            unread_ini.refuse(_config(here, "-v", "--qemu", "/bin/sh"))

        assert (
            f"did not read the configuration file '{folder / name}'; write '--qemu=/bin/sh'"
            in str(refused.value)
        ), name


def test_each_option_with_a_path_value_is_checked_for_an_unread_ini_file(tmp_path: Path) -> None:
    for option in (
        "--shell-cov",
        "--shell-cov-data",
        "--shell-cov-lcov",
        "--report-dir",
        "--durations-file",
    ):
        (tmp_path / "pytest.ini").touch()

        with pytest.raises(BadInputError, match=f"write '{option}=/bin/sh', in one word"):
            unread_ini.refuse(_config(tmp_path, option, "/bin/sh"))


def test_other_arguments_are_accepted_if_pytest_did_not_read_the_ini_file(tmp_path: Path) -> None:
    ini = tmp_path / "pytest.ini"
    ini.touch()

    unread_ini.refuse(_config(tmp_path, "--qemu=/bin/sh", "/bin"))
    unread_ini.refuse(_config(tmp_path, "--qemu", "qemu-system-x86_64"))
    unread_ini.refuse(_config(tmp_path, "--qemu", "x" * 300))
    unread_ini.refuse(_config(tmp_path, "--junitxml", "/bin/sh"))
    unread_ini.refuse(_config(tmp_path, "--qemu", "/bin/sh", inipath=ini))


def test_separate_path_argument_is_accepted_in_a_project_without_pytest_settings(
    tmp_path: Path,
) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")

    unread_ini.refuse(_config(tmp_path, "--qemu", "/bin/sh"))
