"""Writes scripts on PATH for mocked and denied commands; each script gets its answer from the harness."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from harness.shell.lexer import quote

if TYPE_CHECKING:
    from collections.abc import Iterable

MOCKED_COMMAND = Path(__file__).with_name("mocked_command.sh")


def mock_script(name: str) -> str:
    """Return the script that replaces the command `name` and requests the answer of the mock."""
    return _script(f'__hx_request mock {quote(name)} "$@"')


def denied_script() -> str:
    """Return the script that reports a call of the denied command whose name is in `$0`."""
    return _script('__hx_request denied "$0" "$@"')


def _script(line: str) -> str:
    bash = shutil.which("bash") or "/bin/bash"
    # -p: bash ignores BASH_ENV and shell options of the caller
    return f"#!{bash} -p\n. {quote(str(MOCKED_COMMAND))}\n{line}\n"


def write_mock_scripts(folder: Path, names: Iterable[str]) -> None:
    """Write a script for each mocked command; call this function before code under test sees `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = folder / name
        path.write_bytes(os.fsencode(mock_script(name)))
        path.chmod(0o755)
