"""No module of the suites imports from a test module."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
#: Parsing takes long, so only what has such a word is parsed.
MAY_IMPORT = re.compile(r"^\s*(?:from|import)\s[^\n(]*(?:\([^)]*)?\btest_", re.MULTILINE)
IMPORTS = """\
from suites.unit.lab.test_node import an_image
from .test_systemd import lines
from . import test_plan
import suites.unit.lab.test_lab
from suites.unit.lab.builders import an_image
from suites.e2e import inner
import pytest
"""


def imported_test_modules(source: str) -> list[str]:
    """Return the names of the modules 'test_*' from which `source` imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names += [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return sorted(name for name in names if name.rpartition(".")[2].startswith("test_"))


def test_every_form_of_import_is_found() -> None:
    assert imported_test_modules(IMPORTS) == [
        "suites.unit.lab.test_lab",
        "suites.unit.lab.test_node",
        "test_plan",
        "test_systemd",
    ]


@pytest.mark.parametrize("folder", ["suites", "fixtures"])
def test_no_module_imports_from_a_test_module(folder: str) -> None:
    """Builders and fakes have modules of their own; a test module can be changed alone."""
    found = {
        str(path.relative_to(REPOSITORY)): modules
        for path in (REPOSITORY / folder).rglob("*.py")
        if MAY_IMPORT.search(source := path.read_text())
        and (modules := imported_test_modules(source))
    }

    assert found == {}
