"""The folders in which the mocks of a spec are written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness.shell.spec.mock_blocks import write_writable_folders
from harness.shell.spec.translate import translate

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_writable_layer_has_only_unwritable_folders_with_mocked_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: not path.name.startswith("closed"))
    for folder, mode in (("a/closed", 0o1055), ("closed2", 0o755), ("open", 0o755)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder).chmod(mode)
    (tmp_path / "link").symlink_to("a/closed")

    def layer_of(*names: str) -> Path | None:
        text = "".join(f"Mock {name}\n:\nEnd\n" for name in names)
        spec = translate("a_spec.sh", text, lambda _, *, line: [()] * line)
        return write_writable_folders(spec, tmp_path / "layer", tmp_path)

    assert layer_of("plain", "open/tool") is None
    layer = layer_of("open/tool", "link/tool", "closed2/new/tool")
    assert layer is not None
    own = layer / tmp_path.relative_to("/")
    assert {str(each.relative_to(own)): each.stat().st_mode & 0o7777 for each in own.rglob("*")} == {
        "a": (tmp_path / "a").stat().st_mode & 0o7777, "a/closed": 0o1755, "closed2": 0o755,
    }  # fmt: skip
