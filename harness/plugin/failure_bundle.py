"""Adds files to a failed test's evidence: history, timeline, versions, locals, and an archive.

An error in this module must not hide the test's failure, so such errors are written into a file of
the bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING

from harness.evidence.archive import write_archive
from harness.evidence.retention import VERSIONS, beyond_limits, bundles_in, made_after
from harness.evidence.state_diff import CHANGES_AT_REST, StateDiff
from harness.lab.evidence_collection import collect_history
from harness.lab.guest_channels import STATES
from harness.lab.versions import versions_of
from harness.timeline.page import PAGE, render_page
from harness.timeline.reading import read_timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pytest

    from harness.lab.machine import LabMachine
    from harness.settings import Settings

DIFFERENCE = "difference-at-failure.txt"
#: The traceback's file, in the folder of the test, since a traceback does not belong to one machine.
TRACEBACK = "traceback.txt"
#: The file that lists parts that could not be added, with the reasons.
_LEFT_OUT = "left-out.txt"


def completed(machine: LabMachine, folder: Path, error: BaseException | None) -> Path:
    """Add history, timeline and other files to a machine's kept evidence, and return the folder.

    If the test passed and `--evidence=always` keeps the evidence, only history and timeline are
    added.
    """
    of_failure = () if error is None else (_add_difference, _add_versions)
    for add in (collect_history, *of_failure, _add_timeline):
        _try(folder, add, machine, folder)
    return folder


def _try(folder: Path, add: Callable[..., None], *arguments: object) -> None:
    try:
        add(*arguments)
    except Exception as raised:
        # An exception from a hook would end the whole run, and the disk may be full.
        with contextlib.suppress(OSError), (folder / _LEFT_OUT).open("a") as file:
            file.write(f"{add.__name__.lstrip('_')}: {raised!r}\n")


def _add_difference(machine: LabMachine, folder: Path) -> None:
    """Write how the node has changed since the test recorded a state of the node."""
    before = machine.last_state
    if before is None:
        return
    diff = StateDiff.between(before, machine.state(), CHANGES_AT_REST)
    unknown = "".join(
        f"not known: {each.kind.value} {each.name}: {each.reason}\n" for each in diff.unknown
    )
    (folder / STATES).mkdir(mode=0o700, exist_ok=True)
    (folder / STATES / DIFFERENCE).write_text(
        f"{diff.render() or 'Nothing has changed.'}\n{unknown}", errors="surrogateescape"
    )


def _add_versions(machine: LabMachine, folder: Path) -> None:
    (folder / VERSIONS).write_text(json.dumps(versions_of(machine, folder), indent=2) + "\n")


def _add_timeline(machine: LabMachine, folder: Path) -> None:
    page = render_page([read_timeline(folder, title=machine.name)])
    (folder / PAGE).write_text(page, encoding="utf-8")


def finish_bundle(
    item: pytest.Item,
    call: pytest.CallInfo[None],
    settings: Settings,
    folders: Sequence[Path],
    *,
    run_started_s: float,
) -> None:
    """Write the traceback with local variables, and the archive; remove bundles beyond the limits.

    Bundles that were made since the run started are not removed.
    """
    test = folders[0].parent
    if not test.is_dir():
        # No evidence could be kept, and the report says so.
        return
    _try(test, _add_traceback, item, call, test)
    _try(test, _archive, item, call, settings, test, run_started_s)


def _add_traceback(item: pytest.Item, call: pytest.CallInfo[None], test: Path) -> None:
    if call.excinfo is None:
        return
    options = item.config.option
    before = options.showlocals, options.tbstyle
    options.showlocals, options.tbstyle = True, "long"
    try:
        text = str(item.repr_failure(call.excinfo))
    finally:
        options.showlocals, options.tbstyle = before
    (test / TRACEBACK).write_text(f"{text}\n", errors="surrogateescape")


def _archive(
    item: pytest.Item,
    call: pytest.CallInfo[None],
    settings: Settings,
    test: Path,
    run_started_s: float,
) -> None:
    archive = write_archive(test)
    bundles = bundles_in(settings.evidence_folder)
    now_s = time.time()
    made_s = made_after([each for each in bundles if each.name != test.name], now_s)
    if made_s > now_s:
        os.utime(archive, (made_s, made_s))
    said = (
        f"the whole bundle in one file: '{archive}' ({archive.stat().st_size / (1 << 20):.1f} MiB)"
    )
    removed = [
        bundle
        for bundle in beyond_limits(
            bundles,
            limit_mib=settings.bundle_limit_mib,
            limit_days=settings.bundle_limit_days,
            now_s=now_s,
            run_started_s=run_started_s,
        )
        # Other workers may be writing into this folder now.
        if bundle.name != test.name
    ]
    for bundle in removed:
        bundle.remove()
    if removed:
        said += f"; removed {len(removed)} older bundles, beyond --bundle-limit-days or --bundle-limit-mib"
    item.add_report_section(call.when, "bundle", said)
