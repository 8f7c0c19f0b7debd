"""Writing the lock file of a cloud image."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.image.cloud.lock_file import Lock, write_lock
from harness.image.cloud.source import recipe_of_url

if TYPE_CHECKING:
    from typing import NoReturn


def test_failed_write_of_a_lock_file_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = f"sha256:{'1' * 64}"
    recipe = replace(
        recipe_of_url(f"https://images.example/tiny.qcow2#{digest.replace(':', '=')}"),
        folder=tmp_path,
    )
    lock = Lock(file="tiny.qcow2", digest=digest, signed_by=None, fetched="2026-08-21")

    def write_half(path: Path, text: str) -> NoReturn:
        path.write_bytes(text[: len(text) // 2].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_half)

    with pytest.raises(RequirementError, match="cannot be written"):
        write_lock(recipe, lock)

    assert list(tmp_path.iterdir()) == []
