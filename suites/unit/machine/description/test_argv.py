"""QEMU's command line."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.machine.description.argv import render_argv, ssh_port_of
from harness.machine.description.host_port import connect_argv
from harness.machine.description.spec import (
    Accelerator,
    DirectKernel,
    Firmware,
    Flash,
    HostPort,
    MemoryFile,
)
from suites.unit.machine.description.builders import CHANNELS, LOG, a_machine_spec, an_attachment


def values_of(argv: list[str], option: str) -> list[str]:
    return [argv[index + 1] for index, word in enumerate(argv) if word == option]


def test_plain_machine_has_the_expected_command_line() -> None:
    argv = render_argv(a_machine_spec(root_ports=0), CHANNELS, serial_log=LOG)

    lines = " ".join(argv).replace(" -", "\n-").splitlines()
    assert lines == [
        "qemu-system-x86_64",
        "-name guest=node,debug-threads=on",
        "-machine q35,memory-backend=ram,hpet=off",
        "-object memory-backend-memfd,id=ram,size=1536M,share=on",
        "-accel tcg,thread=single",
        "-cpu max,-la57,-smap,-erms,-fsrm",
        "-smp 1",
        "-m 1536M",
        "-display none",
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-chardev socket,id=qmp,fd=7",
        "-mon chardev=qmp,mode=control",
        "-chardev socket,id=serial,fd=9,logfile=/runs/serial.log",
        "-serial chardev:serial",
        "-device virtio-serial-pci",
        "-chardev socket,id=agent,fd=11",
        "-device virtserialport,chardev=agent,name=harness.agent",
        "-device virtio-rng-pci",
        "-drive file=/runs/disk.qcow2,id=disk,if=none,format=qcow2,cache=unsafe",
        "-device virtio-blk-pci,drive=disk,serial=root",
        "-netdev user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22",
        "-device virtio-net-pci,netdev=net,romfile=,guest_announce=off,mac=52:54:00:67:70:75",
        "-kernel /images/debian-12/vmlinuz",
        "-initrd /images/debian-12/initrd.img",
        "-append root=/dev/vda rw console=ttyS0 panic=-1 net.ifnames=0 mitigations=off quiet "
        + " ".join(Accelerator.TCG.kernel_append),
        "-device pcie-root-port,id=seed,chassis=31,slot=31",
    ]


def test_machine_under_kvm_has_the_processor_of_the_host() -> None:
    argv = render_argv(a_machine_spec(accelerator=Accelerator.KVM), CHANNELS, serial_log=LOG)

    assert (values_of(argv, "-accel"), values_of(argv, "-cpu")) == (["kvm"], ["host"])
    assert values_of(argv, "-append")[0].endswith("mitigations=off quiet")


def test_tcg_runs_each_of_several_vcpus_in_its_own_thread() -> None:
    argv = render_argv(a_machine_spec(cpus=4), CHANNELS, serial_log=LOG)

    assert values_of(argv, "-accel") == ["tcg,thread=multi"]
    assert values_of(argv, "-smp") == ["4"]


def test_commas_in_paths_are_doubled_only_in_options_that_qemu_parses() -> None:
    """QEMU does not parse the kernel's path, so a doubled comma would stay doubled."""
    folder = Path("/my cache, really")
    kernel = DirectKernel(version="6", vmlinuz=folder / "vmlinuz", initrd=folder / "initrd")
    spec = a_machine_spec(kernel=kernel, disk=folder / "disk.qcow2", seed=folder / "seed.iso")

    argv = render_argv(spec, CHANNELS, serial_log=folder / "serial.log")

    assert values_of(argv, "-chardev")[1].endswith(",logfile=/my cache,, really/serial.log")
    assert values_of(argv, "-drive")[0].startswith("file=/my cache,, really/disk.qcow2,id=")
    assert values_of(argv, "-blockdev")[0].endswith("file.filename=/my cache,, really/seed.iso")
    assert values_of(argv, "-kernel") == ["/my cache, really/vmlinuz"]
    assert values_of(argv, "-initrd") == ["/my cache, really/initrd"]


def test_seed_at_boot_is_read_only_and_takes_the_same_slot_as_a_hot_plugged_seed() -> None:
    argv = render_argv(a_machine_spec(seed=Path("/runs/seed.iso")), CHANNELS, serial_log=LOG)

    assert values_of(argv, "-blockdev") == [
        "driver=raw,node-name=seed,read-only=on,file.driver=file,file.filename=/runs/seed.iso"
    ]
    disk = "virtio-blk-pci,id=seed-disk,drive=seed,serial=seed,bus=seed"
    assert values_of(argv, "-device")[-2:] == [
        disk,
        "pcie-root-port,id=rp0,chassis=1,slot=1,mem-reserve=64M",
    ]


def test_template_shares_its_memory_file_and_a_clone_maps_the_file_privately() -> None:
    ram = Path("/my cache, really/ram")
    template = a_machine_spec(memory_file=MemoryFile(path=ram, is_private=False))
    clone = a_machine_spec(memory_file=MemoryFile(path=ram, is_private=True), is_restored=True)

    template_argv = render_argv(template, CHANNELS, serial_log=LOG)
    clone_argv = render_argv(clone, CHANNELS, serial_log=LOG)

    memory = "memory-backend-file,id=ram,size=1536M,share={},mem-path=/my cache,, really/ram"
    assert values_of(template_argv, "-object") == [memory.format("on")]
    assert values_of(clone_argv, "-object") == [memory.format("off")]
    assert values_of(clone_argv, "-incoming") == ["defer"]
    assert "-incoming" not in template_argv
    assert values_of(clone_argv, "-kernel") == ["/images/debian-12/vmlinuz"]
    # The saved memory contains the initrd and the command line.
    assert "-initrd" not in clone_argv
    assert "-append" not in clone_argv


def test_every_root_port_has_a_slot_and_a_window_and_address_space_for_64bit_bars() -> None:
    spec = a_machine_spec(root_ports=2, root_port_window_mib=128, root_port_aperture_mib=131072)

    argv = render_argv(spec, CHANNELS, serial_log=LOG)

    assert values_of(argv, "-device")[-2:] == [
        "pcie-root-port,id=rp0,chassis=1,slot=1,mem-reserve=128M,pref64-reserve=131072M",
        "pcie-root-port,id=rp1,chassis=2,slot=2,mem-reserve=128M,pref64-reserve=131072M",
    ]


def test_attachments_take_the_root_ports_in_order() -> None:
    argv = render_argv(
        a_machine_spec(root_ports=3),
        CHANNELS,
        serial_log=LOG,
        attachments=[an_attachment("gpu0", fd=12), an_attachment("gpu1", fd=13)],
    )

    assert values_of(argv, "-device")[-2:] == [
        "x-pci-proxy-dev,id=gpu0,fd=12,bus=rp0",
        "x-pci-proxy-dev,id=gpu1,fd=13,bus=rp1",
    ]


def test_more_devices_than_root_ports_are_refused() -> None:
    with pytest.raises(HarnessError, match="'node' has 1 root ports for 2 devices"):
        render_argv(
            a_machine_spec(root_ports=1),
            CHANNELS,
            serial_log=LOG,
            attachments=[an_attachment("gpu0"), an_attachment("gpu1")],
        )


def test_machine_with_firmware_boots_its_disk_and_may_reboot() -> None:
    argv = render_argv(a_machine_spec(kernel=Firmware()), CHANNELS, serial_log=LOG)

    assert "virtio-blk-pci,drive=disk,serial=root,bootindex=1" in values_of(argv, "-device")
    assert not {"-kernel", "-initrd", "-append", "-no-reboot"} & set(argv)


def test_flash_has_read_only_code_and_the_machines_own_variables() -> None:
    flash = Flash(code=Path("/ovmf/CODE.fd"), variables=Path("/runs/a,b/VARS.fd"))

    argv = render_argv(a_machine_spec(kernel=Firmware(flash=flash)), CHANNELS, serial_log=LOG)

    assert [value for value in values_of(argv, "-drive") if "pflash" in value] == [
        "if=pflash,unit=0,format=raw,readonly=on,file=/ovmf/CODE.fd",
        "if=pflash,unit=1,format=raw,file=/runs/a,,b/VARS.fd",
    ]


def test_each_connection_to_a_forwarded_host_port_starts_a_program() -> None:
    spec = a_machine_spec(
        host_ports=(
            HostPort(host_port=41000, guest_port=443),
            HostPort(host_port=41001, guest_port=80, guest_address="10.0.2.101"),
        )
    )

    (netdev,) = values_of(render_argv(spec, CHANNELS, serial_log=LOG), "-netdev")

    start = "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22,guestfwd=tcp:10.0.2.100:443-cmd:"
    first, second = (shlex.join(connect_argv(port)).replace(",", ",,") for port in (41000, 41001))
    assert netdev == f"{start}{first},guestfwd=tcp:10.0.2.101:80-cmd:{second}"
    assert first.endswith("host_port.py 41000")


def test_comma_in_the_path_of_python_is_doubled_in_the_guestfwd_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/a,b/python")
    spec = a_machine_spec(host_ports=(HostPort(host_port=41000, guest_port=443),))

    (netdev,) = values_of(render_argv(spec, CHANNELS, serial_log=LOG), "-netdev")

    assert netdev.partition("-cmd:")[2].startswith("/opt/a,,b/python -I -S ")


def test_iommu_precedes_other_devices_and_the_kernel_command_line_enables_the_iommu() -> None:
    argv = render_argv(a_machine_spec(has_iommu=True), CHANNELS, serial_log=LOG)

    assert values_of(argv, "-device")[0] == "intel-iommu"
    assert "intel_iommu=on" in values_of(argv, "-append")[0].split()
    assert values_of(argv, "-machine") == ["q35,memory-backend=ram,hpet=off"]


def test_kernel_irqchip_under_kvm_is_split_only_with_an_iommu() -> None:
    """VFIO in the guest refuses an IOMMU that can't remap interrupts."""
    for has_iommu, irqchip in ((True, ",kernel-irqchip=split"), (False, "")):
        spec = a_machine_spec(has_iommu=has_iommu, accelerator=Accelerator.KVM)

        argv = render_argv(spec, CHANNELS, serial_log=LOG)

        assert values_of(argv, "-machine") == [f"q35,memory-backend=ram,hpet=off{irqchip}"]


def test_ssh_port_on_the_host_is_read_from_the_host_forward_line_of_info_usernet() -> None:
    usernet = (
        "Hub -1 (net):\n"
        "  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\n"
        "  TCP[ESTABLISHED]   25       127.0.0.1 40111       10.0.2.15    22     0     0\n"
        "  TCP[HOST_FORWARD]  15       127.0.0.1 40999       10.0.2.15    22     0     0\n"
    )

    assert ssh_port_of(usernet) == 40999


def test_error_for_a_missing_forward_to_ssh_quotes_qemu() -> None:
    with pytest.raises(HarnessError, match="shows no such port: 'Hub -1"):
        ssh_port_of("Hub -1 (net):\n")
