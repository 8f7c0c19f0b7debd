"""Long expected texts, kept in files beside the tests."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "goldens"


def expect_golden(name: str, text: str, folder: Path = FOLDER) -> None:
    """Assert that `text` equals the text of the golden file `name` in `folder`.

    `UPDATE_GOLDENS=1` in the environment writes the golden file instead; read the difference
    before you commit it.
    """
    path = folder / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDENS") == "1":
        folder.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")
    assert f"{text}\n" == path.read_text()
