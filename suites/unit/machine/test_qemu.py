"""QEMU's command line, and machines whose QEMU is not there or refuses."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError, RequirementError
from harness.gpu import GpuAttachment
from harness.machine.qemu import Channels, QemuMachine, render_argv, require_qemu, root_port_id
from harness.machine.spec import Accelerator, DirectKernel, MachineSpec

CHANNELS = Channels(qmp_fd=7, serial_fd=9)
LOG = Path("/runs/serial.log")
FOLDER = Path("/images/debian-12")


def a_machine_spec(**changes: Any) -> MachineSpec:
    spec = MachineSpec(
        name="node",
        accelerator=Accelerator.TCG,
        kernel=DirectKernel(
            version="6.1.0-56", vmlinuz=FOLDER / "vmlinuz", initrd=FOLDER / "initrd.img"
        ),
        disk=Path("/runs/disk.qcow2"),
    )
    return replace(spec, **changes)


def an_attachment(device_id: str = "gpu0", *, fd: int = 11, window_mib: int = 64) -> GpuAttachment:
    return GpuAttachment(
        id=device_id, driver="x-pci-proxy-dev", fd=fd, root_port_window_mib=window_mib
    )


def values_of(argv: list[str], option: str) -> list[str]:
    return [argv[index + 1] for index, word in enumerate(argv) if word == option]


def test_command_line_of_a_plain_machine() -> None:
    argv = render_argv(a_machine_spec(root_ports=0), CHANNELS, serial_log=LOG)

    lines = " ".join(argv).replace(" -", "\n-").splitlines()
    assert lines == [
        "qemu-system-x86_64",
        "-name guest=node,debug-threads=on",
        "-machine q35,memory-backend=ram,hpet=off",
        "-object memory-backend-memfd,id=ram,size=1536M,share=on",
        "-accel tcg,thread=single",
        "-cpu max",
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
        "-device virtio-rng-pci",
        "-drive file=/runs/disk.qcow2,id=disk,if=none,format=qcow2,cache=unsafe",
        "-device virtio-blk-pci,drive=disk,serial=root",
        "-netdev user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22",
        "-device virtio-net-pci,netdev=net,romfile=,mac=52:54:00:67:70:75",
        "-kernel /images/debian-12/vmlinuz",
        "-initrd /images/debian-12/initrd.img",
        ("-append root=/dev/vda rw console=ttyS0 panic=-1 net.ifnames=0 mitigations=off quiet"),
    ]


def test_kvm_runs_the_hosts_processor() -> None:
    argv = render_argv(a_machine_spec(accelerator=Accelerator.KVM), CHANNELS, serial_log=LOG)

    assert (values_of(argv, "-accel"), values_of(argv, "-cpu")) == (["kvm"], ["host"])


def test_tcg_runs_all_processors_in_one_thread() -> None:
    """Two threads that touch one proxied device at once make QEMU hang."""
    argv = render_argv(a_machine_spec(cpus=4), CHANNELS, serial_log=LOG)

    assert values_of(argv, "-accel") == ["tcg,thread=single"]
    assert values_of(argv, "-smp") == ["4"]


def test_commas_in_paths_are_doubled_where_qemu_parses_options() -> None:
    folder = Path("/my cache, really")
    spec = a_machine_spec(disk=folder / "disk.qcow2", seed=folder / "seed.iso")

    argv = render_argv(spec, CHANNELS, serial_log=folder / "serial.log")

    assert values_of(argv, "-chardev")[1].endswith(",logfile=/my cache,, really/serial.log")
    assert [drive.split(",id=")[0] for drive in values_of(argv, "-drive")] == [
        "file=/my cache,, really/disk.qcow2",
        "file=/my cache,, really/seed.iso",
    ]


def test_commas_in_the_kernels_path_stay_as_they_are() -> None:
    """QEMU takes these words whole, so a comma written twice would be two commas."""
    folder = Path("/my cache, really")
    kernel = DirectKernel(version="6", vmlinuz=folder / "vmlinuz", initrd=folder / "initrd")

    argv = render_argv(a_machine_spec(kernel=kernel), CHANNELS, serial_log=LOG)

    assert values_of(argv, "-kernel") == ["/my cache, really/vmlinuz"]
    assert values_of(argv, "-initrd") == ["/my cache, really/initrd"]


def test_seed_is_read_only() -> None:
    argv = render_argv(a_machine_spec(seed=Path("/runs/seed.iso")), CHANNELS, serial_log=LOG)

    assert values_of(argv, "-drive")[1] == (
        "file=/runs/seed.iso,id=seed,if=none,format=raw,readonly=on"
    )


def test_extra_words_come_last_on_the_kernels_command_line() -> None:
    spec = a_machine_spec(extra_append=("systemd.unit=rescue.target",))

    argv = render_argv(spec, CHANNELS, serial_log=LOG)

    assert values_of(argv, "-append")[0].endswith(" quiet systemd.unit=rescue.target")


def test_every_root_port_has_a_slot_and_a_window() -> None:
    spec = a_machine_spec(root_ports=2, root_port_window_mib=128)

    argv = render_argv(spec, CHANNELS, serial_log=LOG)

    assert values_of(argv, "-device")[-2:] == [
        "pcie-root-port,id=rp0,chassis=1,slot=1,mem-reserve=128M",
        "pcie-root-port,id=rp1,chassis=2,slot=2,mem-reserve=128M",
    ]


def test_attachments_take_the_root_ports_in_order() -> None:
    argv = render_argv(
        a_machine_spec(root_ports=3),
        CHANNELS,
        serial_log=LOG,
        attachments=[an_attachment("gpu0", fd=11), an_attachment("gpu1", fd=13)],
    )

    assert values_of(argv, "-device")[-2:] == [
        "x-pci-proxy-dev,id=gpu0,fd=11,bus=rp0",
        "x-pci-proxy-dev,id=gpu1,fd=13,bus=rp1",
    ]


def test_more_devices_than_root_ports_are_refused() -> None:
    with pytest.raises(HarnessError, match="'node' has 1 root ports for 2 devices; raise"):
        render_argv(
            a_machine_spec(root_ports=1),
            CHANNELS,
            serial_log=LOG,
            attachments=[an_attachment("gpu0"), an_attachment("gpu1")],
        )


def test_root_ports_are_counted_from_zero() -> None:
    assert [root_port_id(index) for index in range(2)] == ["rp0", "rp1"]


def test_missing_qemu_is_named_with_its_remedy(tmp_path: Path) -> None:
    machine = QemuMachine(a_machine_spec(qemu="qemu-that-is-not-there"), tmp_path)

    with pytest.raises(RequirementError, match=r"no QEMU 'qemu-that-is-not-there'.*apt-get"):
        machine.start()


def test_missing_setpriv_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu = tmp_path / "qemu"
    qemu.write_text("#!/bin/sh\n")
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RequirementError, match=r"no 'setpriv'.*apt-get install util-linux"):
        require_qemu("qemu")


def test_device_that_needs_a_larger_window_is_not_plugged(tmp_path: Path) -> None:
    machine = QemuMachine(a_machine_spec(), tmp_path)

    with pytest.raises(HarnessError, match=r"reserve 64 MiB, but device 'gpu0' needs 256; raise"):
        machine.plug(an_attachment(window_mib=256))


def test_device_without_a_free_root_port_is_not_plugged(tmp_path: Path) -> None:
    machine = QemuMachine(a_machine_spec(root_ports=1), tmp_path, [an_attachment("gpu0")])

    with pytest.raises(HarnessError, match="All 1 root ports of machine 'node' are taken"):
        machine.plug(an_attachment("gpu1"))


def _program(folder: Path, script: str) -> str:
    program = folder / "qemu, stand-in"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.starts_process
def test_qemu_that_refuses_is_quoted(tmp_path: Path) -> None:
    qemu = _program(tmp_path, "echo \"qemu: could not open 'disk.qcow2'\" >&2; exit 1")

    with pytest.raises(HarnessError) as caught, QemuMachine(a_machine_spec(qemu=qemu), tmp_path):
        pass

    message = str(caught.value)
    assert message.startswith("QEMU did not start machine 'node'; its stderr says: qemu: could")
    assert "-machine q35" in message


def _what_is_open() -> tuple[int, int]:
    return threading.active_count(), sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.starts_process
def test_refused_start_leaves_no_process_thread_or_descriptor(tmp_path: Path) -> None:
    def start() -> QemuMachine:
        machine = QemuMachine(a_machine_spec(qemu=_program(tmp_path, "exit 1")), tmp_path)
        with pytest.raises(HarnessError):
            machine.start()
        return machine

    # The thread that starts processes stays, by design: let it be there beforehand.
    start()
    before = _what_is_open()

    machine = start()

    assert not machine.is_running
    assert _what_is_open() == before


@pytest.mark.starts_process
def test_machine_ends_with_its_block(tmp_path: Path) -> None:
    greets = (
        "exec python3 -c 'import json,socket,sys; s=socket.socket(fileno=int(sys.argv[1]));"
        's.sendall(b"{\\"QMP\\":{\\"version\\":{},\\"capabilities\\":[]}}\\n");'
        'c=json.loads(s.recv(9999)); s.sendall(b"{\\"return\\":{}}\\n"); s.recv(1)\' '
        '"$(echo "$*" | sed "s/.*id=qmp,fd=\\([0-9]*\\).*/\\1/")"'
    )
    machine = QemuMachine(a_machine_spec(qemu=_program(tmp_path, greets)), tmp_path)

    with machine:
        within = machine.is_running

    assert (within, machine.is_running) == (True, False)
    assert "-machine q35" in (tmp_path / "argv.txt").read_text()
