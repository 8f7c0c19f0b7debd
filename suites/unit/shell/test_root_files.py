"""Files in the throw-away root."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.shell.warm_shell.root_files import RootFiles

if TYPE_CHECKING:
    import pytest


def test_file_that_is_absent_from_a_read_only_folder_counts_as_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses to remove anything there, even what does not exist."""

    def refuse(_path: Path, *_arguments: object, **_keywords: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)

    RootFiles(tmp_path).remove("/usr/bin/dpkg")


def test_link_that_leads_nowhere_is_removed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")

    RootFiles(tmp_path).remove("/link")

    assert list(tmp_path.iterdir()) == []
