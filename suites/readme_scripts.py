"""The README's commands that run a user's scripts on a machine, and scripts for these commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.docs.pages import REPOSITORY, parse_page

if TYPE_CHECKING:
    from pathlib import Path

INSTALL = "#!/bin/sh\nset -eu\nmkdir -p /etc/our-node\necho eu >/etc/our-node/region\n"


def lines_for_scripts() -> list[str]:
    """Return the commands: write the project, break a script, run pytest, repair it, run pytest."""
    page = parse_page("README.md", (REPOSITORY / "README.md").read_text())
    (block,) = (block for block in page.blocks if block.kind == "scripts")
    return block.text.splitlines()


def write_scripts(folder: Path) -> None:
    """Write the scripts of a user's project."""
    script = folder / "ops/scripts/install.sh"
    script.parent.mkdir(parents=True)
    script.write_text(INSTALL)
    script.chmod(0o755)
