"""Mutants that would harm their machine run there as root; the machine stays unharmed.

These specs are tried in a disposable machine before they ever run on a host.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.wait import Deadline
from suites.e2e.shell.offline_bundle import pack_pytest

if TYPE_CHECKING:
    from harness.fixtures.saved_states import CloneState
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState
    from harness.provisioning.command import CommandResult

_MUTANTS = """\
Describe 'a mutant'
  It 'kills all processes'
    stop() { kill -9 -1; }
    When call stop
    The status should be success
  End
  It 'kills them from a child'
    stop() { sh -c 'kill -9 -1'; }
    When run stop
    The status should be success
  End
  It 'turns the machine off'
    off() { systemctl --no-wall poweroff --force || echo no; reboot -ff || echo no; }
    When call off
    The output should equal "no
no"
    The error should be present
  End
  It 'writes to a disk and to the kernel'
    spoil() { echo b >/proc/sysrq-trigger; echo 1 >/proc/sys/kernel/panic; dd if=/dev/zero of=/dev/vda; }
    When call spoil
    The status should be failure
    The error should be present
  End
  It 'deletes /usr/lib'
    clean_up() { rm -rf "/usr/lib${missing-}" /etc; }
    When call clean_up
    The status should be success
  End
End
"""
_TIMEOUT_S = 600.0


def _run_specs(machine: LabMachine, *options: str) -> CommandResult:
    return machine.guest.run(
        *("env", "-C", "/root/project", "PYTHONPATH=/root/offline_bundle"),
        *("PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "python3", "-m", "pytest", "-v"),
        *("-p", "xdist.plugin", "-p", "harness.plugin.specs.hooks", *options),
        timeout_s=_TIMEOUT_S,
    )


def _state(machine: LabMachine) -> dict[str, str]:
    """Return the state that a mutant would change: files, processes, mounts, and the boot id."""
    output_of = machine.guest.output_of
    return {
        "files": output_of("sh", "-c", "find /usr /etc /var/lib /boot -xdev | sort | sha256sum"),
        "boot": output_of("cat", "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/panic"),
        "mounts": output_of("cat", "/proc/mounts"),
        "units": output_of(
            *("systemctl", "list-units", "--state=running", "--type=service", "--plain"),
            *("--no-legend",),
        ),
        "first": output_of("sh", "-c", "ps -o pid=,lstart=,comm= -p 1"),
    }


@pytest.mark.slow
def test_harmful_mutants_fail_and_the_machine_stays_unharmed(
    clone: CloneState, cloud_init_done: SavedState
) -> None:
    machine = clone(cloud_init_done)
    machine.agent.write_bytes(
        "/root/offline_bundle.tar", pack_pytest(), Deadline.after(_TIMEOUT_S)
    )
    machine.guest.output_of("mkdir", "-p", "/root/offline_bundle", "/root/project/spec")
    machine.guest.output_of("tar", "-xf", "/root/offline_bundle.tar", "-C", "/root/offline_bundle")
    machine.guest.write_text("/root/project/.shellspec", "")
    machine.guest.write_text("/root/project/spec/mutants_spec.sh", _MUTANTS)
    before = _state(machine)

    result = _run_specs(machine, "--shell-timeout=500")

    outcomes = dict(re.findall(r"::([^:]+) (PASSED|FAILED|ERROR)", result.stdout))
    assert outcomes == {
        "kills all processes": "FAILED",
        "kills them from a child": "FAILED",
        "turns the machine off": "PASSED",
        "writes to a disk and to the kernel": "PASSED",
        "deletes /usr/lib": "FAILED",
    }, result.render()
    assert "was killed by signal 9" in result.stdout, result.render()
    assert (
        "The code under test deleted /usr/lib, a directory that the system needs" in result.stdout
    )
    assert _state(machine) == before
