"""Coverage data of several runs is combined; data of another version of a script is refused."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import coverage
import pytest

from harness.cli import main
from harness.errors import BadInputError, HarnessError
from harness.shell.coverage import Hits, Place, Tier, any_uses_trace, scripts_in
from harness.shell.coverage_data import combine, gather, report, write_data

TEXT = "f() {\n  a\n  b\n}\nif x; then\n  f\nfi\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "lib" / "my script.sh"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def hits(script: Path, *lines: int) -> Hits:
    return {str(script): {Place(line, 1, 1) for line in lines}}


def test_script_that_is_not_utf8_is_in_the_report(tmp_path: Path, script: Path) -> None:
    script.write_bytes(b"# caf\xe9\necho caf\xe9\necho\n")

    table = report(
        combine([written(tmp_path, script, "data", Tier.MOCKED, 2)]), html=None, lcov=None
    )

    assert "50%   3" in table


def written(tmp_path: Path, script: Path, name: str, tier: Tier, *lines: int) -> Path:
    path = tmp_path / name
    write_data({tier: hits(script, *lines)}, [script.parent], path)
    return path


def test_report_combines_coverage_of_unit_tests_and_machines(tmp_path: Path, script: Path) -> None:
    unit = written(tmp_path, script, "unit.data", Tier.MOCKED, 2)
    both = {Tier.MOCKED: hits(script, 5), Tier.MACHINE: hits(script, 2, 5)}
    write_data(both, [script.parent], tmp_path / "both.data")

    data = combine([unit, tmp_path / "both.data"])
    table = report(data, html=tmp_path / "html", lcov=tmp_path / "lcov.info")

    contexts = data.contexts_by_lineno(str(script))
    assert {line: set(tiers) for line, tiers in contexts.items()} == {
        2: {"machine", "unit test"},
        5: {"machine", "unit test"},
    }
    assert "50%" in table
    lcov = (tmp_path / "lcov.info").read_text()
    assert [line for line in lcov.splitlines() if line.startswith("DA:")] == [
        "DA:2,1", "DA:3,0", "DA:5,1", "DA:6,0",
    ]  # fmt: skip
    (page,) = (tmp_path / "html").glob("*script_sh.html")
    assert "unit test" in page.read_text()


def test_coverage_paths_below_a_run_root_are_moved_to_the_new_root(
    tmp_path: Path,
) -> None:
    """A script outside of the root keeps its path, even if its path begins like the path of the root."""
    beside = {f"{tmp_path}/one-more/b.sh", f"{tmp_path}/away{tmp_path}/one/c.sh"}
    runs = {"one": {f"{tmp_path}/one/lib/a.sh", *beside}, "two": {f"{tmp_path}/two/lib/a.sh"}}
    roots = {}
    for line, (name, scripts) in zip((2, 5), runs.items(), strict=True):
        ran: Hits = {}
        for script in [*map(Path, scripts), tmp_path / name / "unused.sh"]:
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(TEXT)
            ran |= hits(script, line) if script.name != "unused.sh" else {}
        data = tmp_path / f"{name}.data"
        write_data({Tier.MOCKED: ran}, [tmp_path / name], data)
        roots[data] = str(tmp_path / name)

    gather(roots, tmp_path / "gathered", tmp_path / "new")

    gathered = coverage.CoverageData(basename=str(tmp_path / "gathered"))
    gathered.read()
    lines = {script: sorted(gathered.lines(script) or ()) for script in gathered.measured_files()}
    moved = {f"{tmp_path}/new/lib/a.sh": [2, 5], f"{tmp_path}/new/unused.sh": []}
    assert lines == moved | {script: [2] for script in beside}


def test_script_that_did_not_run_is_in_the_report(tmp_path: Path, script: Path) -> None:
    """The file keeps nothing of an earlier run."""
    path = written(tmp_path, script, "data", Tier.MOCKED, 2)
    other = script.with_name("other.sh")
    other.write_text(TEXT)
    write_data({}, [script, other], path)

    table = report(combine([path]), html=None, lcov=None)
    assert [line.split()[-2] for line in table.splitlines() if ".sh" in line] == ["0%", "0%"]


def test_coverage_of_another_version_of_a_script_is_refused(tmp_path: Path, script: Path) -> None:
    unit = written(tmp_path, script, "unit.data", Tier.MOCKED, 2)
    script.write_text(f"# changed\n{TEXT}")
    machine = written(tmp_path, script, "machine.data", Tier.MACHINE, 2)

    combine([machine])
    with pytest.raises(BadInputError, match=r"unit.data: .* later version of .*my script.sh"):
        combine([machine, unit])


def test_coverage_of_a_deleted_script_is_refused(tmp_path: Path, script: Path) -> None:
    unit = written(tmp_path, script, "unit.data", Tier.MOCKED, 2)
    script.unlink()

    with pytest.raises(BadInputError, match=r"can't be read \(No such file"):
        combine([unit])


def test_coverage_of_python_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "python.data"
    data = coverage.CoverageData(basename=str(path))
    data.add_lines({__file__: [1]})
    data.write()

    with pytest.raises(BadInputError, match="which is not shell code"):
        combine([path])


def test_missing_coverage_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"):
        combine([tmp_path / "absent"])


def test_shell_cov_data_option_replaces_only_coverage_data(tmp_path: Path, script: Path) -> None:
    """The option may name a script, or a device that root could remove."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    before = script.read_bytes()

    for name in ("lib/my script.sh", "pipe", "."):
        with pytest.raises(
            BadInputError, match=r"--shell-cov-data: '.*' exists, but is not a data file of cov"
        ):
            written(tmp_path, script, name, Tier.MOCKED, 2)
    for name in ("new", "new", "empty"):
        combine([written(tmp_path, script, name, Tier.MOCKED, 2)])

    assert script.read_bytes() == before
    assert (tmp_path / "pipe").is_fifo()


def test_full_disk_is_reported_with_the_path_of_the_lcov_file(
    tmp_path: Path, script: Path
) -> None:
    data = combine([written(tmp_path, script, "data", Tier.MOCKED, 2)])

    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        report(data, html=None, lcov=Path("/dev/full"))


def test_coverage_of_a_folder_without_a_bash_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--shell-cov: There is no bash script at"):
        write_data({}, [tmp_path], tmp_path / "data")


def test_full_disk_is_reported_when_coverage_data_is_written(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error does not blame one of the combined files."""
    data = written(tmp_path, script, "data", Tier.MOCKED, 2)

    def fail(*_words: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(coverage.CoverageData, "add_lines", fail)

    with pytest.raises(HarnessError, match="can't be written: database or disk is full") as caught:
        written(tmp_path, script, "other", Tier.MOCKED, 2)
    with pytest.raises(HarnessError, match="can't be written: database or disk is full"):
        gather({data: str(tmp_path)}, tmp_path / "all", tmp_path)

    assert not isinstance(caught.value, BadInputError)


def test_scripts_are_recognised_by_suffix_or_shebang(tmp_path: Path) -> None:
    for name, first in {
        "a.sh": "", "b.bash": "", "c": "#!/usr/bin/env bash\n", "d": "#!/bin/bash -e\n",
        "e": "#!/usr/bin/python3\n", "f": "#!/bin/sh\n", "g": "#!/bin/bashful\n",
        "h": "#! /usr/bin/bash\n", "i": "echo '#!/bin/bash'\n", "j/k/l.sh": "",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(first)

    found = [path.name for path in scripts_in([tmp_path])]
    assert found == ["a.sh", "b.bash", "c", "d", "h", "l.sh"]


def test_file_that_cannot_be_read_is_left_out_and_named(tmp_path: Path, script: Path) -> None:
    """Nobody can read the start of the link's target, not even root."""
    secret, other = tmp_path / "lib/secret", tmp_path / "lib/z.sh"
    for path in (secret, other):
        path.symlink_to("/proc/self/mem")

    assert list(scripts_in([tmp_path])) == [script]
    assert not any_uses_trace((tmp_path,))
    assert write_data({}, [tmp_path], tmp_path / "data") == [secret, other]
    assert combine([tmp_path / "data"]).measured_files() == {str(script)}
    with pytest.raises(BadInputError, match=rf"no bash script at .*; can't read '{secret}'\."):
        write_data({}, [secret], tmp_path / "data")


def test_command_harness_coverage_prints_the_report(
    tmp_path: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = written(tmp_path, script, "unit.data", Tier.MOCKED, 2)

    assert main(["coverage", str(unit), "--html", str(tmp_path / "html")]) == 0

    assert "25%   3-6" in capsys.readouterr().out
    assert (tmp_path / "html" / "index.html").exists()


def test_file_that_is_not_coverage_is_reported_and_stays_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data"
    for content in (b"", b"SQLite format 3\0", b"{}"):
        path.write_bytes(content)

        assert main(["coverage", str(path)]) == 2

        assert "The file is not data of coverage.py" in capsys.readouterr().err
        assert path.read_bytes() == content


def test_invalid_path_or_context_in_coverage_data_is_refused(tmp_path: Path, script: Path) -> None:
    """The harness must not read an endless file, and can't know the version without a digest."""
    for change, why in (
        ("file set path = '/dev/zero'", "coverage of '/dev/zero', which can't be read"),
        ("context set context = 'unit test' where context != ''", "an earlier or later version"),
    ):
        path = written(tmp_path, script, "data", Tier.MOCKED, 2)
        with contextlib.closing(sqlite3.connect(path)) as data, data:
            data.execute(f"update {change}")

        with pytest.raises(BadInputError, match=why):
            combine([path])
