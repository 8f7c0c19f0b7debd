"""Finds the lines of shell code that ran, in the trace of bash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.shell.coverage import Place, any_uses_trace, merge, parse_trace, uses_trace

if TYPE_CHECKING:
    from pathlib import Path


def entry(
    source: str, line: int, *, depth: int = 1, level: int = 1, folder: str | Path = "/"
) -> str:
    return f"{'+' * level}\x1e{depth}\x1f{source}\x1f{line}\x1f{folder}\x1eecho x\n"


def test_trace_of_files_outside_of_the_sources_is_ignored(tmp_path: Path) -> None:
    script = tmp_path / "lib" / "a.sh"
    script.parent.mkdir()
    script.touch()
    (tmp_path / "lib2.sh").touch()
    others = [entry(name, 4) for name in ("/usr/lib/b.sh", "lib2.sh", "lib/absent.sh")]
    trace = entry("lib/a.sh", 3, depth=2, level=3) + "".join(others) + "noise\n"

    assert parse_trace(trace, tmp_path, [tmp_path / "lib"]) == {str(script): {Place(3, 2, 3)}}


def test_trace_entry_with_an_impossible_path_is_ignored(tmp_path: Path) -> None:
    """Code under test may write to the trace, and a source may be a link to itself."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for name in ("x" * 5000, "a\0b", "loop"):
        assert parse_trace(entry(f"{tmp_path}/{name}", 1), tmp_path, [tmp_path, loop]) == {}


def test_relative_trace_paths_start_at_the_working_directory_of_the_process(
    tmp_path: Path,
) -> None:
    scripts = [tmp_path / folder / "a.sh" for folder in ("", "lib", "tools")]
    for script in scripts:
        script.parent.mkdir(exist_ok=True)
        script.touch()
    trace = [
        entry("./a.sh", 1, folder=tmp_path), entry("./a.sh", 2, folder=tmp_path / "lib"),
        entry("./a.sh", 3, folder=tmp_path / "tools"), entry("../lib/a.sh", 4, folder=tmp_path / "tools"),
        entry("../lib/a.sh", 5, folder="/"),
    ]  # fmt: skip

    hits = parse_trace("".join(trace), tmp_path, [tmp_path])

    lines = [{place.line for place in hits[str(script)]} for script in scripts]
    assert lines == [{1}, {2, 4, 5}, {3}]


def test_trace_entries_are_read_and_similar_text_is_ignored(tmp_path: Path) -> None:
    """Code under test may write to the trace, even numbers that are too long for Python."""
    script = tmp_path / "a b:1:.sh"
    script.touch()
    long = "9" * 5000
    trace = [
        entry(str(script), 7), entry("/copies/script.sh", 4),
        f"+\x1e1\x1f{script}\x1f3\x1f/\x1eecho '\n+hx:{script}:9:\n+ echo 4'\n",
        f"+\x1e{long}\x1f{script}\x1f1\x1f/\x1e:\n+\x1e1\x1f{script}\x1f{long}\x1f/\x1e:\n",
    ]  # fmt: skip

    hits = parse_trace("".join(trace), tmp_path, [tmp_path], copies={"/copies/script.sh": script})

    assert hits == {str(script): {Place(line, 1, 1) for line in (3, 4, 7)}}


def test_merge_adds_the_coverage_of_a_worker() -> None:
    hits = {"a.sh": {Place(1, 1, 1)}}

    merge(hits, {"a.sh": [(2, 1, 1)], "b.sh": [[1, 2, 3]]})

    assert hits == {"a.sh": {Place(1, 1, 1), Place(2, 1, 1)}, "b.sh": {Place(1, 2, 3)}}


USES_TRACE = {
    "set -x": True, "set -eux": True, "set +x": True, "set -e -x": True, "set -o xtrace": True,
    "{ set +x; } 2>/dev/null": True, "bash -o xtrace": True, "set -eu": False, "reset -x": False,
    "set -- x": False, "offset=-x": False,
}  # fmt: skip


def test_code_that_uses_set_x_is_recognised(tmp_path: Path) -> None:
    assert {code: uses_trace(code) for code in USES_TRACE} == USES_TRACE
    for name, code in (("a.sh", b"true"), ("b.sh", b"echo caf\xe9; set -x"), ("c.sh", b"true")):
        (tmp_path / name).write_bytes(code)
    assert any_uses_trace((tmp_path / "a.sh", tmp_path))
    assert not any_uses_trace((tmp_path / "a.sh", tmp_path / "c.sh"))
