"""Merges the reports of shards: JUnit, Allure, durations, coverage of shell code, benchmarks."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError, listed
from harness.merging.allure import merge_results
from harness.merging.complete import find_folders, read_shards
from harness.merging.junit import cases_of, read_suite, write_merged
from harness.merging.summary import TITLE, behaviours_of, render_summary
from harness.sharding.durations import durations_in, write_durations
from harness.sharding.manifest import ALLURE, DURATIONS, JUNIT, SHELL_COVERAGE
from harness.sharding.report_file import read_json, read_report, write_report
from harness.shell.coverage_data import gather

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from harness.merging.complete import ShardReports
    from harness.merging.junit import Case

SUMMARY = "summary.md"
_SUMMARY_PART = f".{SUMMARY}"
BEHAVIOURS = "behaviours.json"
BENCH = "bench.json"
_FILES = (JUNIT, DURATIONS, SHELL_COVERAGE, BEHAVIOURS, BENCH)
_BENCH_FILES = "bench*.json"


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The merged results of the shards.

    `problems` are sentences about missing or repeated parts; `bad_ends` are sentences about shards
    whose results do not explain their exit status.
    """

    cases: Sequence[Case]
    problems: Sequence[str]
    bad_ends: Sequence[str]

    @property
    def failed(self) -> int:
        return sum(each.problem is not None for each in self.cases)


def merge(folders: Iterable[Path], to: Path, *, is_partial: bool, root: Path) -> Merged:
    """Write the merged reports of the shards in `folders` to `to`.

    With `is_partial`, an incomplete set of shards is merged too, and the summary says what is
    missing. In the merged coverage of shell code, the paths of scripts are below `root`, even if a
    shard had its checkout in another folder.

    Raises BadInputError, before anything is written, if shards or tests are missing or repeated, or
    if `to` contains other reports.
    """
    shards, problems = read_shards(find_folders(folders))
    for each in shards:
        reports = each.reports.resolve()
        if to.resolve().is_relative_to(reports):
            raise BadInputError(
                f"'{to}' is in the folder of the reports of shard {each.name}, and the merge would overwrite "
                "these reports; name another folder.",
                source="--to",
            )
        if reports.is_relative_to((to / ALLURE).resolve()):
            raise BadInputError(
                f"The reports of shard {each.name} are in '{to / ALLURE}', and the merge would remove this "
                "folder; name another folder.",
                source="--to",
            )
    if problems and not is_partial:
        raise BadInputError(" ".join(problems), source="the set of shards")
    _require_own(to)
    suites: list[tuple[str, ET.Element]] = []
    cases: list[Case] = []
    bad_ends: list[str] = []
    for each in shards:
        own = read_suite(each.reports / JUNIT)
        results = cases_of(own, each.name)
        suites += [(each.name, suite) for suite in own]
        cases += results
        problems += filter(None, [each.difference(results)])
        bad_ends += filter(None, [each.bad_end(results)])
    if problems and not is_partial:
        raise BadInputError(" ".join([*problems, *bad_ends]), source="the set of shards")
    to.mkdir(parents=True, exist_ok=True)
    # If this merge ends early, the folder must not contain the reports of an earlier merge.
    summary = render_summary(shards, cases, problems, bad_ends)
    (to / _SUMMARY_PART).write_text(summary, encoding="utf-8")
    for name in (SUMMARY, *_FILES):
        (to / name).unlink(missing_ok=True)
    shutil.rmtree(to / ALLURE, ignore_errors=True)
    write_merged(suites, to / JUNIT)
    merge_results((each.reports / ALLURE for each in shards), to / ALLURE)
    durations: dict[str, float] = {}
    for each in shards:
        path = each.reports / DURATIONS
        if path.exists():
            durations.update(durations_in(read_json(path), source=str(path)))
    write_durations(to / DURATIONS, durations)
    _merge_coverage(shards, to / SHELL_COVERAGE, root)
    _write_json(to / BEHAVIOURS, behaviours_of(cases))
    _write_json(to / BENCH, _benchmarks(shards))
    (to / _SUMMARY_PART).replace(to / SUMMARY)
    return Merged(cases=cases, problems=problems, bad_ends=bad_ends)


def _require_own(to: Path) -> None:
    """Refuse a folder with reports but no summary of a merge: a merge writes the summary before reports."""
    found = [name for name in (SUMMARY, ALLURE, *_FILES) if (to / name).exists()]
    if found and not ((to / _SUMMARY_PART).exists() or _is_of_a_merge(to / SUMMARY)):
        raise BadInputError(
            f"'{to}' has {listed(found)}, which this merge would replace, but no merge wrote "
            "these reports; name another folder.",
            source="--to",
        )


def _is_of_a_merge(summary: Path) -> bool:
    if not summary.is_file():
        return False
    with summary.open(encoding="utf-8", errors="replace") as file:
        return file.read(len(TITLE)) == TITLE


def _merge_coverage(shards: Sequence[ShardReports], to: Path, root: Path) -> None:
    recorded = {
        each.reports / SHELL_COVERAGE: each.manifest.root
        for each in shards
        if (each.reports / SHELL_COVERAGE).exists()
    }
    for path in recorded:
        # This call only refuses links and special files; coverage.py opens the file by its name.
        read_report(path)
    if recorded:
        gather(recorded, to, root)


def _benchmarks(shards: Sequence[ShardReports]) -> list[dict[str, object]]:
    """Return the results of `harness bench --json`, each with the shard's name and host."""
    found: list[dict[str, object]] = []
    for each in shards:
        for path in sorted(each.folder.glob(_BENCH_FILES)):
            result = read_json(path)
            found.append(
                {
                    "shard": each.name,
                    "host": each.manifest.host,
                    "file": path.name,
                    "result": result,
                }
            )
    return found


def _write_json(path: Path, value: object) -> None:
    if not value:
        path.unlink(missing_ok=True)
        return
    write_report(path, json.dumps(value, indent=1).encode() + b"\n")
