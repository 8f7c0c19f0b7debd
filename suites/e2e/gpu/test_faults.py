"""A fault of a GPU is visible on the node, and the harness reports the fault by name.

Most tests begin with a clone of an image with a baked driver, stopped before cloud-init: udev
loads the module as soon as there is a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.cloudinit import GuestFile
from harness.gpu import PMC_BOOT_0
from harness.gpu.mailbox import MigMode
from harness.gpu.trace import IncidentKind
from harness.lab.node_request import NodeRequest
from harness.lab.stand_ins import STAND_INS

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.image import Image
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState

pytestmark = pytest.mark.pin_image(
    reason="the faults are the device's, and the driver is the same"
)

_WITHIN_S = 60.0
#: The PCI addresses of the GPUs in the guest; bus 1 has the cloud-init seed.
_SLOTS = ("0000:02:00", "0000:03:00")
#: Waits for a line in the kernel log; grep without `-q` reads the log to its end.
_UNTIL_LOGGED = 'until dmesg | grep -F -e "$1"; do sleep 0.2; done'


def _load_driver(machine: LabMachine, model: GpuModel, *, count: int = 1) -> None:
    """Wait until the driver is loaded; udev may have loaded the driver already."""
    machine.wait_for_gpu(model, count=count)
    machine.guest.output_of("modprobe", "nvidia")


def _wait_for_kernel_line(machine: LabMachine, words: str) -> str:
    """Wait until the kernel has logged `words`, and return the line."""
    return machine.guest.output_of(
        *("sh", "-c", _UNTIL_LOGGED, "wait", words), timeout_s=_WITHIN_S
    )


@pytest.mark.nightly
def test_gpu_that_falls_off_the_bus_during_provisioning_ends_the_run(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """The driver is already installed; the run finds the GPU missing and ends with 84."""
    # The stand-in sleeps before it looks at the GPU; meanwhile the GPU falls off the bus.
    slow = GuestFile(path=f"{STAND_INS}/nvidia-smi.env", content=b"sleep 5\n")
    node = boot_node(
        NodeRequest(name="falls", image=baked_image, gpus=[h100], files=[slow]), wait=False
    )

    def watch(line: str) -> None:
        if line.startswith("step install-prebuilt-driver done"):
            node.gpu().fall_off_bus()

    node.wait_until_provisioned(watch)

    evidence = node.evidence()
    expect.provisioned(evidence, exit_code=84)
    expect.step_failed(evidence, "query-device")
    assert evidence.outcome is not None
    assert "fallen off the bus" in (evidence.outcome.error or "")
    expect.cloud_init_reports_failure(evidence)
    expect.kernel_log_line(evidence, f"Xid (PCI:{_SLOTS[0]}): 79")
    expect.bar_access_after(evidence, "step wait-for-containerd")
    trace = evidence.gpu_traces["gpu0"]
    (fall,) = trace.incidents_of(IncidentKind.FELL_OFF_BUS)
    around = trace.around(fall, 40).render()
    assert "step install-prebuilt-driver done" in around
    assert "BAR read 0 0x0 -> 0x180000a1" in around
    assert "BAR read 0 0x0 -> 0xffffffff" in around


@pytest.mark.gpu_script("gpu1", is_dead=True)
def test_driver_binds_the_working_gpu_beside_a_dead_gpu(
    clone: CloneState, driver_baked: SavedState, h100: GpuModel
) -> None:
    """Both GPUs are on the bus. The driver binds the working GPU and reports the dead GPU."""
    machine = clone(driver_baked, gpus=[h100, h100])

    _load_driver(machine, h100, count=2)

    _wait_for_kernel_line(machine, f"GPU {_SLOTS[1]}.0 has fallen off the bus.")
    listed = machine.guest.output_of("nvidia-smi", "-L").splitlines()
    assert len(listed) == 1
    assert listed[0].startswith("GPU 0: NVIDIA H100 80GB HBM3")
    driven = machine.guest.output_of("lspci", "-k", "-d", "10de:")
    assert driven.count("Kernel driver in use: nvidia") == 1


@pytest.mark.gpu_script("gpu0", xids=(48,))
def test_xid_is_logged_in_the_format_of_the_driver(
    clone: CloneState, driver_baked: SavedState, h100: GpuModel
) -> None:
    machine = clone(driver_baked, gpus=[h100])
    _load_driver(machine, h100)

    first = _wait_for_kernel_line(machine, f"NVRM: Xid (PCI:{_SLOTS[0]}): 48, pid='<unknown>'")
    machine.gpu().raise_xid(63)
    second = _wait_for_kernel_line(machine, f"NVRM: Xid (PCI:{_SLOTS[0]}): 63, pid='<unknown>'")

    assert len((first + "\n" + second).splitlines()) == 2


def test_surprise_removal_causes_xid_79_and_an_error_of_nvidia_smi(
    clone: CloneState, driver_baked: SavedState, h100: GpuModel
) -> None:
    machine = clone(driver_baked, gpus=[h100])
    _load_driver(machine, h100)
    assert machine.guest.run("nvidia-smi", "-L").exit_code == 0

    machine.gpu().fall_off_bus()

    _wait_for_kernel_line(machine, f"Xid (PCI:{_SLOTS[0]}): 79")
    lost = machine.guest.run("nvidia-smi")
    assert (lost.exit_code, lost.stdout.partition(":")[0]) == (
        15,
        "Unable to determine the device handle for GPU0",
    )


@pytest.mark.gpu_script("gpu0", is_inforom_corrupted=True)
def test_nvidia_smi_warns_of_a_corrupted_inforom(
    clone: CloneState, driver_baked: SavedState, h100: GpuModel
) -> None:
    machine = clone(driver_baked, gpus=[h100])
    _load_driver(machine, h100)

    result = machine.guest.run("nvidia-smi")

    assert result.exit_code == 14
    assert f"infoROM is corrupted at gpu {_SLOTS[0]}.0" in result.stdout


@pytest.mark.gpu_script("gpu0", mig_needs_reset=True)
def test_mig_mode_changes_only_at_a_reset_of_the_gpu(
    clone: CloneState, driver_baked: SavedState, a100: GpuModel
) -> None:
    """An A100 in use changes its MIG mode only at a reset, and has instances only afterwards."""
    machine = clone(driver_baked, gpus=[a100])
    _load_driver(machine, a100)
    asked = (
        "nvidia-smi",
        "--query-gpu=mig.mode.current,mig.mode.pending",
        "--format=csv,noheader",
    )

    output = machine.guest.output_of("nvidia-smi", "-mig", "1")

    assert "pending enable state" in output
    assert machine.gpu().mig_mode == MigMode(is_enabled=False, is_pending=True)
    assert machine.guest.output_of(*asked) == "Disabled, Enabled"
    assert machine.guest.run("nvidia-smi", "mig", "-cgi", "19").exit_code == 6
    resets = len(machine.gpu().trace.resets())

    machine.guest.output_of("nvidia-smi", "--gpu-reset")

    assert machine.guest.output_of(*asked) == "Enabled, Enabled"
    assert machine.guest.run("nvidia-smi", "mig", "-cgi", "19").exit_code == 0
    assert len(machine.gpu().trace.resets()) == resets + 1


def test_guest_waits_for_a_stalled_gpu_and_continues_after_the_stall(
    clone: CloneState, driver_baked: SavedState, h100: GpuModel
) -> None:
    machine = clone(driver_baked, gpus=[h100])
    _load_driver(machine, h100)

    machine.gpu().stall(2.0)
    machine.guest.output_of("nvidia-smi", "-L")

    ended = machine.gpu().trace.incidents_of(IncidentKind.STALL_ENDED)
    assert len(ended) == 1
    assert machine.failure() is None


@pytest.mark.gpu_script("gpu0", answers={PMC_BOOT_0: 0x140000A1})
def test_register_returns_the_scripted_value(
    clone: CloneState, driver_baked: SavedState, h100: GpuModel
) -> None:
    """A driver that reads the id of another chip takes the GPU for that chip."""
    machine = clone(driver_baked, gpus=[h100])

    _load_driver(machine, h100)

    _wait_for_kernel_line(machine, "PMC_BOOT_0 = 0x140000a1")


@pytest.mark.nightly
def test_no_register_is_read_before_the_driver_is_loaded(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """The kernel only sizes the BARs; only a driver reads registers in them."""
    no_autoload = GuestFile(path="/etc/modprobe.d/by-hand.conf", content=b"blacklist nvidia\n")
    node = boot_node(
        NodeRequest(name="by-hand", image=baked_image, command=None, files=[no_autoload])
    )
    device_id = node.hot_plug(h100)
    node.guest.wait_for_pci(str(h100.pci))
    assert node.gpu(device_id).trace.config_accesses()

    node.mark("driver is loaded")
    node.guest.output_of("modprobe", "nvidia")

    evidence = node.evidence()
    expect.no_bar_access_before(evidence, "driver is loaded", gpu=device_id)
    expect.bar_access_after(evidence, "driver is loaded", gpu=device_id)
    expect.gpu_reset(evidence, times=1, gpu=device_id)
    expect.gpu_reset(evidence, times=0, since="driver is loaded", gpu=device_id)
