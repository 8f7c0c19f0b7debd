"""`harness timeline`: shows when the work in a test's machine ran, and what each part waited for."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.columns import print_columns
from harness.cli.options import settings_of
from harness.errors import BadInputError, naming
from harness.evidence.archive import machine_folders, opened, several_machines
from harness.plots import DARK, LIGHT
from harness.timeline import seconds
from harness.timeline.drawing import render_timelines
from harness.timeline.page import render_page
from harness.timeline.reading import read_timeline

if TYPE_CHECKING:
    from harness.cli.options import Commands
    from harness.timeline import Timeline

_FORMS = (".svg", ".png", ".html")
_MOST = 2


def add_parser(commands: Commands) -> None:
    """Add `timeline` to the commands of `harness`."""
    parser = commands.add_parser("timeline")
    parser.add_argument(
        "bundle",
        type=Path,
        nargs="+",
        metavar="BUNDLE",
        help="the evidence folder of a machine or of its test, or an archive of the folder; two machines "
        "are drawn side by side",
    )
    parser.add_argument(
        "--output",
        type=_output,
        metavar="FILE",
        help="the file to write, as .svg, .png or .html (default: print the critical path)",
    )
    parser.add_argument(
        "--scheme",
        choices=("light", "dark"),
        default="light",
        help="the colours of an SVG or PNG; an HTML page contains both schemes (default: %(default)s)",
    )
    parser.set_defaults(run=_timeline)


def _output(word: str) -> Path:
    path = Path(word)
    if path.suffix not in _FORMS:
        raise argparse.ArgumentTypeError(
            f"'{word}' needs one of these endings: {', '.join(_FORMS)}."
        )
    return path


def _timeline(arguments: argparse.Namespace) -> int:
    bundles: list[Path] = arguments.bundle
    if len(bundles) > _MOST:
        raise BadInputError(
            f"{len(bundles)} bundles were given; at most {_MOST} can be drawn side by side.",
            source="BUNDLE",
        )
    runs = settings_of(arguments).runs_folder
    with contextlib.ExitStack() as stack:
        timelines = [_read(stack.enter_context(opened(each, runs)), each) for each in bundles]
    if len(timelines) == _MOST and timelines[0].title == timelines[1].title:
        timelines = _titled_by_path(timelines, bundles)
    output: Path | None = arguments.output
    if output is None:
        for timeline in timelines:
            _print(timeline)
        return 0
    part = output.with_name(f".{output.name}.part")
    try:
        with naming(output):
            part.write_bytes(_render(timelines, output.suffix, arguments.scheme))
            part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    print(f"'{output}'", file=sys.stderr)
    return 0


def _read(folder: Path, bundle: Path) -> Timeline:
    machines = machine_folders(folder)
    if len(machines) > 1:
        raise several_machines(machines, folder, bundle)
    return read_timeline(machines[0] if machines else folder)


def _titled_by_path(timelines: list[Timeline], bundles: list[Path]) -> list[Timeline]:
    """Return the timelines; a title is the bundle's path without the folders that all paths share."""
    parts = [bundle.absolute().parts for bundle in bundles]
    common = next((at for at, pair in enumerate(zip_longest(*parts)) if pair[0] != pair[1]), None)
    if common is None:
        return timelines
    return [
        dataclasses.replace(timeline, title="/".join(part[common:]) or timeline.title)
        for timeline, part in zip(timelines, parts, strict=True)
    ]


def _render(timelines: list[Timeline], suffix: str, scheme: str) -> bytes:
    if suffix == ".html":
        return render_page(timelines).encode()
    return render_timelines(
        timelines, DARK if scheme == "dark" else LIGHT, form=suffix.removeprefix(".")
    )


def _print(timeline: Timeline) -> None:
    print(f"{timeline.title}: {seconds(timeline.end_s)}; the critical path:")
    print_columns(
        ("BEGIN", "TOOK", "WHAT", "STATE", "WAITED FOR"),
        [
            (
                seconds(span.start_s),
                seconds(span.duration_s),
                span.name,
                span.state.value,
                ", ".join(span.blockers) or "-",
            )
            for span in timeline.critical_path
        ],
    )
    for gap in timeline.gaps:
        print(f"not read: {gap.what}: {gap.reason}")
