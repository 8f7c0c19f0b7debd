"""How reports that can't be written are noticed and reported."""

from __future__ import annotations

import errno
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import BadInputError
from harness.plugin.unwritten import (
    is_replaceable,
    note_unwritten,
    require_writable,
)

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self


def test_writability_check_creates_the_report_folder_and_leaves_the_folder_empty(
    tmp_path: Path,
) -> None:
    require_writable(tmp_path / "a/b", option="--report-dir")

    assert list((tmp_path / "a/b").iterdir()) == []


def test_error_for_an_unwritable_report_path_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(
        BadInputError, match=r"--junitxml: No report can be written to '.*file': File exists\."
    ):
        require_writable(tmp_path / "file", option="--junitxml")


def test_full_disk_is_refused_before_the_tests_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may still have room for a new folder, but not for a byte of content."""

    class FullFile:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_error: object) -> None: ...

        def write(self, data: bytes) -> None:
            assert data

        def flush(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: FullFile())

    with pytest.raises(BadInputError, match="No space left on device"):
        require_writable(tmp_path, option="--alluredir")


@pytest.mark.parametrize(("before", "has_terminal"), [(0, True), (1, False)])
def test_run_fails_with_an_error_message_if_a_report_could_not_be_written(
    capsys: pytest.CaptureFixture[str], before: int, has_terminal: bool
) -> None:
    def write_line(line: str, *, red: bool) -> None:
        assert red
        sys.stderr.write(f"{line}\n")

    def ensure_newline() -> None:
        sys.stderr.write("\n")

    terminal = (
        SimpleNamespace(write_line=write_line, ensure_newline=ensure_newline)
        if has_terminal
        else None
    )
    plugins = SimpleNamespace(getplugin=lambda _: terminal)
    config = SimpleNamespace(pluginmanager=plugins)
    session: Any = SimpleNamespace(config=config, exitstatus=before)

    note_unwritten(session, "r.xml", OSError(errno.ENOSPC, "No space"))

    assert session.exitstatus == pytest.ExitCode.INTERNAL_ERROR
    said = capsys.readouterr().err
    assert said.count("'r.xml' could not be written: No space.") == 1
    assert said.startswith("\nharness: ") is has_terminal


def test_symbolic_link_or_pipe_as_a_report_path_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")

    names = ("file", "absent", "link", "pipe")
    assert [is_replaceable(tmp_path / name) for name in names] == [True, True, False, False]
