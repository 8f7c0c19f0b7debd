"""Commands on an existing node over ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.machine.existing_node import NodeAddress, NodeRunner

if TYPE_CHECKING:
    from pathlib import Path

ADDRESS = NodeAddress(host="box")


def test_host_without_ssh_is_reported_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RequirementError, match="apt-get install openssh-client"):
        NodeRunner(ADDRESS).run(["uname"], timeout_s=5)
