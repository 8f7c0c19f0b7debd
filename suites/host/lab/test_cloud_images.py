"""The commands that install the harness's agent at the first boot of a cloud image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.lab.cloud_images import (
    agent_commands,
)
from harness.provisioning.command import LocalRunner
from harness.settings import SHIPPED_IMAGES

if TYPE_CHECKING:
    from pathlib import Path

TREE = SHIPPED_IMAGES / "debian-12/root"


def test_agent_loader_is_written_completely_with_mode_0755(tmp_path: Path) -> None:
    loader = next(argv for argv in agent_commands() if argv[-1] == "0755")
    target = tmp_path / "a folder/agent-loader"

    LocalRunner().run([*loader[:4], str(target), *loader[5:]], timeout_s=30).check(
        "Writing the loader"
    )

    assert target.read_bytes() == (TREE / "usr/lib/harness/agent-loader").read_bytes()
    assert target.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in target.parent.iterdir()] == ["agent-loader"]
