"""Machines under libvirt behave like machines without libvirt, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import uuid
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError, RequirementError
from harness.gpu import HostGpuAttachment
from harness.lab import saved_states
from harness.machine.description.spec import Firmware, MachineSpec
from harness.machine.libvirt import connection as connection_module
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.domain import Domain
from harness.machine.libvirt.domain_xml import DomainHost, render_domain
from harness.machine.libvirt.machine import LibvirtMachine
from harness.machine.libvirt.monitor import MonitorEvents
from harness.machine.libvirt.watchdog import LibvirtHangsError
from harness.provisioning.wait import Deadline
from suites.e2e.boot_sector import boot_sector_disk, firmware_machine, patience
from suites.e2e.libvirt.conftest import PATIENCE_S
from suites.unit.machine.libvirt.impatient_watchdog import hasty, join_late

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gpu import GpuModel
    from harness.image import Image
    from harness.lab import Lab
    from suites.e2e.libvirt.conftest import Libvirtd

SAYS = "the disk's own boot loader runs"


def test_console_has_the_first_output_of_the_guest_and_no_domain_is_left(
    libvirt_lab: Lab, libvirtd: Libvirtd, tmp_path: Path
) -> None:
    """The console is attached while the domain is paused; the boot sector prints once, later."""
    with firmware_machine(libvirt_lab, tmp_path, Firmware()) as machine:
        machine.console.wait_for(SAYS, patience(libvirt_lab), what="what the boot loader says")
        (name,) = libvirtd.domains()

        assert name.startswith("firmware-")
        assert machine.serial_log.read_bytes().endswith(f"{SAYS}\n".encode())
        assert machine.pid is not None

    assert libvirtd.domains() == []
    assert not machine.is_running


def test_console_log_error_is_reported_and_the_machine_keeps_running(
    libvirt_lab: Lab, tmp_path: Path
) -> None:
    """A full disk causes such an error."""
    (tmp_path / "serial.log").symlink_to("/dev/full")
    with firmware_machine(libvirt_lab, tmp_path, Firmware()) as machine:
        machine.console.wait_for(SAYS, patience(libvirt_lab), what="what the boot loader says")

        with pytest.raises(HarnessError, match=r"but the log .*No space left.*; free space on"):
            machine.console.wait_for(
                "never printed", Deadline.after(30), what="anything", failure=machine.failure
            )
        assert machine.is_running


def test_domain_whose_start_was_cancelled_is_ended_when_it_appears(
    libvirt_lab: Lab, libvirtd: Libvirtd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libvirtd continues the start although no client waits for the domain."""
    monkeypatch.setattr(connection_module, "watched", hasty("the start of"))
    spec = MachineSpec(
        name="late",
        accelerator=libvirt_lab.accelerator.accelerator,
        kernel=Firmware(),
        disk=boot_sector_disk(tmp_path),
        memory_mib=256,
    )
    emulator = str(shutil.which(libvirt_lab.settings.qemu))
    with Connection.open(libvirtd.daemon.uri, deadline=Deadline.after(PATIENCE_S)) as connection:
        domain = Domain(connection, MonitorEvents(connection), machine=spec.name)
        host = DomainHost(emulator=emulator, owner=(os.geteuid(), os.getegid()))
        xml = render_domain(spec, host, name=domain.name, uuid=domain.uuid)
        with pytest.raises(LibvirtHangsError):
            domain.start(xml, emulator=emulator)

        join_late("the start of", PATIENCE_S)

        assert libvirtd.domains() == []
        domain.close()


@pytest.mark.pin_image(reason="libvirt keeps the checkpoint, whatever lies in it")
def test_clone_continues_from_the_saved_state_and_gets_a_gpu(
    libvirt_lab: Lab, libvirtd: Libvirtd, node_image: Image, h100: GpuModel
) -> None:
    """The clone starts from a checkpoint of a domain and has its own memory and disk."""
    saved_state = saved_states.booted(node_image)

    with libvirt_lab.clone(saved_state, "one", gpus=[h100]) as one:
        one.guest.write_text("/run/told-to-one", "memory")
        one.wait_for_gpu(h100)
        with libvirt_lab.clone(saved_state, "two") as two:
            boots = {
                each.guest.read_text("/proc/sys/kernel/random/boot_id") for each in (one, two)
            }
            seen_by_two = two.guest.read_text("/run/told-to-one")
            second = two.hot_plug(h100)
            two.wait_for_gpu(h100)
            two.hot_unplug(second)
        kept = one.gpu().trace.accesses

    assert len(boots) == 1, "A clone was expected to continue, but it has booted."
    assert seen_by_two is None
    assert kept, "The guest was expected to look at its GPU."
    assert libvirtd.domains() == []


@pytest.mark.pin_image(reason="libvirt ends the domain, whatever runs in it")
def test_guest_that_powers_off_ends_its_domain(
    libvirt_lab: Lab, libvirtd: Libvirtd, node_image: Image
) -> None:
    """A bake requires that a reset is distinguished from a power-off."""
    with libvirt_lab.clone(saved_states.booted(node_image), "off") as machine:
        machine.guest.power_off()

        machine.vm.wait_for_power_off(machine.deadline(15))

        assert libvirtd.domains() == []
        assert not machine.vm.is_running
    with libvirt_lab.clone(saved_states.booted(node_image), "reset") as machine:
        machine.guest.run("systemctl", "--no-block", "reboot", "--force")

        with pytest.raises(
            HarnessError, match=r"expected to power off, but ended by 'guest-reset'"
        ):
            machine.vm.wait_for_power_off(machine.deadline(15))


def test_gpu_that_the_host_cannot_pass_through_is_refused_with_the_remedy(
    libvirt_lab: Lab, tmp_path: Path
) -> None:
    """The PCI function does not exist on this host; the machine continues without it."""
    with firmware_machine(libvirt_lab, tmp_path, Firmware()) as machine:
        assert isinstance(machine, LibvirtMachine)

        with pytest.raises(RequirementError, match=r"'0000:fe:1f\.7'.*gpu host ls"):
            machine.plug(HostGpuAttachment(id="gpu0", addresses=("0000:fe:1f.7",)))

        assert machine.is_running


def test_machine_that_qemu_refuses_leaves_no_domain(
    libvirt_lab: Lab, libvirtd: Libvirtd, tmp_path: Path
) -> None:
    """The emulator lacks the device or the file.

    The harness shows libvirt's error; no domain is left.
    """
    spec = MachineSpec(
        name="refused",
        accelerator=libvirt_lab.accelerator.accelerator,
        kernel=Firmware(),
        disk=tmp_path / "no-such-disk.qcow2",
        memory_mib=256,
    )

    with (
        pytest.raises(HarnessError, match=r"the start of machine 'refused'.*no-such-disk"),
        libvirt_lab.driver.machine(spec, tmp_path),
    ):
        pass

    assert libvirtd.domains() == []


def test_error_mentions_the_configured_program_that_is_not_an_emulator(
    libvirt_lab: Lab, libvirtd: Libvirtd, tmp_path: Path
) -> None:
    spec = MachineSpec(
        name="refused",
        accelerator=libvirt_lab.accelerator.accelerator,
        kernel=Firmware(),
        disk=boot_sector_disk(tmp_path),
        qemu="true",
    )

    with (
        pytest.raises(HarnessError, match=r"start of machine 'refused'.*bin/true.*by --qemu"),
        libvirt_lab.driver.machine(spec, tmp_path),
    ):
        pass

    assert libvirtd.domains() == []


def test_domain_name_in_use_is_reported_with_the_remedy(
    libvirt_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names have eight random digits; the test makes two of them equal."""
    number = uuid.uuid4()
    monkeypatch.setattr(uuid, "uuid4", lambda: number)
    name = f"firmware-{str(number)[:8]}"
    second = tmp_path / "second"
    second.mkdir()

    with firmware_machine(libvirt_lab, tmp_path, Firmware()) as first:
        with (
            pytest.raises(HarnessError, match=f"already.*`virsh destroy {name}`"),
            firmware_machine(libvirt_lab, second, Firmware()),
        ):
            pass

        assert first.is_running, "The domain with this name was expected to keep running."


def test_waiting_for_a_killed_machine_raises_an_error(libvirt_lab: Lab, tmp_path: Path) -> None:
    with firmware_machine(libvirt_lab, tmp_path, Firmware()) as machine:
        machine.kill()

        with pytest.raises(HarnessError, match="the machine ended"):
            machine.console.wait_for("never printed", Deadline.after(30), what="anything")


def test_key_of_a_saved_state_depends_on_libvirt_and_qemu(
    libvirt_lab: Lab, tmp_path: Path
) -> None:
    spec = MachineSpec(
        name="any",
        accelerator=libvirt_lab.accelerator.accelerator,
        kernel=Firmware(),
        disk=boot_sector_disk(tmp_path),
    )

    assert set(libvirt_lab.driver.state_parts(spec)) == {"domain", "libvirt", "qemu"}
