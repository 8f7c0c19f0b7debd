"""Two members of the GPU group forge files of the pool; root's commands only report the forgeries.

docs/gpu-lab.md promises that members of the group cannot make root do anything else for them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from harness.gpu.passthrough import VFIO_DRIVER
from suites.e2e.passthrough.conftest import DRIVER, USERS
from suites.e2e.passthrough.holders import driver_of, gpu_addresses
from suites.fakes.pool_forgeries import FORGERIES, PRELUDE, Forgery, Place

if TYPE_CHECKING:
    from harness.lab.machine import LabMachine
    from suites.e2e.passthrough.conftest import StartHost

#: The unit suite tries the same forgeries on a simulated host.
pytestmark = pytest.mark.nightly

_POOL = "/run/lock/gpu-node-harness"
_ROOTS_FILE = "/root/secret"
_ALL_KVM_S = 300.0
_MOST_MIB = 300
#: Leaves a GPU in the state in which a killed run leaves it.
_TAKE = """
cd /sys/bus/pci
echo vfio-pci >devices/$1/driver_override
echo $1 >devices/$1/driver/unbind
echo $1 >drivers_probe
"""
#: Files that one user leaves in the folder while the GPU of the other user is restored.
_LITTER = """
os.mkfifo(pool / "000000001-deadbeef")
os.mkfifo(pool / "999999999999999-deadbeef")
(pool / "000000002-deadbeef").symlink_to(secret)
(pool / "000000003-deadbeef").mkdir()
(pool / f"drivers-{busy}.json").symlink_to(secret)
os.mkfifo(pool / f"drivers-{admins}.json")
put("drivers-...json", "{}")
"""


def test_files_that_two_users_forge_cause_only_an_error_message(start_host: StartHost) -> None:
    host = start_host(3)
    place = _prepare(host)

    lines = host.guest.output_of(
        *("python3", "-m", "suites.e2e.passthrough.inside.forging"),
        *(json.dumps(asdict(place)), *USERS),
        timeout_s=host.deadline(_ALL_KVM_S).remaining_s(),
    ).splitlines()
    *answers, last = [json.loads(line) for line in lines]

    assert [each["name"] for each in answers] == [each.name for each in FORGERIES]
    assert {each["user"] for each in answers} == {*USERS}
    for answer, forgery in zip(answers, FORGERIES, strict=True):
        assert answer["changed"] == [], answer
        assert {*answer["codes"]} <= {0, 2}, answer
        assert forgery.says in answer["printed"], answer
        assert "\x1b" not in answer["printed"], answer
        assert "root:secret" not in answer["printed"], answer
    assert last["peak_mib"] < _MOST_MIB

    _restores_in_spite_of_litter(host, place)


def _restores_in_spite_of_litter(host: LabMachine, place: Place) -> None:
    """Check that one user's genuine record is used, whatever files the other user has put beside it."""
    ann, ben = USERS
    _run_as(host, ann, place, _LITTER)
    _run_as(host, ben, place, "record({gpu: good(driver)})")

    restored = host.guest.run("harness", "gpu", "host", "restore")
    assert f"{place.gpu} is bound to its earlier drivers again." in restored.stdout, (
        restored.render()
    )
    assert restored.exit_code == 2, restored.render()
    assert driver_of(host, place.gpu) == DRIVER
    assert driver_of(host, place.admins) == VFIO_DRIVER
    assert driver_of(host, place.busy) == DRIVER

    for user in ("root", ben):
        listed = host.guest.run("runuser", "-u", user, "--", "harness", "gpu", "host", "ls")
        assert listed.ok, listed.render()
        lines = listed.stdout.splitlines()[1:]
        assert [line.split()[0] for line in lines] == gpu_addresses(host), listed.render()
        assert f"'{_POOL}/000000001-deadbeef' of user {ann} is no file" in listed.stderr


def _prepare(host: LabMachine) -> Place:
    """Return the host's GPUs: one left by a killed run, one leased by root, and one free GPU."""
    gpu, admins, busy = gpu_addresses(host)
    for taken in (gpu, admins):
        host.guest.output_of("sh", "-euc", _TAKE, "sh", taken)
    host.guest.output_of(
        "sh", "-euc", 'cd "/sys/bus/pci/devices/$1"; chmod 0644 driver_override', "sh", admins
    )
    assert [driver_of(host, each) for each in (gpu, admins, busy)] == [
        VFIO_DRIVER,
        VFIO_DRIVER,
        DRIVER,
    ]
    host.guest.write_text(_ROOTS_FILE, "root:secret\n")
    host.guest.output_of("chmod", "600", _ROOTS_FILE)
    functions = [line.split()[0] for line in host.guest.output_of("lspci", "-Dn").splitlines()]
    return Place(
        pool=_POOL,
        gpu=gpu,
        admins=admins,
        busy=busy,
        foreign=next(each for each in functions if each not in {gpu, admins, busy}),
        driver=DRIVER,
        secret=_ROOTS_FILE,
        boot=host.guest.output_of("cat", "/proc/sys/kernel/random/boot_id").strip(),
    )


def _run_as(host: LabMachine, user: str, place: Place, script: str) -> None:
    forgery = Forgery(name="", script=script, says="")
    assert PRELUDE in place.script(forgery)
    host.guest.output_of("runuser", "-u", user, "--", "python3", "-c", place.script(forgery))
