"""Users open shells in running machines, and resume the saved machines of failed tests."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from harness.machine.entrance.roster import Roster, roster_folder
from harness.provisioning.command import LocalRunner
from suites.e2e.inner import REPOSITORY, busy_run, pytest_argv, wait_until_gone

if TYPE_CHECKING:
    from pathlib import Path

    from harness.api import CloneState, GpuModel, SavedState
    from harness.lab import Lab
    from harness.provisioning.command import CommandResult
    from suites.e2e.inner import OwnCache

pytestmark = pytest.mark.pin_image(reason="what people enter by is the harness's")

#: Counts only in memory, and writes the count to a file at a signal.
COUNTER = """
n=0; trap 'echo $n >/run/count' USR1
while :; do n=$((n + 1)); sleep 0.2; done
"""
READ_COUNTER = 'rm -f /run/count; kill -USR1 "$1"; until [ -s /run/count ]; do sleep 0.1; done; cat /run/count'

FAILING = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_fails(clone, cloud_init_done, h100, number):
    machine = clone(cloud_init_done, "broken", gpus=[h100])
    machine.guest.write_text("/run/number", str(number))
    assert number == 0
"""

BUSY = """
from harness.lab.node_request import NodeRequest
from harness.provisioning.wait import Deadline

def test_waits(boot_node, node_image):
    node = boot_node(NodeRequest(name="busy", image=node_image, command=None), wait=False)
    node.machine.vm.console.wait_for("this is never printed", Deadline.after(600), what="it")
"""


def harness(*words: str, home: Path | None = None, timeout_s: float = 240.0) -> CommandResult:
    """Run the command line as a user does; if `home` is given, with a separate cache."""
    return LocalRunner().run(
        ["env", f"--chdir={REPOSITORY}", sys.executable, "-m", "harness.cli", *words],
        timeout_s=timeout_s,
        env={} if home is None else {"XDG_CACHE_HOME": str(home)},
    )


def listed_machines(run: int) -> list[int]:
    """Return the processes of the listed machines that belong to the process of a run."""
    return [
        each.user
        for each in Roster(roster_folder()).machines()
        if each.process == run and each.user is not None
    ]


def test_running_machine_is_listed_and_entered(
    clone: CloneState, cloud_init_done: SavedState, h100: GpuModel
) -> None:
    """Another process opens a shell in the machine, by the id in the list."""
    machine = clone(cloud_init_done, "entered", gpus=[h100])
    name = machine.folder.name

    listed = {each["id"]: each for each in json.loads(harness("ps", "--json").stdout)}
    ran = harness(
        "shell", "--machine", name, "--", "sh", "-c", "cat /proc/sys/kernel/hostname; exit 7"
    )

    assert "::test_running_machine_is_listed_and_entered[" in listed[name]["purpose"]
    assert listed[name]["gpus"] == ["h100-sxm5-80gb"]
    assert listed[name]["resident_mib"] > 0
    assert (ran.exit_code, ran.stdout) == (7, machine.guest.output_of("hostname") + "\n")
    assert "root@127.0.0.1" in harness("ssh", "--print", name).stdout


@pytest.mark.nightly
def test_saved_machine_can_be_resumed_with_another_cache(
    clone: CloneState,
    cloud_init_done: SavedState,
    h100: GpuModel,
    own_cache: OwnCache,
    tmp_path: Path,
) -> None:
    """A process that counts in memory continues its count after the resume."""
    machine = clone(cloud_init_done, "counting", gpus=[h100])
    machine.guest.write_text("/run/counter", COUNTER)
    pid = machine.guest.output_of(
        "sh", "-c", "setsid sh /run/counter >/dev/null 2>&1 </dev/null & echo $!"
    )
    before = int(machine.guest.output_of("sh", "-c", READ_COUNTER, "read", pid))

    bundle = machine.save_bundle(tmp_path / "bundle", purpose="this test")
    resumed = harness(
        *("resume", str(tmp_path / "bundle"), "--", "sh", "-c"),
        f"{READ_COUNTER}; ls /sys/bus/pci/devices; cat /sys/bus/pci/devices/*/vendor",
        *("read", pid),
        home=own_cache.home,
    )

    assert resumed.ok, resumed.render()
    assert int(resumed.stdout.split()[0]) >= before
    assert "0x10de" in resumed.stdout
    assert bundle.size_mib < 400


@pytest.mark.nightly
def test_machines_of_failed_tests_are_kept_until_harness_gc_ends_them(
    lab: Lab, cloud_init_done: SavedState, tmp_path: Path
) -> None:
    """With two workers, each failed test keeps its own machine; `harness gc` ends both."""
    # The inner run uses the outer run's cache, since making the saved state again takes minutes.
    lab.ensure_checkpoint(cloud_init_done)
    test = tmp_path / "test_failing.py"
    test.write_text(FAILING)
    argv = [*pytest_argv(lab, test, workers=2), "--machine-keep=failed"]
    run = LocalRunner().run(
        [*argv, f"--evidence-dir={tmp_path / 'evidence'}"],
        timeout_s=600.0,
    )
    kept = [line.split()[4] for line in run.stdout.splitlines() if line.startswith("kept: ")]
    try:
        numbers = {
            harness("shell", "--machine", each, "--", "cat", "/run/number").stdout for each in kept
        }
    finally:
        collected = harness("gc", *kept)

    assert len(kept) == 2, run.render()
    assert numbers == {"1", "2"}
    assert collected.ok, collected.render()
    assert not {each.id for each in Roster(roster_folder()).machines()} & set(kept)


@pytest.mark.nightly
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_run_that_was_interrupted_or_killed_keeps_no_machine(
    lab: Lab, own_cache: OwnCache, tmp_path: Path, ending: signal.Signals
) -> None:
    """A test that was interrupted or killed has not failed, so its machine is not kept."""
    test = tmp_path / "test_busy.py"
    test.write_text(BUSY)
    with busy_run(lab, own_cache, test, "--machine-keep=failed", find=listed_machines) as started:
        run, machines = started
        run.send_signal(ending)
        run.wait(60)

        wait_until_gone(machines, os.getpid())
        assert listed_machines(run.pid) == []
    assert harness("gc", home=own_cache.home).ok
    assert not own_cache.run_folders()
