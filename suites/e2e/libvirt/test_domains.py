"""Machines under libvirt do what those of QEMU itself do, and leave as little."""

from __future__ import annotations

import os
import shutil
import uuid
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError, RequirementError
from harness.lab import layers
from harness.machine.libvirt import connection as connection_module
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.domain import Domain
from harness.machine.libvirt.domain_xml import DomainHost, PciAddress, render_domain
from harness.machine.libvirt.machine import LibvirtMachine
from harness.machine.libvirt.monitor import MonitorEvents
from harness.machine.libvirt.watchdog import LibvirtHangsError
from harness.machine.spec import Firmware, MachineSpec
from harness.provisioning.wait import Deadline
from suites.e2e.libvirt.conftest import PATIENCE_S
from suites.e2e.test_firmware import a_disk, a_machine, patience
from suites.unit.machine.libvirt.haste import hasty, join_late

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gpu import GpuModel
    from harness.image import Image
    from harness.lab import Lab
    from suites.e2e.libvirt.conftest import Far

SAYS = "the disk's own boot loader runs"


def test_console_has_what_the_first_instructions_say_and_nothing_is_left(
    libvirt_lab: Lab, libvirtd: Far, tmp_path: Path
) -> None:
    """It is attached while the domain is paused; the boot sector speaks once, a moment later."""
    with a_machine(libvirt_lab, tmp_path, Firmware()) as machine:
        machine.console.wait_for(SAYS, patience(libvirt_lab), what="what the boot loader says")
        (name,) = libvirtd.domains()

        assert name.startswith("firmware-")
        assert machine.serial_log.read_bytes().endswith(f"{SAYS}\n".encode())
        assert machine.pid is not None

    assert libvirtd.domains() == []
    assert not machine.is_running


def test_console_that_can_not_be_logged_is_told_of_and_the_machine_goes_on(
    libvirt_lab: Lab, tmp_path: Path
) -> None:
    """As on a full disk."""
    (tmp_path / "serial.log").symlink_to("/dev/full")
    with a_machine(libvirt_lab, tmp_path, Firmware()) as machine:
        machine.console.wait_for(SAYS, patience(libvirt_lab), what="what the boot loader says")

        with pytest.raises(HarnessError, match=r"but the log .*No space left.*; free space on"):
            machine.console.wait_for(
                "never printed", Deadline.after(30), what="anything", trouble=machine.trouble
            )
        assert machine.is_running


def test_domain_whose_start_was_given_up_is_ended_as_it_comes(
    libvirt_lab: Lab, libvirtd: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libvirtd goes on with it, and nobody waits."""
    monkeypatch.setattr(connection_module, "watched", hasty("the start of"))
    spec = MachineSpec(
        name="late",
        accelerator=libvirt_lab.accelerator.accelerator,
        kernel=Firmware(),
        disk=a_disk(tmp_path),
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
def test_clone_goes_on_and_takes_a_gpu(
    libvirt_lab: Lab, libvirtd: Far, node_image: Image, h100: GpuModel
) -> None:
    """From a checkpoint of a domain, with memory and disk of its own."""
    layer = layers.booted(node_image)

    with libvirt_lab.clone(layer, "one", gpus=[h100]) as one:
        one.guest.write_text("/run/told-to-one", "memory")
        one.wait_for_gpu(h100)
        with libvirt_lab.clone(layer, "two") as two:
            boots = {
                each.guest.read_text("/proc/sys/kernel/random/boot_id") for each in (one, two)
            }
            told = two.guest.read_text("/run/told-to-one")
            second = two.hot_plug(h100)
            two.wait_for_gpu(h100)
            two.hot_unplug(second)
        kept = one.gpu().trace.accesses

    assert len(boots) == 1, "One of them was expected to go on, but it has booted."
    assert told is None
    assert kept, "The guest was expected to look at its GPU."
    assert libvirtd.domains() == []


@pytest.mark.pin_image(reason="libvirt ends the domain, whatever runs in it")
def test_guest_that_powers_off_ends_its_domain(
    libvirt_lab: Lab, libvirtd: Far, node_image: Image
) -> None:
    """And one that resets instead is told apart, as a bake has to."""
    with libvirt_lab.clone(layers.booted(node_image), "off") as machine:
        machine.guest.power_off()

        machine.vm.wait_for_power_off(machine.deadline(15))

        assert libvirtd.domains() == []
        assert not machine.vm.is_running
    with libvirt_lab.clone(layers.booted(node_image), "reset") as machine:
        machine.guest.run("systemctl", "--no-block", "reboot", "--force")

        with pytest.raises(
            HarnessError, match=r"expected to power off, but ended .* by 'guest-reset'"
        ):
            machine.vm.wait_for_power_off(machine.deadline(15))


def test_gpu_that_the_host_does_not_give_away_is_refused_with_the_remedy(
    libvirt_lab: Lab, tmp_path: Path
) -> None:
    """There is no such function here; the machine goes on without."""
    with a_machine(libvirt_lab, tmp_path, Firmware()) as machine:
        assert isinstance(machine, LibvirtMachine)

        with pytest.raises(RequirementError, match=r"'0000:fe:1f\.7'.*IOMMU.*vfio-pci"):
            machine.plug_host_gpu(PciAddress.parse("0000:fe:1f.7"), "gpu0")

        assert machine.is_running


def test_machine_that_qemu_refuses_leaves_nothing(
    libvirt_lab: Lab, libvirtd: Far, tmp_path: Path
) -> None:
    """An emulator without the device, or without the file: libvirt's words, and no domain."""
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


def test_program_that_is_no_emulator_is_named(
    libvirt_lab: Lab, libvirtd: Far, tmp_path: Path
) -> None:
    spec = MachineSpec(
        name="refused",
        accelerator=libvirt_lab.accelerator.accelerator,
        kernel=Firmware(),
        disk=a_disk(tmp_path),
        qemu="true",
    )

    with (
        pytest.raises(HarnessError, match=r"start of machine 'refused'.*bin/true.*by --qemu"),
        libvirt_lab.driver.machine(spec, tmp_path),
    ):
        pass

    assert libvirtd.domains() == []


def test_name_that_is_taken_is_told_with_the_remedy(
    libvirt_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names have eight random digits; here these are the same for once."""
    number = uuid.uuid4()
    monkeypatch.setattr(uuid, "uuid4", lambda: number)
    name = f"firmware-{str(number)[:8]}"
    second = tmp_path / "second"
    second.mkdir()

    with a_machine(libvirt_lab, tmp_path, Firmware()) as first:
        with (
            pytest.raises(HarnessError, match=f"already.*`virsh destroy {name}`"),
            a_machine(libvirt_lab, second, Firmware()),
        ):
            pass

        assert first.is_running, "The one that has the name was expected to go on."


def test_killed_machine_is_told_to_whoever_waits_for_it(libvirt_lab: Lab, tmp_path: Path) -> None:
    with a_machine(libvirt_lab, tmp_path, Firmware()) as machine:
        machine.kill()

        with pytest.raises(HarnessError, match="the machine ended"):
            machine.console.wait_for("never printed", Deadline.after(30), what="anything")


def test_saved_state_depends_on_libvirt_and_qemu(libvirt_lab: Lab, tmp_path: Path) -> None:
    spec = MachineSpec(
        name="any",
        accelerator=libvirt_lab.accelerator.accelerator,
        kernel=Firmware(),
        disk=a_disk(tmp_path),
    )

    assert set(libvirt_lab.driver.state_parts(spec)) == {"domain", "libvirt", "qemu"}
