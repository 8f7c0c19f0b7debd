"""How a machine's memory and devices are packed, as far as nothing is packed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.whole_state import restore_whole_state, suffix
from suites.unit.machine.fake_monitor import FakeMonitor

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("installed", "expected"),
    [({"zstd", "gzip"}, ".zst"), ({"gzip"}, ".gz"), (set(), ".gz")],
    ids=["both", "gzip", "none"],
)
def test_state_is_packed_by_the_best_that_the_host_has(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], expected: str
) -> None:
    monkeypatch.setattr(
        shutil, "which", lambda name: f"/usr/bin/{name}" if name in installed else None
    )

    assert suffix() == expected


@pytest.mark.parametrize(("name", "tool"), [("memory.zst", "zstd"), ("memory.gz", "gzip")])
def test_tool_that_a_state_was_packed_by_is_named_where_the_host_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, tool: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monitor = FakeMonitor()

    with pytest.raises(HarnessError) as refused:
        restore_whole_state(monitor, "node", tmp_path / name)

    assert str(refused.value) == (
        f"'{tmp_path / name}' is packed by '{tool}', which this host lacks; install it with "
        f"`apt-get install {tool}`."
    )
    assert monitor.commands == []
