"""A user who has only the wheel can read the documentation in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pexpect

if TYPE_CHECKING:
    from pathlib import Path

    from suites.installed_wheel import InstalledWheel

_SHOW_S = 60


def test_harness_docs_lists_written_pages_and_generated_pages(
    installed_wheel: InstalledWheel, tmp_path: Path
) -> None:
    listed = installed_wheel.run("harness", "docs", cwd=tmp_path).check("harness docs").stdout

    names = [line.split()[0] for line in listed.splitlines() if line]
    assert names[:2] == ["PAGE", "index"]
    assert {"own-project", "provisioners", "reference/fixtures", "reference/provisioners"} < set(
        names
    )


_WORDS = {
    "own-project": "harness init --provisioner ops/scripts",
    "reference/fixtures": "| `boot_node` |",
    "reference/expectations": "### `unit_state(",
    "reference/provisioners": "| `outcome.exit_codes` |",
    "reference/pytest": "| `--machine-plan` |",
    "reference/commands": "1 means that a node is not as expected",
    "reference/limits": "HARNESS_LIMIT_ARCHIVE_MIB",
    "reference/provisioning": "## Exit codes",
    "reference/images": "debian-12",
    "reference/gpus": "h100-sxm5-80gb",
    "reference/benchmarks": "harness bench clone",
}
#: One process prints all pages, since each start of Python takes longer than most pages.
_PRINT = """\
import sys
from harness.cli import main
for page in sys.argv[1:]:
    assert main(["docs", page]) == 0
    print("\\0", end="")
"""


def test_harness_docs_prints_pages_as_markdown(
    installed_wheel: InstalledWheel, tmp_path: Path
) -> None:
    shown = installed_wheel.run("python", "-c", _PRINT, *_WORDS, cwd=tmp_path).check(
        "harness docs"
    )

    *pages, rest = shown.stdout.split("\0")
    assert rest == ""
    for text, (page, words) in zip(pages, _WORDS.items(), strict=True):
        assert words in text, page
        assert "](../" not in text, page


def test_harness_docs_renders_tables_on_a_terminal(
    installed_wheel: InstalledWheel, tmp_path: Path
) -> None:
    child = pexpect.spawn(
        str(installed_wheel.venv / "bin/harness"),
        ["docs", "limits"],
        cwd=str(tmp_path),
        env={"PATH": "/usr/bin:/bin", "TERM": "xterm", "PAGER": "cat", "LANG": "C.UTF-8"},
        dimensions=(40, 100),
        encoding="utf-8",
        timeout=_SHOW_S,
    )
    shown = child.read()
    child.close()

    assert child.exitstatus == 0
    assert "\x1b[" in shown
    assert "| --- |" not in shown
    assert "HARNESS_LIMIT_ARCHIVE_MIB" in shown
