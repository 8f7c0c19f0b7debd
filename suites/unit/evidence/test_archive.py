"""Archives of a test's evidence, and the machines in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.evidence.archive import machine_folders
from harness.limits import LimitError

if TYPE_CHECKING:
    from pathlib import Path


def test_folders_from_within_a_guest_are_not_listed_as_machines(tmp_path: Path) -> None:
    test = tmp_path / "test"
    for path in (
        "node/host",
        "node/files/etc/host",
        "node/files/srv/checkpoint",
        "node/earlier-1/host",
        "host/host",
        "host/files/host",
        "other/commands",
        "other/files/a/host",
    ):
        (test / path).mkdir(parents=True)

    assert machine_folders(tmp_path) == [test / "host", test / "node", test / "other"]
    assert machine_folders(test / "node") == [test / "node"]


def test_too_many_nested_folders_raise_a_limit_error(tmp_path: Path) -> None:
    tmp_path.joinpath(*["d"] * 101).mkdir(parents=True)

    with pytest.raises(LimitError, match="'path-levels'"):
        machine_folders(tmp_path)
