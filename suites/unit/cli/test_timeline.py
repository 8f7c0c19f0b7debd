"""Which machines `harness timeline` shows, and what the command prints and writes."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from harness.cli import main, timeline
from harness.timeline import Gap, Lane, Span, Timeline


@pytest.fixture(autouse=True)
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Fake `read_timeline`; return a list of the folders from which timelines were read."""
    read: list[Path] = []

    def read_timeline(folder: Path) -> Timeline:
        read.append(folder)
        spans = [
            Span(lane=Lane.UNITS, name=name, start_s=start, end_s=start + 30.0, is_critical=name == "b",
                 blockers=("a",))
            for name, start in (("a", 1.0), ("b", 90.0))
        ]  # fmt: skip
        gaps = (Gap(what="journal", reason="No answer."),)
        return Timeline(title="node", end_s=120.0, spans=tuple(spans), gaps=gaps)

    monkeypatch.setattr(timeline, "read_timeline", read_timeline)
    return read


def a_bundle(folder: Path, *machines: str) -> Path:
    for name in machines:
        (folder / name / "host").mkdir(parents=True)
    return folder


def test_timeline_command_prints_the_critical_path_with_blockers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["timeline", str(a_bundle(tmp_path, "."))]) == 0

    title, _, row, gap = capsys.readouterr().out.splitlines()
    assert title == "node: 120 s; the critical path:"
    assert row.split("  ") == ["90.0 s", "30.0 s", "b", "   done", "  a"] or row.split() == [
        *("90.0", "s", "30.0", "s", "b", "done", "a")
    ]
    assert gap == "not read: journal: No answer."


def test_timeline_excludes_evidence_from_before_a_restart(
    tmp_path: Path, readings: list[Path]
) -> None:
    assert main(["timeline", str(a_bundle(tmp_path, "node", "node/earlier-1"))]) == 0
    assert readings == [tmp_path / "node"]


def test_timeline_of_a_bundle_with_several_machines_or_of_three_bundles_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], readings: list[Path]
) -> None:
    assert main(["timeline", str(a_bundle(tmp_path, "one", "two"))]) == 2
    assert main(["timeline", *[str(tmp_path)] * 3]) == 2

    said = capsys.readouterr().err
    assert "several machines" in said
    assert "3 bundles were given; at most 2" in said
    assert readings == []


def test_timelines_of_machines_with_equal_names_are_titled_by_path() -> None:
    for bundles, titles in (
        (("/e/run-1/node", "/e/run-2/node"), ["run-1/node", "run-2/node"]),
        (("/e/node", "/e/node"), ["node", "node"]),
        (("/e", "/e/node"), ["node", "node"]),
    ):
        both = [Timeline(title="node", end_s=1.0, spans=())] * 2

        told = timeline._titled_by_path(both, [Path(each) for each in bundles])

        assert [each.title for each in told] == titles, bundles


def test_timeline_output_has_the_format_of_the_file_suffix_and_the_requested_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (suffix, scheme, content) in enumerate(
        (
            (".svg", "light", b"light svg"),
            (".png", "dark", b"dark png"),
            (".html", "dark", b"page"),
        )
    ):
        folder = tmp_path / str(number)
        monkeypatch.setattr(timeline, "render_page", lambda _: "page")
        monkeypatch.setattr(
            timeline,
            "render_timelines",
            lambda _, colours, form: f"{colours.name} {form}".encode(),
        )
        output = folder / f"out{suffix}"

        bundle = str(a_bundle(folder / "b", "."))
        assert main(["timeline", bundle, f"--output={output}", f"--scheme={scheme}"]) == 0, suffix

        assert output.read_bytes() == content, suffix
        assert sorted(path.name for path in folder.iterdir()) == ["b", output.name], suffix


def test_failed_write_of_a_picture_keeps_the_earlier_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(timeline, "render_page", lambda _: "page")
    monkeypatch.setattr(Path, "replace", refuse)
    output = tmp_path / "out.html"
    output.write_text("earlier")

    assert main(["timeline", str(a_bundle(tmp_path / "b", ".")), f"--output={output}"]) == 2

    assert output.read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", output.name]


def test_unknown_output_format_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["timeline", str(tmp_path), "--output=x.pdf"])

    assert "'x.pdf' needs one of these endings: .svg, .png, .html" in capsys.readouterr().err
