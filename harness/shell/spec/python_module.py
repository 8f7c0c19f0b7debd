"""Writes a module with translated tests, and the imports and helper functions that the tests need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.shell.spec.python_assertions import AT, docstring

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Maps each import to a text. A module that contains the text needs the import.
_IMPORTS = {
    "import os": "os.",
    "import re": "re.",
    "import shlex": "shlex.",
    "import stat": "stat.",
    "from pathlib import Path, PurePosixPath": "PurePosixPath",
}
_OURS = {
    "Evaluation": ": Evaluation",
    "Shell": ": Shell",
    "give_surroundings": "give_surroundings(",
    "pattern_matches": "pattern_matches(",
}


def module_text(path: str, functions: Sequence[str]) -> str:
    """Return the text of a Python module with the test functions `functions`.

    The functions were translated from the spec `path`.
    """
    body = "\n\n\n".join(functions)
    if "at(shell, result" in body:
        body = f"{AT}\n\n{body}"
    standard = [line for line, name in _IMPORTS.items() if name in body]
    names = [name for name, use in _OURS.items() if use in body]
    blocks = [
        "from __future__ import annotations",
        "\n".join(standard),
        "import pytest",
        f"from harness.shell.testing import {', '.join(names)}",
    ]
    imports = "\n\n".join(block for block in blocks if block)
    return f"{docstring(f'Tests the shell code that {path} tested.')}\n\n{imports}\n\n\n{body}\n"
