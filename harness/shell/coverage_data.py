"""Writes, combines and reports the coverage of shell code in data files of coverage.py.

The coverage.py context of a line names the kind of test that ran the line, and the version of the
script: the first 16 digits of the script's SHA-256. So data of several runs can be combined later,
and data that was recorded with another version of a script is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import coverage
from coverage.plugin import CoveragePlugin, FileReporter
from typing_extensions import override

from harness.errors import BadInputError, HarnessError, listed, naming
from harness.foreign_files import read_plain
from harness.lease import temporary_folder
from harness.limits import COVERAGE_ENTRIES, COVERAGE_FILE_MIB, COVERAGE_LINES
from harness.shell.commands_of import code_lines, executed_lines
from harness.shell.coverage import scripts_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from harness.shell.coverage import Hits, Tier

_MODULE = "harness.shell.coverage_data"
_PLUGIN = f"{_MODULE}.ShellCoverage"
_DIGEST_DIGITS = 16
#: The first bytes of the databases that coverage.py writes.
_DATABASE = b"SQLite format 3\0"
_CONTEXT = re.compile(r"(.+) \(sha256 ([0-9a-f]{16})\)\Z")


def digest_of(content: bytes) -> str:
    """Return the digits that identify a version of a script: the start of its SHA-256."""
    return hashlib.sha256(content).hexdigest()[:_DIGEST_DIGITS]


def write_data(hits: Mapping[Tier, Hits], sources: Sequence[Path], path: Path) -> Sequence[Path]:
    """Write the lines that ran in the scripts at `sources` as a data file of coverage.py.

    Return the files at `sources` that are left out because they cannot be read. The data file lists
    all scripts, even scripts that did not run. With `[run] plugins = harness.shell.coverage_data`
    in its configuration, coverage.py itself can report the data file. Raises BadInputError if there
    is no script at `sources`, or if `path` exists and is not data of coverage.py.
    """
    unread: list[Path] = []
    scripts = list(scripts_in(sources, unread=unread))
    if not scripts:
        unreadable = f"; can't read {listed(map(str, unread))}" if unread else ""
        raise BadInputError(
            f"There is no bash script at {listed(map(str, sources))}{unreadable}.",
            source="--shell-cov",
        )
    _remove_earlier(path)
    data = coverage.CoverageData(basename=str(path))
    for script in scripts:
        _add_lines(data, None, str(script), ())
    for tier, places_of in hits.items():
        for script_name, places in places_of.items():
            content = Path(script_name).read_bytes()
            context = f"{tier.value} (sha256 {digest_of(content)})"
            _add_lines(
                data,
                context,
                script_name,
                executed_lines(content.decode(errors="replace"), places),
            )
    with _writing():
        data.write()
    return unread


def _remove_earlier(path: Path) -> None:
    """Remove the coverage data of an earlier run at `path`.

    Raise BadInputError if `path` is not data of coverage.py.
    """
    if not path.exists():
        return
    if path.is_file():
        with path.open("rb") as file:
            begin = file.read(len(_DATABASE))
        if begin in {b"", _DATABASE}:
            path.unlink()
            return
    raise BadInputError(
        f"'{path}' exists, but is not a data file of coverage.py, so the harness does not replace it; "
        "name another file.",
        source="--shell-cov-data",
    )


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except (coverage.CoverageException, sqlite3.Error) as error:
        # The error's text includes SQLite's message, for example about a full disk.
        raise HarnessError(f"The coverage of shell code can't be written: {error}.") from error


def combine(paths: Iterable[Path]) -> coverage.CoverageData:
    """Return the combined data of several files, with only the kind of test as a line's context.

    Raises BadInputError for a file that is not coverage data of shell code, and for data that was
    recorded with another version of a script.
    """
    combined = coverage.CoverageData(no_disk=True)
    for path in paths:
        if not path.is_file():
            raise BadInputError(
                "There is no such file; 'pytest --shell-cov=PATH' writes '.coverage.shell'.",
                source=str(path),
            )
        with _foreign_data(path) as data:
            _add(combined, data, path)
    return combined


@contextlib.contextmanager
def _foreign_data(path: Path) -> Iterator[coverage.CoverageData]:
    """Yield the coverage data of another run.

    Raises LimitError for too much data, and BadInputError for invalid data. If code in the `with`
    block finds further invalid data, BadInputError is raised too.

    coverage.py reads a copy of the file, since SQLite may create files beside a database that
    SQLite opens.
    """
    with temporary_folder("harness-coverage") as folder:
        copy = folder / "data"
        try:
            copy.write_bytes(read_plain(path.resolve(), limit=COVERAGE_FILE_MIB))
            _require_bounded(copy, path)
            data = coverage.CoverageData(basename=str(copy))
            data.read()
            if data.has_arcs():
                raise ValueError("it records branches, but the harness needs records of lines")
            yield data
        except (
            *(coverage.CoverageException, sqlite3.Error),
            # The database has a value of another type, or several values where coverage.py expects
            # one.
            *(TypeError, ValueError, AttributeError, AssertionError),
        ) as error:
            raise BadInputError(
                f"The file is not data of coverage.py ({error}).", source=str(path)
            ) from error


def _require_bounded(copy: Path, path: Path) -> None:
    """Refuse a large database, and a database with computed content, such as an endless view."""
    with contextlib.closing(sqlite3.connect(copy)) as database:
        for kind, name, sql in database.execute(
            "SELECT type, name, sql FROM sqlite_master"
        ).fetchall():
            columns = database.execute("SELECT hidden FROM pragma_table_xinfo(?)", (name,))
            is_computed = any(hidden for (hidden,) in columns)
            is_virtual = str(sql).lstrip().upper().startswith("CREATE VIRTUAL")
            if kind not in {"table", "index"} or is_virtual or is_computed:
                raise ValueError(f"it has an object that is not a plain table or index: {name!r}")
        [entries] = database.execute(
            "SELECT (SELECT count(*) FROM file) + (SELECT count(*) FROM context)"
            " + (SELECT count(*) FROM line_bits)"
        ).fetchone()
        [size] = database.execute("SELECT sum(length(numbits)) FROM line_bits").fetchone()
    COVERAGE_ENTRIES.check(entries, f"'{path}'")
    COVERAGE_LINES.check((size or 0) * 8, f"'{path}'")


def gather(roots: Mapping[Path, str], to: Path, root: Path) -> None:
    """Combine the data of several files; move each script's path from its run's root to `root`.

    A script that is not below its run's root keeps its path. Raises BadInputError for a file that
    is not data of coverage.py.
    """
    gathered = coverage.CoverageData(basename=str(to))
    for path, recorded in roots.items():
        with _foreign_data(path) as data:
            _move_lines(data, gathered, recorded, root)
    with _writing():
        gathered.write()


def _move_lines(
    data: coverage.CoverageData, gathered: coverage.CoverageData, recorded: str, root: Path
) -> None:
    for script in sorted(data.measured_files()):
        moved = root / script.removeprefix(f"{recorded}/")
        _add_lines(gathered, None, str(moved), ())
        for context, lines in _lines_by_context(data, script).items():
            _add_lines(gathered, context, str(moved), lines)


def _lines_by_context(data: coverage.CoverageData, script: str) -> Mapping[str, set[int]]:
    # A query for each context would take hours if there are thousands of contexts.
    found: defaultdict[str, set[int]] = defaultdict(set)
    for line, contexts in data.contexts_by_lineno(script).items():
        for context in contexts:
            found[context].add(line)
    return found


def _add(combined: coverage.CoverageData, data: coverage.CoverageData, path: Path) -> None:
    for script in sorted(data.measured_files()):
        if data.file_tracer(script) != _PLUGIN:
            raise BadInputError(
                f"The file has coverage of '{script}', which is not shell code; run "
                "'coverage report' for this file.",
                source=str(path),
            )
        try:
            digest = digest_of(read_plain(Path(script)))
        except OSError as error:
            raise BadInputError(
                f"The file has coverage of '{script}', which can't be read ({error.strerror}).",
                source=str(path),
            ) from error
        _add_lines(combined, None, script, ())
        for context, lines in _lines_by_context(data, script).items():
            known = _CONTEXT.match(context)
            if known is None or known[2] != digest:
                raise BadInputError(
                    f"The file has the coverage of an earlier or later version of '{script}'; run the "
                    "tests of the script again with '--shell-cov'.",
                    source=str(path),
                )
            _add_lines(combined, known[1], script, lines)


def _add_lines(
    data: coverage.CoverageData, context: str | None, script: str, lines: Iterable[int]
) -> None:
    with _writing():
        data.set_context(context)
        data.add_lines({script: set(lines)})
        data.touch_file(script, _PLUGIN)


def report(data: coverage.CoverageData, *, html: Path | None, lcov: Path | None) -> str:
    """Return a table of the scripts' coverage; write HTML and lcov reports to the given paths."""
    reporter = coverage.Coverage(data_file=None, config_file=False)
    reporter.set_option("run:plugins", [_MODULE])
    reporter.get_data().update(data)
    table = io.StringIO()
    try:
        reporter.report(file=table, show_missing=True)
        if html is not None:
            reporter.html_report(directory=str(html), show_contexts=True, title="Shell coverage")
        if lcov is not None:
            with naming(lcov):
                reporter.lcov_report(outfile=str(lcov))
    except coverage.CoverageException as error:
        raise HarnessError(f"The coverage of shell code can't be reported: {error}") from error
    return table.getvalue()


class ShellCoverage(CoveragePlugin):
    """Tells coverage.py which lines of a script are code."""

    @override
    def file_reporter(self, filename: str) -> FileReporter:
        return _ShellReporter(filename)


class _ShellReporter(FileReporter):
    @override
    def lines(self) -> set[int]:
        return code_lines(self.source())

    @override
    def source(self) -> str:
        return read_plain(Path(self.filename)).decode(errors="replace")


def coverage_init(registry: coverage.plugin_support.Plugins, options: Mapping[str, str]) -> None:
    """Register the plugin; coverage.py calls this function."""
    del options
    registry.add_file_tracer(ShellCoverage())
