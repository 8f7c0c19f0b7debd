"""pytest collects every folder of the suites."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_SUITES = Path(__file__).parents[1]


def test_no_package_of_the_suites_has_a_name_that_pytest_skips(
    pytestconfig: pytest.Config,
) -> None:
    skipped = pytestconfig.getini("norecursedirs")

    folders = [file.parent for file in _SUITES.rglob("__init__.py")]

    assert [
        folder for folder in folders if any(fnmatch(folder.name, pattern) for pattern in skipped)
    ] == []
