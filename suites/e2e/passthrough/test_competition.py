"""Processes of two ordinary users compete for a host's GPUs, and a third of them are killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from harness.gpu.passthrough import VFIO_DRIVER
from suites.e2e.passthrough.conftest import USERS
from suites.e2e.passthrough.holder_log import judge, parse_log
from suites.e2e.passthrough.holders import driver_of, gpu_addresses

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.lab.machine import LabMachine
    from suites.e2e.passthrough.conftest import StartHost

_SECONDS = 180
_PROCESSES_PER_USER = 4
_END_S = 200.0
_GPUS = 4
#: The minimum number of leases. Each process leases at least once unless it is killed.
_FEWEST_HOLDS = 20

#: Does the same as `harness gpu host restore`, a program that starts slowly under emulation.
_RESTORE = "from harness.gpu.passthrough.pool import GpuPool; GpuPool().restore_abandoned()"


def test_no_gpu_ever_has_two_holders_and_each_gpu_is_returned(
    start_host: StartHost, record_testsuite_property: Callable[[str, object], None]
) -> None:
    host = start_host(_GPUS)
    gpus = gpu_addresses(host)
    _set_drivers(host, {gpus[0]: VFIO_DRIVER, gpus[1]: VFIO_DRIVER, gpus[2]: None, gpus[3]: None})
    before = {gpu: (driver_of(host, gpu), _override(host, gpu)) for gpu in gpus}

    with ThreadPoolExecutor(len(USERS)) as threads:
        logs = list(threads.map(lambda user: _compete(host, user), USERS))

    verdict = judge([line for log in logs for line in parse_log(log)])
    for fact in ("started", "killed", "killed_while_holding"):
        record_testsuite_property(fact, getattr(verdict, fact))
    record_testsuite_property("holds", len(verdict.holds))
    assert verdict.faults == ()
    assert verdict.killed * 3 >= verdict.started
    assert verdict.killed_while_holding > 0
    assert len(verdict.holds) >= _FEWEST_HOLDS
    assert {hold.address for hold in verdict.holds} == set(gpus)
    assert all(any(hold.pid in _pids(log) for hold in verdict.holds) for log in logs)

    host.guest.output_of("setpriv", *_as(USERS[0]), "python3", "-c", _RESTORE)
    assert {gpu: (driver_of(host, gpu), _override(host, gpu)) for gpu in gpus} == before


def _compete(host: LabMachine, user: str) -> str:
    result = host.guest.run(
        *("setpriv", *_as(user), "python3", "-m", "suites.e2e.passthrough.inside.competition"),
        *(str(number) for number in (_SECONDS, _PROCESSES_PER_USER, USERS.index(user))),
        timeout_s=_SECONDS + _END_S,
    )
    assert result.ok, result.render()
    return result.stdout


def _as(user: str) -> tuple[str, ...]:
    return (f"--reuid={user}", f"--regid={user}", "--init-groups")


def _pids(log: str) -> set[int]:
    return {line.pid for line in parse_log(log)}


def _set_drivers(host: LabMachine, drivers: dict[str, str | None]) -> None:
    """Bind functions to other drivers, as an administrator does before the pool is used."""
    for address, driver in drivers.items():
        script = 'cd /sys/bus/pci/devices/$1; echo $1 >driver/unbind; echo "$2" >driver_override'
        host.guest.output_of("sh", "-euc", script, "sh", address, driver or "")
        if driver is not None:
            host.guest.output_of("sh", "-euc", f"echo {address} >/sys/bus/pci/drivers_probe")


def _override(host: LabMachine, address: str) -> str | None:
    return host.guest.read_text(f"/sys/bus/pci/devices/{address}/driver_override")
