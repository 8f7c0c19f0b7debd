"""Where programs of the host are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import host_programs
from harness.host_programs import find_program, search_path
from harness.image.build.builder import MmdebstrapBuilder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of system programs that the user's PATH lacks."""
    own, system = tmp_path / "bin", tmp_path / "sbin"
    for folder in (own, system):
        folder.mkdir()
    monkeypatch.setenv("PATH", str(own))
    monkeypatch.setattr(host_programs, "_SYSTEM_FOLDERS", (str(system),))
    return system


def program(path: Path) -> str:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_program_in_a_system_folder_is_found(system: Path) -> None:
    assert find_program("mke2fs") is None
    path = program(system / "mke2fs")

    assert find_program("mke2fs") == path
    assert search_path().endswith(f"/bin:{system}")


def test_program_on_path_is_preferred_to_system_folders(system: Path, tmp_path: Path) -> None:
    program(system / "mke2fs")
    own = program(tmp_path / "bin/mke2fs")

    assert find_program("mke2fs") == own


def test_build_finds_mke2fs_although_it_is_not_on_path(system: Path, tmp_path: Path) -> None:
    """On Debian, mke2fs is in a folder that is not on the PATH of an ordinary user."""
    for name in ("mmdebstrap", "qemu-img"):
        program(tmp_path / "bin" / name)
    program(system / "mke2fs")

    MmdebstrapBuilder(free_bytes=lambda _: 1 << 40, keyring=system).require(tmp_path)
