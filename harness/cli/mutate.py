"""`harness mutate`: plants defects in shell scripts, and lists the defects that no test notices."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError, naming
from harness.settings import Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from harness.cli.options import Commands
    from harness.mutate.run import Report

_RESULTS = "mutate"
_SAID_EVERY_S = 10.0
_REPORTS = {
    "json": "all defects as JSON",
    "html": "the scripts with their defects as an HTML page",
    "sarif": "survivors as SARIF 2.1.0, for code review",
    "markdown": "a summary in Markdown, for a pull request",
}


def add_parser(commands: Commands) -> None:
    """Add `mutate` to the commands of `harness`."""
    parser = commands.add_parser("mutate")
    parser.add_argument(
        "scripts", nargs="+", type=Path, metavar="SCRIPT", help="a bash script to plant defects in"
    )
    parser.add_argument(
        "--tests",
        nargs="+",
        default=[],
        metavar="PATH",
        help="the tests to run: files, directories or node ids, as for pytest (default: the tests that "
        "pytest finds by its configuration)",
    )
    parser.add_argument(
        "--machines",
        action="store_true",
        help="also run tests on machines, for each defect that these tests reach",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="stop after this number of minutes; to continue, run the same command again (default: no limit)",
    )
    parser.add_argument(
        "--since",
        metavar="REV",
        help="plant defects only in lines that differ from a revision of git",
    )
    parser.add_argument(
        "--messages",
        action="store_true",
        help="also plant defects in messages: the arguments of 'echo', 'printf' and log functions",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="how many defects are tried at once (default: the number of processors)",
    )
    parser.add_argument(
        "--fail-under",
        type=float,
        metavar="P",
        help="end with exit code 1 if the tests notice fewer than P percent of the defects",
    )
    parser.add_argument(
        "--pytest-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="an option for pytest, such as --pytest-option=--image=debian-12; may be repeated",
    )
    for name, what in _REPORTS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {what}")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # The parser of shell code and the modules that run tests are slow to import.
    from harness.mutate.project_copy import Project  # noqa: PLC0415
    from harness.mutate.reports import render_text  # noqa: PLC0415
    from harness.mutate.run import Request, run  # noqa: PLC0415
    from harness.mutate.worker import TestChoice  # noqa: PLC0415

    for name, value in (("--minutes", arguments.minutes), ("--workers", arguments.workers)):
        # This comparison refuses NaN too.
        if value is not None and not value > 0:
            raise BadInputError("The number must be greater than 0.", source=name)
    least = arguments.fail_under
    if least is not None and not 0 <= least <= 100:
        raise BadInputError(
            f"{least:g} was given, but a percentage from 0 to 100 was expected.",
            source="--fail-under",
        )
    for name in _REPORTS:
        path = getattr(arguments, name)
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise BadInputError(
                f"'{path}' is a folder, or is in a folder that does not exist; name a file in a folder "
                "that exists.",
                source=f"--{name}",
            )
    until = None if arguments.minutes is None else time.monotonic() + arguments.minutes * 60
    request = Request(
        project=Project(Path.cwd(), arguments.scripts, without=_reports(arguments)),
        tests=TestChoice(
            paths=tuple(arguments.tests),
            with_machines=arguments.machines,
            options=tuple(arguments.pytest_option),
        ),
        results=Settings().cache / _RESULTS,
        workers=arguments.workers,
        until=until,
        since=arguments.since,
        messages=arguments.messages,
        progress=_progress(),
    )
    report = run(request)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(render_text(report), end="")
    _write(arguments, report)
    score = report.score
    is_enough = (
        arguments.fail_under is None
        or not report.results
        or (score is not None and score >= arguments.fail_under)
    )
    if not is_enough:
        shown = "none was tried" if score is None else f"{score:.1f} % were noticed"
        print(
            f"harness: at least {arguments.fail_under:g} % were required, but {shown}.",
            file=sys.stderr,
        )
    return 0 if is_enough else 1


def _reports(arguments: argparse.Namespace) -> list[Path]:
    """Return the paths to which the command writes reports."""
    return [path for name in _REPORTS if (path := getattr(arguments, name)) is not None]


def _write(arguments: argparse.Namespace, report: Report) -> None:
    from harness.mutate.page import render_page  # noqa: PLC0415
    from harness.mutate.reports import render_markdown, to_json, to_sarif  # noqa: PLC0415

    version = importlib.metadata.version("gpu-node-harness")
    reports: list[tuple[Path | None, Callable[[], str]]] = [
        (arguments.json, lambda: json.dumps(to_json(report), indent=1) + "\n"),
        (arguments.html, lambda: render_page(report)),
        (arguments.sarif, lambda: json.dumps(to_sarif(report, version), indent=1) + "\n"),
        (arguments.markdown, lambda: render_markdown(report)),
    ]
    for path, render in reports:
        if path is not None:
            with naming(path):
                path.write_text(render(), encoding="utf-8")


def _progress() -> Callable[[str], None]:
    """Return a function that shows progress: in one line on a terminal, in occasional lines in a log."""
    said = time.monotonic()
    is_terminal = sys.stderr.isatty()

    def show(text: str) -> None:
        nonlocal said
        now = time.monotonic()
        if is_terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif now - said >= _SAID_EVERY_S:
            said = now
            print(text, file=sys.stderr, flush=True)

    return show
