"""Checks that the shards belong to one run, and that together they ran each test once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.merging.junit import differences, namesakes
from harness.sharding.manifest import (
    JUNIT,
    MANIFEST,
    ShardManifest,
    digest_of,
    read_manifest,
    reports_of,
    starts_of,
)
from harness.sharding.report_file import require_own_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from harness.merging.junit import Case

#: Exit statuses of pytest, each with the reason why a run without a failed test may end with this
#: status.
_TESTS_FAILED = 1
_NO_TESTS = 5
_MEANINGS = {
    _TESTS_FAILED: "although none of its tests failed",
    2: "since it was interrupted",
    3: "since an error ended it, or its reports could not be written",
    4: "since its options were wrong",
    _NO_TESTS: "since it ran no test, although its list has tests",
}


@dataclass(frozen=True, kw_only=True)
class ShardReports:
    """The folder with a shard's reports, and the shard's manifest, which lists the tests that ran."""

    folder: Path
    manifest: ShardManifest

    @property
    def reports(self) -> Path:
        """Return the folder with the reports of the last time that the shard was started."""
        return reports_of(self.folder, self.manifest.start)

    @property
    def name(self) -> str:
        return f"{self.manifest.number}/{self.manifest.count}"

    def difference(self, cases: Sequence[Case]) -> str | None:
        """Return a sentence that says how the shard's list of tests and its JUnit report differ, or None."""
        manifest = self.manifest
        if pair := namesakes(manifest.tests):
            return (
                f"Shard {self.name} ran '{pair[0]}' and '{pair[1]}', but '{JUNIT}' has one name for "
                "both, since it writes '/' and '::' as '.': rename one of them, and run all shards again."
            )
        found = differences(manifest.tests, manifest.repeated, cases, manifest.junit_prefix)
        parts = [
            f"{what}: {len(tests)} of them, such as '{tests[0]}'"
            for what, tests in found.items()
            if tests
        ]
        if not parts:
            return None
        return (
            f"Shard {self.name} lists {len(manifest.tests)} tests in '{MANIFEST}', but its '{JUNIT}' differs "
            f"({'; '.join(parts)}): the reports are from several runs, or are damaged. Run the shard again."
        )

    def bad_end(self, cases: Sequence[Case]) -> str | None:
        """Return a sentence about an exit status that the results of the tests do not explain, or None."""
        status = self.manifest.exit_status
        if status == 0 or (
            status == _TESTS_FAILED and any(each.problem is not None for each in cases)
        ):
            return None
        if status == _NO_TESTS and not self.manifest.tests:
            return None
        meaning = _MEANINGS.get(status, "which is no exit status of pytest")
        return (
            f"Shard {self.name} ended with exit status {status}, {meaning}: read the output of its job, "
            "and run the shard again."
        )


def find_folders(given: Iterable[Path]) -> list[Path]:
    """Return the shards' folders: each is a given folder, or a subfolder of a given folder."""
    found: list[Path] = []
    for folder in given:
        if _is_shard(folder) or not folder.is_dir():
            found.append(folder)
            continue
        below = sorted(path for path in folder.iterdir() if path.is_dir() and _is_shard(path))
        found += below or [folder]
    return found


def _is_shard(folder: Path) -> bool:
    return (folder / MANIFEST).exists() or starts_of(folder) > 0


def read_shards(folders: Iterable[Path]) -> tuple[list[ShardReports], list[str]]:
    """Return the shards in `folders`, sorted by number, and a sentence about each problem found.

    A folder whose manifest can't be read is a problem, and not an error. Raises BadInputError if
    two folders belong to the same shard, or if no folder belongs to a shard.
    """
    shards: dict[int, ShardReports] = {}
    problems: list[str] = []
    for folder in folders:
        try:
            manifest = read_manifest(folder)
        except BadInputError as error:
            problems.append(str(error))
            continue
        if manifest.number > manifest.count:
            raise BadInputError(
                f"The record names the impossible shard {manifest.number}/{manifest.count}; use the "
                "files that `pytest --report-dir` wrote.",
                source=str(folder / MANIFEST),
            )
        require_own_folder(reports_of(folder, manifest.start))
        other = shards.setdefault(manifest.number, ShardReports(folder=folder, manifest=manifest))
        if other.folder != folder:
            raise BadInputError(
                f"The folder has the reports of shard {other.name}, and so has '{other.folder}'; give "
                "the folder of each shard once.",
                source=str(folder),
            )
    ordered = [shards[number] for number in sorted(shards)]
    if not ordered:
        raise BadInputError("; ".join(problems) or "No folder was given.", source="DIR")
    return ordered, [*problems, *_differences(ordered), *_gaps(ordered), *_overlaps(ordered)]


def _differences(shards: Sequence[ShardReports]) -> list[str]:
    first = shards[0]
    problems: list[str] = []
    for each in shards:
        if each.manifest.count != first.manifest.count:
            problems.append(
                f"Shards {first.name} and {each.name} are from different runs: one run has "
                f"{first.manifest.count} shards, and the other run {each.manifest.count}. Give the "
                "folders of the shards of one run."
            )
        elif each.manifest.collection_sha256 != first.manifest.collection_sha256:
            problems.append(
                f"Shard {each.name} collected {each.manifest.collected} tests, and shard {first.name} "
                f"collected {first.manifest.collected}, but not the same tests: run all shards of the "
                "same commit with the same options."
            )
    return problems


def _gaps(shards: Sequence[ShardReports]) -> list[str]:
    first = shards[0].manifest
    there = {each.manifest.number for each in shards}
    problems = [
        f"Shard {number}/{first.count} is missing: give the folder of its reports too."
        for number in range(1, first.count + 1)
        if number not in there
    ]
    for each in shards:
        lacking = sorted(set(each.manifest.tests) - set(each.manifest.ran))
        if lacking:
            problems.append(
                f"Shard {each.name} has no result of {len(lacking)} of its "
                f"{len(each.manifest.tests)} tests, such as '{lacking[0]}': its run ended early."
            )
    if first.collected == 0:
        problems.append(
            "No shard collected a test, so nothing was tested: check the paths, and the options -k and -m."
        )
    if not problems:
        union = {test for each in shards for test in each.manifest.tests}
        if digest_of(union) != first.collection_sha256:
            problems.append(
                f"The shards have {len(union)} tests together, not the {first.collected} that were "
                "collected: the tests were divided by different durations; give all shards the same file "
                "of durations."
            )
    return problems


def _overlaps(shards: Sequence[ShardReports]) -> list[str]:
    owners: dict[str, ShardReports] = {}
    problems: list[str] = []
    for each in shards:
        twice = [test for test in each.manifest.tests if test in owners]
        if twice:
            problems.append(
                f"Shards {owners[twice[0]].name} and {each.name} both ran {len(twice)} tests, such as "
                f"'{twice[0]}': give all shards the same file of durations."
            )
        owners.update(dict.fromkeys(each.manifest.tests, each))
    return problems
