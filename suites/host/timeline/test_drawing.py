"""Timelines drawn by matplotlib: texts, positions and colours in both colour schemes."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from harness.cli import main
from harness.plots import DARK, LIGHT, Scheme
from harness.timeline import Gap, Lane, Span, SpanState, Timeline, drawing
from harness.timeline.drawing import render_timelines
from harness.timeline.page import render_page
from harness.timeline.reading import read_timeline
from suites.unit.timeline.folders import a_node_that_built

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def timelines(tmp_path: Path) -> list[Timeline]:
    """Return the timeline of a node that was built, and the timeline of a node that hangs."""
    return [
        read_timeline(a_node_that_built(tmp_path / name, hangs=name == "hangs").write())
        for name in ("done", "hangs")
    ]


def texts_of(timelines: list[Timeline], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Return each text in the picture with its bounding box in pixels."""
    found: list[tuple[str, Any]] = []
    draw = drawing._draw

    def watch(figure: Any, *arguments: Any) -> None:
        draw(figure, *arguments)
        figure.draw_without_rendering()
        for axes in figure.axes:
            texts = [*axes.texts, *axes.get_yticklabels(), axes.title, axes._left_title]
            found.extend(
                (text.get_text(), text.get_window_extent())
                for text in texts
                if text.get_text() and text.get_visible()
            )

    monkeypatch.setattr(drawing, "_draw", watch)
    content = render_timelines(timelines, LIGHT, form="png")
    assert struct.unpack(">I", content[16:20]) == (1000,), "It is 1000 pixels wide."
    return found


@pytest.mark.parametrize("count", [1, 2], ids=["one", "side-by-side"])
def test_labels_fit_into_a_width_of_1000_pixels_and_do_not_overlap(
    timelines: list[Timeline], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_of(timelines[:count], monkeypatch)

    assert [words for words, box in texts if box.x0 < 0 or box.x1 > 1000] == []
    overlapping = {
        (first, second)
        for (first, one), (second, other) in combinations(texts, 2)
        if one.overlaps(other)
        and one.padded(-1).overlaps(other.padded(-1))
        # Panels that are side by side share the words of their rows.
        and (first, one.bounds) != (second, other.bounds)
    }
    assert not overlapping


def test_labels_have_durations_in_seconds_and_the_name_of_the_awaited_systemd_unit(
    timelines: list[Timeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [text for text, _ in texts_of(timelines[:1], monkeypatch)]

    assert "16.0 s; after containerd.service" in words
    assert "failed after 1.0 s" in words
    assert "cloud-final.service" in words


def test_label_of_a_waiting_unit_names_the_first_two_blockers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    span = Span(
        lane=Lane.UNITS,
        name="last.service",
        start_s=90.0,
        end_s=90.0,
        state=SpanState.WAITING,
        blockers=("a", "b", "c", "d"),
        blocked_from_s=40.0,
    )

    words = [
        text for text, _ in texts_of([Timeline(title="x", end_s=100, spans=(span,))], monkeypatch)
    ]

    assert "waiting for 50.0 s; for a, b and 2 more" in words


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=lambda scheme: scheme.name)
def test_svg_has_only_the_background_colour_of_the_selected_scheme(
    timelines: list[Timeline], scheme: Scheme
) -> None:
    content = render_timelines(timelines[:1], scheme).decode()

    assert scheme.background in content
    assert ({LIGHT.background, DARK.background} - {scheme.background}).pop() not in content


def test_rendering_a_timeline_twice_produces_identical_bytes(timelines: list[Timeline]) -> None:
    assert render_timelines(timelines[:1], LIGHT) == render_timelines(timelines[:1], LIGHT)


def test_name_with_characters_that_the_font_lacks_is_drawn_without_a_warning(
    timelines: list[Timeline],
) -> None:
    picture = render_timelines([replace(timelines[0], title="\u6f22\u5b57")], LIGHT)

    assert "\u6f22\u5b57" in picture.decode()


def test_html_page_loads_no_external_files(timelines: list[Timeline]) -> None:
    page = render_page(timelines)

    assert page.count("data:image/svg+xml;base64,") == 2
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "sysinit.target" in page


def test_timeline_shows_unreadable_data_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeline = Timeline(
        title="node", end_s=10.0, spans=(), gaps=(Gap(what="journal", reason="No answer."),)
    )

    words = [text for text, _ in texts_of([timeline], monkeypatch)]

    assert "not read: journal" in words
    assert "No answer." in words


def test_html_page_without_matplotlib_still_lists_the_steps(
    timelines: list[Timeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)

    page = render_page(timelines[:1])

    assert "gpu-node-harness[plots]" in page
    assert "build-driver" in page


@pytest.mark.parametrize("suffix", [".svg", ".png", ".html"])
def test_timeline_command_writes_svg_or_png_or_html(tmp_path: Path, suffix: str) -> None:
    bundle = a_node_that_built(tmp_path / "t.py-test/node").write()
    output = tmp_path / f"out{suffix}"

    assert main(["timeline", str(bundle.parent), str(bundle), "--output", str(output)]) == 0

    beginning = {".svg": b"<?xml", ".png": b"\x89PNG", ".html": b"<!doctype html>"}[suffix]
    assert output.read_bytes().startswith(beginning)


def test_timeline_command_prints_the_critical_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = a_node_that_built(tmp_path / "node", hangs=True).write()

    assert main(["timeline", str(bundle)]) == 0

    printed = capsys.readouterr().out
    assert re.search(r"cloud-init\.target +waiting +cloud-final\.service", printed)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["t"], "several machines"),
        (["t/a", "t/b", "t/a"], "at most 2"),
        (["x"], "neither a folder of evidence"),
    ],
    ids=["two-machines", "three-bundles", "no-bundle"],
)
def test_timeline_command_refuses_folders_that_it_cannot_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: list[str], words: str
) -> None:
    for name in ("a", "b"):
        a_node_that_built(tmp_path / "t" / name).write()

    assert main(["timeline", *(str(tmp_path / name) for name in names)]) == 2

    assert words in capsys.readouterr().err


def test_timeline_command_prints_a_bundle_twice_if_it_is_given_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = a_node_that_built(tmp_path / "node").write()

    assert main(["timeline", str(bundle), str(bundle)]) == 0

    assert capsys.readouterr().out.count("node: 281 s") == 2
