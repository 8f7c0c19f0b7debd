"""Whatever a guest does to its GPUs, and however GPUs come and go, no process crashes or leaks.

`CHAOS_S` makes the test run longer than in CI; `CHAOS_SEED` repeats a failed run.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState

pytestmark = pytest.mark.pin_image(reason="QEMU and the device are to outlive any guest")

_CI_S = 120.0
_MOST_GPUS = 4
#: The size limit of a trace: configuration space, three BARs, stray accesses and incidents.
_MOST_ENTRIES = 6 * 1024
_GPU_FUZZER = Path(__file__).with_name("gpu_fuzzer.py")
_ROUNDS = "/run/wild-rounds"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of this run, and add it to the report, so that a failed run can be repeated."""
    chosen = int(os.environ.get("CHAOS_SEED") or secrets.randbits(32))
    request.node.user_properties.append(("CHAOS_SEED", chosen))
    return chosen


@pytest.fixture
def duration_s() -> float:
    return float(os.environ.get("CHAOS_S") or _CI_S)


def _descriptors(pid: int | str = "self") -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _resident_mib(pid: int | str = "self") -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Chaos:
    """Plugs, unplugs and scripts the GPUs of one machine at random."""

    def __init__(self, machine: LabMachine, model: GpuModel, seed: int) -> None:
        self.machine = machine
        self.actions = 0
        self.plugged: list[str] = []
        self._model = model
        self._chance = random.Random(seed)  # noqa: S311 - to be repeated by its seed

    def act(self) -> None:
        """Do one random action that is possible now."""
        choices: list[Callable[[], None]] = []
        if len(self.plugged) < _MOST_GPUS:
            choices += [self.plug] * 2
        if self.plugged:
            choices += [self.unplug, self._fall, self._return, self._stall, self._raise_xid]
        self._chance.choice(choices)()
        self.actions += 1

    def plug(self) -> None:
        self.plugged.append(self.machine.hot_plug(self._model))
        self.machine.wait_for_gpu(self._model)

    def unplug(self) -> None:
        device_id = self.plugged.pop(self._chance.randrange(len(self.plugged)))
        # A guest releases a GPU only if the GPU responds; a lost GPU would stay until the end.
        self.machine.gpu(device_id).return_to_bus()
        self.machine.hot_unplug(device_id)

    def _any(self) -> str:
        return self._chance.choice(self.plugged)

    def _fall(self) -> None:
        self.machine.gpu(self._any()).fall_off_bus()

    def _return(self) -> None:
        self.machine.gpu(self._any()).return_to_bus()

    def _stall(self) -> None:
        self.machine.gpu(self._any()).stall(self._chance.uniform(0.0, 0.3))

    def _raise_xid(self) -> None:
        self.machine.gpu(self._any()).raise_xid(self._chance.randrange(1, 128))


@pytest.fixture
def wild_machine(
    clone: CloneState, cloud_init_done: SavedState, h100: GpuModel, seed: int
) -> Iterator[LabMachine]:
    """Return a machine in which a program touches every GPU at random."""
    machine = clone(cloud_init_done)
    guest = machine.guest
    guest.write_text("/run/gpu_fuzzer.py", _GPU_FUZZER.read_text())
    ids = f"0x{h100.pci.vendor:04x}:0x{h100.pci.device:04x}"
    guest.output_of(
        *("systemd-run", "--unit=wild", "--property=Restart=always"),
        *("--property=RestartSec=50ms", "--property=StartLimitIntervalSec=0"),
        *("python3", "/run/gpu_fuzzer.py", str(seed), ids),
    )
    yield machine
    guest.run("systemctl", "stop", "wild")


@pytest.mark.nightly
def test_random_accesses_and_random_plugging_crash_no_process_and_leak_nothing(
    wild_machine: LabMachine,
    h100: GpuModel,
    seed: int,
    duration_s: float,
    request: pytest.FixtureRequest,
) -> None:
    machine = wild_machine
    chaos = Chaos(machine, h100, seed)
    # The cost of the first action of each kind is not a leak.
    chaos.plug()
    chaos.unplug()
    qemu = machine.vm.pid
    assert qemu is not None
    threads, ours, qemus = (
        threading.active_count(),
        _descriptors(),
        _descriptors(qemu),
    )
    before_mib = _resident_mib()

    ends_at_s = time.monotonic() + duration_s
    while time.monotonic() < ends_at_s:
        chaos.act()
        SYSTEM_CLOCK.sleep(0.05)
        assert machine.vm.is_running, f"CHAOS_SEED={seed}: QEMU died"

    for device_id in list(chaos.plugged):
        gpu = machine.gpu(device_id)
        gpu.end_stall()
        assert len(gpu.trace.accesses) + len(gpu.trace.incidents) <= _MOST_ENTRIES
        chaos.plugged.remove(device_id)
        gpu.return_to_bus()
        machine.hot_unplug(device_id)
    rounds = int(machine.guest.read_text(_ROUNDS) or 0)
    assert rounds > 0, "The guest's program was expected to touch GPUs, but it did not run."
    request.node.user_properties += [("actions", chaos.actions), ("guest's rounds", rounds)]
    assert (threading.active_count(), _descriptors(), _descriptors(qemu)) == (
        threads,
        ours,
        qemus,
    ), f"CHAOS_SEED={seed}"
    assert _resident_mib() - before_mib < 64
