"""The README's command line that builds and installs the wheel works."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from harness.provisioning.command import LocalRunner
from suites.docs.pages import parse_page
from suites.installed_wheel import REPOSITORY, copy_sources

if TYPE_CHECKING:
    from pathlib import Path

_BUILD_S = 300.0


def test_readme_command_builds_the_wheel_and_installs_the_harness_command(tmp_path: Path) -> None:
    """This test installs no dependencies; the fixture `installed_wheel` installs them."""
    page = parse_page("README.md", (REPOSITORY / "README.md").read_text())
    (line,) = (block.text for block in page.blocks if block.kind == "wheel")
    checkout, venv = tmp_path / "checkout", tmp_path / "venv"
    copy_sources(checkout)
    LocalRunner().run([sys.executable, "-m", "venv", str(venv)], timeout_s=_BUILD_S).check("venv")

    LocalRunner().run(
        ["env", "-C", str(checkout), "sh", "-euc", line],
        timeout_s=_BUILD_S,
        env={
            "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_NO_DEPS": "1",
        },
    ).check("The line of the README")

    assert len(line.splitlines()) == 1
    assert len(list((checkout / "dist").glob("*.whl"))) == 1
    assert (venv / "bin/harness").is_file()
