"""If pytest or libvirtd ends during a run, no domain is left; the affected test reports the end."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.e2e.inner import REPOSITORY, pytest_argv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.lab import Lab
    from harness.provisioning.command import ChildProcess
    from suites.e2e.inner import OwnCache
    from suites.e2e.libvirt.conftest import Libvirtd

pytestmark = pytest.mark.pin_image(reason="what ends, and what is left, is the host's")

START_S = 120.0
END_S = 60.0
GONE_S = 5.0

#: The first test waits for output that never appears; the second test needs a new machine.
RUN = """
from pathlib import Path

from harness.machine.description.spec import Firmware
from harness.provisioning.wait import Deadline
from suites.e2e.boot_sector import firmware_machine, patience

def test_waits(lab, tmp_path):
    with firmware_machine(lab, tmp_path, Firmware()) as machine:
        Path({begun!r}).touch()
        machine.console.wait_for(
            "this is never printed", Deadline.after(600), what="it", failure=machine.failure
        )

def test_continues(lab, tmp_path):
    with firmware_machine(lab, tmp_path, Firmware()) as machine:
        machine.console.wait_for("the disk's own boot loader runs", patience(lab), what="it")
"""


@contextlib.contextmanager
def busy_run(
    lab: Lab, cache: OwnCache, libvirtd: Libvirtd, folder: Path
) -> Iterator[ChildProcess]:
    """Start a run on the libvirtd of these tests, and yield the run once its first machine runs."""
    test, output, begun = (folder / name for name in ("test_busy.py", "output.txt", "begun"))
    test.write_text(RUN.format(begun=str(begun)))
    argv = [
        *pytest_argv(lab, test),
        "--machine-driver=libvirt",
        f"--machine-uri={libvirtd.daemon.uri}",
    ]
    with output.open("wb") as file:
        run = spawn(argv, stdout=file, stderr=file, env=cache.environment, cwd=REPOSITORY)

    def poll() -> Observation[bool]:
        said = output.read_text()[-2000:]
        assert run.poll() is None, f"The run ended before its machine started: {said}"
        return Observation(begun.exists() or None, f"no machine; it said: {said}")

    try:
        wait_for("the run's machine", poll, Deadline.after(START_S), interval_s=0.2)
        assert libvirtd.domains()
        yield run
    finally:
        run.kill()
        run.wait()


@pytest.fixture
def alone(libvirtd: Libvirtd) -> Libvirtd:
    """Return the libvirtd, which must have no domain."""
    assert libvirtd.domains() == []
    return libvirtd


def test_killed_run_leaves_no_domain(
    lab: Lab, own_cache: OwnCache, alone: Libvirtd, tmp_path: Path
) -> None:
    """With the flag AUTODESTROY, libvirt ends a domain when the domain's connection closes."""
    with busy_run(lab, own_cache, alone, tmp_path) as run:
        run.send_signal(signal.SIGKILL)

        def poll() -> Observation[bool]:
            left = alone.domains()
            return Observation(None if left else True, f"{left} are listed")

        wait_for("an empty list of domains", poll, Deadline.after(GONE_S), interval_s=0.1)


@pytest.mark.parametrize("is_crash", [False, True], ids=["restart", "crash"])
def test_end_of_libvirtd_fails_the_running_test_and_the_next_test_passes(
    lab: Lab, own_cache: OwnCache, alone: Libvirtd, tmp_path: Path, *, is_crash: bool
) -> None:
    """The test during the outage fails with a harness error; the next test reconnects."""
    with busy_run(lab, own_cache, alone, tmp_path) as run:
        if is_crash:
            alone.daemon.kill(Deadline.after(END_S))
            alone.daemon.start(Deadline.after(END_S))
        else:
            alone.daemon.restart(Deadline.after(END_S))

        def poll() -> Observation[int]:
            return Observation(run.poll(), "the run has not ended")

        wait_for("the end of the run", poll, Deadline.after(END_S))
    said = (tmp_path / "output.txt").read_text()

    assert "1 failed, 1 passed" in said, said
    assert "expectations not met: 0; the harness could not tell: 1" in said, said
    assert "ended or was restarted" in said, said
    assert alone.domains() == []
