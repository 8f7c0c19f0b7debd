"""Runs pytest within a test, as a user would, with a separate cache."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.machine.description.argv import AGENT_PORT
from harness.provisioning.command import spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from harness.settings import APPLICATION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from harness.lab import Lab
    from harness.provisioning.command import ChildProcess

END_S = 20.0
START_S = 120.0

REPOSITORY = Path(__file__).parents[2]


def driver_words(lab: Lab) -> list[str]:
    """Return the options that run machines in the same way as `lab` does."""
    uri = lab.settings.machine_uri
    words = [f"--machine-driver={lab.settings.machine_driver}"]
    return words if uri is None else [*words, f"--machine-uri={uri}"]


def pytest_argv(lab: Lab, test: Path, *, workers: int = 0) -> list[str]:
    """Return the command that runs one test file as a user would, in this repository."""
    return [
        # A background job of a shell ignores SIGINT, and its children inherit that; CI may be such
        # a job.
        *("env", "--default-signal=INT"),
        sys.executable,
        "-m",
        "pytest",
        str(test),
        f"--rootdir={REPOSITORY}",
        f"--config-file={REPOSITORY / 'pyproject.toml'}",
        *("-p", "no:cacheprovider"),
        "-s",
        *("-n", str(workers)),
        f"--accelerator={lab.accelerator.accelerator.accel}",
        *driver_words(lab),
        f"--image={lab.settings.images[0]}",
        # A cold machine starts at once; these runs have no checkpoints yet.
        "--machine-start=cold",
    ]


def is_machine(argv: Sequence[str]) -> bool:
    """Return whether a command line runs a machine; a QEMU that lists its devices is no machine.

    Before a run starts a machine, it asks QEMU for its version and devices, and may test KVM.
    Those processes end by themselves, even if the run is killed.
    """
    has_agent = any(f"name={AGENT_PORT}" in word.split(",") for word in argv)
    return "qemu-system" in argv[0] and has_agent


def machines_of(pid: int) -> list[int]:
    """Return the processes of the machines of all runs that the test process `pid` started."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            argv = (folder / "cmdline").read_text(errors="replace").split("\0")
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if is_machine(argv) and f"HARNESS_LEAK_TEST={pid}".encode() in environment.split(b"\0"):
            found.append(int(folder.name))
    return found


@dataclass(frozen=True)
class OwnCache:
    """A separate cache for the runs of one test, since each run removes leftovers in its cache."""

    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"XDG_CACHE_HOME": str(self.home), "HARNESS_LEAK_TEST": str(os.getpid())}

    def checkpoints(self) -> Path:
        """Return the folder of the runs' checkpoints."""
        return self.home / APPLICATION / "checkpoints"

    def run_folders(self) -> set[Path]:
        runs = self.home / APPLICATION / "runs"
        return {path for path in runs.iterdir() if path.is_dir()}


def wait_until_gone(seen: Collection[int], of: int) -> None:
    """Wait until the machines in `seen` and all other machines of the test process `of` have ended."""

    def poll() -> Observation[bool]:
        still = {each for each in seen if Path(f"/proc/{each}").exists()}
        left = sorted(still.union(machines_of(of)))
        return Observation(None if left else True, f"{left} still run")

    wait_for(f"the end of the machines, {sorted(seen)} among them", poll, Deadline.after(END_S))


@contextlib.contextmanager
def busy_run(
    lab: Lab,
    cache: OwnCache,
    test: Path,
    *options: str,
    find: Callable[[int], list[int]] = lambda _: machines_of(os.getpid()),
) -> Iterator[tuple[ChildProcess, list[int]]]:
    """Start a run, wait until its machine runs, and yield the run and its machines' processes.

    `find` returns the processes of the machines of a run; its argument is the run's process id.
    """
    with (test.parent / "output.txt").open("wb") as output:
        run = spawn(
            [*pytest_argv(lab, test), *options],
            stdout=output,
            stderr=output,
            env=cache.environment,
            cwd=REPOSITORY,
        )

    def poll() -> Observation[list[int]]:
        machines = find(run.pid)
        said = (test.parent / "output.txt").read_text()[-2000:]
        assert run.poll() is None, f"The run ended before its machine started: {said}"
        return Observation(machines or None, f"no machine; it said: {said}")

    try:
        yield run, wait_for("the run's machine", poll, Deadline.after(START_S))
    finally:
        run.kill()
        run.wait()
