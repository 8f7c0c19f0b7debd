"""How a kernel's file is written into a guest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.lab import own_kernels
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path


def test_kernel_package_is_written_completely_without_temporary_files(tmp_path: Path) -> None:
    target = tmp_path / "a folder/kernel.deb"

    LocalRunner().run([*own_kernels._PUT, str(target)], timeout_s=30, stdin="a package").check(
        "Writing"
    )

    assert target.read_text() == "a package"
    assert [path.name for path in target.parent.iterdir()] == ["kernel.deb"]
