"""Coverage of shell code as data of coverage.py, and the plugin that lets it report them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import coverage
from coverage.plugin import CoveragePlugin, FileReporter
from typing_extensions import override

from harness.shell.coverage import code_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.shell.coverage import Hits

_PLUGIN = "harness.shell.coverage_data.ShellCoverage"


def write_data(hits: Hits, path: Path) -> None:
    """Write a data file of coverage.py, to be combined with those of Python code.

    `[run] plugins = harness.shell.coverage_data` in the configuration lets coverage.py report it.
    """
    path.unlink(missing_ok=True)
    data = coverage.CoverageData(basename=str(path))
    data.add_lines(hits)
    data.add_file_tracers(dict.fromkeys(hits, _PLUGIN))
    data.write()


class ShellCoverage(CoveragePlugin):
    """Tells coverage.py which lines of a script are code."""

    @override
    def file_reporter(self, filename: str) -> FileReporter:
        return _ShellReporter(filename)


class _ShellReporter(FileReporter):
    @override
    def lines(self) -> set[int]:
        return code_lines(Path(self.filename).read_text(errors="replace"))


def coverage_init(registry: coverage.plugin_support.Plugins, options: Mapping[str, str]) -> None:
    """Register the plugin; coverage.py calls this."""
    del options
    registry.add_file_tracer(ShellCoverage())
