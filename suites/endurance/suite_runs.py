"""Runs of this repository's suites: the campaigns *hostile guest*, *load* and *flakes*."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import statistics
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RequirementError
from harness.provisioning.command import LocalRunner, end, spawn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from suites.endurance.campaign import Attempt, Case

_REPOSITORY = Path(__file__).parents[2]
_RUN_S = 6 * 3600.0
_LARGEST_SEED = 10**9
_SHOWN = 20
#: A whole run of CI's tests takes too long for a try: *load* and *flakes* run one part at a time.
#: With 8 busy processes for each processor, a part took an hour on a host with two processors.
_PARTS = 24
#: The tests of `./dev test`: the arguments of each of its runs of pytest.
_CI: Sequence[Sequence[str]] = (
    ("suites/docs", "suites/host", "suites/unit", "--dist=worksteal"),
    (
        *("suites/e2e", "--dist=worksteal"),
        *("-m", "not real_driver and not nightly and not (further_image and slow)"),
    ),
)
#: Property tests, by the kind of hostile input.
_PROPERTIES: Mapping[str, tuple[str, ...]] = {
    "agent frames": (
        "suites/host/machine/channels/test_floods.py",
        "suites/unit/agent/test_frames.py",
    ),
    "console bytes": ("suites/host/machine/channels/test_any_console.py",),
    "SSH banners": ("suites/unit/machine/channels/test_ssh.py",),
    "PCI accesses": ("suites/unit/gpu/test_emulated.py", "suites/unit/gpu/test_config_space.py"),
    "device messages": ("suites/host/gpu/test_vfio_user.py", "suites/unit/gpu/test_mpqemu.py"),
    "messages to the GPU's processor": ("suites/unit/gpu/gsp",),
    "evidence": ("suites/unit/evidence",),
    "saved machines and pool files": (
        "suites/unit/lab/test_machine_bundle.py",
        "suites/unit/gpu/passthrough/test_fuzzed_files.py",
    ),
    "answers of a registry": ("suites/unit/shared_store/test_answers.py",),
    "JSON and YAML": ("suites/unit/test_foreign_json.py", "suites/unit/test_datafile.py"),
}


@dataclass(frozen=True)
class Hostile:
    """Runs the property tests about hostile input, with many examples, and a new seed for each try."""

    is_apart: bool = True
    promise: str = (
        "Any data from a guest, from its devices or in another user's file is accepted, or refused "
        "with an error message. The memory that this takes has an upper limit."
    )

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[Mapping[str, Case]]:
        def try_one(files: tuple[str, ...], attempt: Attempt) -> list[str]:
            seed = int(attempt.amount * _LARGEST_SEED)
            return _pytest(
                folder / "junit.xml",
                *("-n", "0", "-p", "no:randomly", "-m", "hypothesis"),
                *(f"--hypothesis-seed={seed}", *files),
                HYPOTHESIS_PROFILE="endurance",
            )

        yield {name: functools.partial(try_one, files) for name, files in _PROPERTIES.items()}


@dataclass(frozen=True)
class Load:
    """Runs the tests that CI runs, while `stress-ng` keeps the processors busy."""

    is_apart: bool = False
    promise: str = (
        "The tests that CI selects pass on a host that runs 2, 4 and 8 other busy processes for each "
        "processor."
    )

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[Mapping[str, Case]]:
        if shutil.which("stress-ng") is None:
            raise RequirementError(
                "The program 'stress-ng' is not on PATH; install the package 'stress-ng'."
            )
        cores = len(os.sched_getaffinity(0))

        def try_one(times: int, part: int, _attempt: Attempt) -> list[str]:
            options = ("-n", str(cores), f"--shard={part}/{_PARTS}")
            load = spawn(["stress-ng", "--cpu", str(times * cores), "--quiet"])
            try:
                return [
                    broken
                    for words in _selection()
                    for broken in _pytest(folder / "junit.xml", *options, *words)
                ]
            finally:
                end(load, grace_s=0.0)

        yield {
            f"{times} times the processors, part {part} of {_PARTS}": functools.partial(
                try_one, times, part
            )
            for times in (2, 4, 8)
            for part in range(1, _PARTS + 1)
        }


@dataclass(frozen=True)
class Flakes:
    """Runs the tests that CI runs, in random order and with different numbers of workers.

    Each try runs one part; together, the tries of all parts run all tests that CI runs.
    """

    is_apart: bool = False
    promise: str = "The tests that CI selects pass in any order, with 1, 2 and 4 workers."
    durations: defaultdict[str, list[float]] = field(
        default_factory=lambda: defaultdict(list), compare=False
    )

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[Mapping[str, Case]]:
        def try_one(workers: int, part: int, attempt: Attempt) -> list[str]:
            seed = int(attempt.amount * _LARGEST_SEED)
            report = folder / "junit.xml"
            options = ("-n", str(workers), f"--shard={part}/{_PARTS}")
            order = ("-p", "randomly", f"--randomly-seed={seed}")
            broken = []
            for words in _selection():
                broken += _pytest(report, *options, *order, *words)
                for name, seconds in _times(report):
                    self.durations[name].append(seconds)
            return broken

        yield {
            f"workers: {count}, part {part} of {_PARTS}": functools.partial(try_one, count, part)
            for count in (1, 2, 4)
            for part in range(1, _PARTS + 1)
        }
        self.tell()

    def tell(self) -> None:
        """Print the slowest tests, and the tests whose time varied most."""
        slowest = sorted(self.durations, key=lambda name: -max(self.durations[name]))
        varied = sorted(
            (name for name, times in self.durations.items() if len(times) > 1),
            key=lambda name: -statistics.pstdev(self.durations[name]),
        )
        for title, names in (("slowest", slowest), ("most varied", varied)):
            for name in names[:_SHOWN]:
                times = ", ".join(f"{each:.1f}" for each in self.durations[name])
                print(f"{title}: {name}: {times} s")  # noqa: T201


def _selection() -> Sequence[Sequence[str]]:
    """Return the tests of `./dev test`, or the tests that HARNESS_ENDURANCE_TESTS names."""
    named = os.environ.get("HARNESS_ENDURANCE_TESTS", "").split()
    return [named] if named else _CI


def _pytest(report: Path, *words: str, **environment: str) -> list[str]:
    """Run pytest in this repository, and return a sentence on each test that failed."""
    report.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    result = LocalRunner().run(
        ["env", f"--chdir={_REPOSITORY}", *argv, f"--junitxml={report}"],
        timeout_s=_RUN_S,
        env=environment,
    )
    failed = [
        f"{case.get('classname')}::{case.get('name')}: {problem.get('message', '')[:500]}"
        for case in _cases(report)
        for problem in (*case.findall("failure"), *case.findall("error"))
    ]
    if not failed and not result.ok:
        failed = [result.render()]
    return failed


def _cases(report: Path) -> list[ET.Element]:
    # This run wrote the report.
    return list(ET.parse(report).iter("testcase")) if report.exists() else []  # noqa: S314


def _times(report: Path) -> Iterator[tuple[str, float]]:
    for case in _cases(report):
        yield f"{case.get('classname')}::{case.get('name')}", float(case.get("time", "0"))
