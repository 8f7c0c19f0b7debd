"""Machines with a fake QEMU: failed starts, channels, and how machines end."""

from __future__ import annotations

import re
import shlex
import threading
from pathlib import Path

import pytest

from harness.agent import frames
from harness.errors import HarnessError
from harness.gpu import GpuAttachment
from harness.machine.qemu.driver import QemuMachine
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock
from suites.unit.machine.description.builders import a_machine_spec, an_attachment


def _program(folder: Path, script: str) -> str:
    program = folder / "qemu, stand-in"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_error_for_a_failed_start_quotes_qemu_and_its_command_line(tmp_path: Path) -> None:
    qemu = _program(tmp_path, "echo \"qemu: could not open 'disk.qcow2'\" >&2; exit 1")

    with pytest.raises(HarnessError) as caught, QemuMachine(a_machine_spec(qemu=qemu), tmp_path):
        pass

    command_line = (tmp_path / "argv.txt").read_text().rstrip("\n")
    assert shlex.split(command_line)[0] == qemu
    assert re.fullmatch(
        r"QEMU did not start machine 'node'; its stderr ends with: qemu: could not open "
        r"'disk\.qcow2'\. QEMU of machine 'node' failed the QMP greeting: .+\. Its command line "
        rf"was:\n{re.escape(command_line)}",
        str(caught.value),
    )


def _what_is_open() -> tuple[int, int]:
    return threading.active_count(), sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_failed_start_leaves_neither_process_nor_thread_nor_descriptor(tmp_path: Path) -> None:
    def start() -> QemuMachine:
        machine = QemuMachine(a_machine_spec(qemu=_program(tmp_path, "exit 1")), tmp_path)
        with pytest.raises(HarnessError), machine:
            pass
        return machine

    # The first start also starts the thread that starts processes; this thread keeps running.
    start()
    before = _what_is_open()

    machine = start()

    assert not machine.is_running
    assert _what_is_open() == before


def test_machine_ends_at_the_end_of_its_with_block(tmp_path: Path) -> None:
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


#: A fake QEMU that greets, answers two commands, reports a SHUTDOWN event with the reason in its second
#: argument, and ends.
_SHUTS_DOWN = """\
import json, socket, sys
qmp = socket.socket(fileno=int(sys.argv[1]))
def send(message):
    qmp.sendall(json.dumps(message).encode() + b"\\n")
send({"QMP": {"version": {}, "capabilities": []}})
for _ in range(2):
    command = json.loads(qmp.recv(9999))
    send({"return": {}, "id": command["id"]} if "id" in command else {"return": {}})
stamp = {"seconds": 1, "microseconds": 0}
send({"event": "SHUTDOWN", "data": {"guest": True, "reason": sys.argv[2]}, "timestamp": stamp})
"""


def _qemu_that_shuts_down(folder: Path, reason: str) -> str:
    (folder / "qmp.py").write_text(_SHUTS_DOWN)
    found = '"$(echo "$*" | sed "s/.*id=qmp,fd=\\([0-9]*\\).*/\\1/")"'
    return _program(folder, f"exec python3 '{folder}/qmp.py' {found} {reason}")


def test_guest_that_powers_off_ends_its_machine(tmp_path: Path) -> None:
    spec = a_machine_spec(qemu=_qemu_that_shuts_down(tmp_path, "guest-shutdown"))

    with QemuMachine(spec, tmp_path) as machine:
        machine.monitor.execute("cont")
        machine.wait_for_power_off(Deadline.after(30))

        assert not machine.is_running


@pytest.mark.parametrize(
    "reason",
    ["guest-reset", "guest-panic", "host-qmp-quit", "host-signal", "host-qmp-system-reset"],
)
def test_wait_for_power_off_fails_if_the_machine_ends_for_another_reason(
    tmp_path: Path, reason: str
) -> None:
    """A bake that rebooted is incomplete and must not be published."""
    spec = a_machine_spec(qemu=_qemu_that_shuts_down(tmp_path, reason))

    with QemuMachine(spec, tmp_path) as machine:
        machine.monitor.execute("cont")
        with pytest.raises(HarnessError, match=f"to power off, but ended by '{reason}'"):
            machine.wait_for_power_off(Deadline.after(30))


def test_killed_machine_ends_at_once(tmp_path: Path) -> None:
    spec = a_machine_spec(qemu=_qemu_that_shuts_down(tmp_path, "guest-shutdown"))

    with QemuMachine(spec, tmp_path) as machine:
        assert Path(f"/proc/{machine.pid}").exists()
        assert machine.failure() is None
        assert machine._processor_s() >= 0
        machine.kill()
        machine._wait_for_exit(Deadline.after(30))

        assert not machine.is_running
        with pytest.raises(HarnessError, match=r"^QEMU of machine '.*' has ended"):
            machine.wait_until_idle(Deadline.after(30))


def test_qemu_starts_in_the_machines_folder_with_its_channels_and_devices(tmp_path: Path) -> None:
    qemu = _program(tmp_path, "pwd >&2; (cd /proc/self/fd && echo [0-9]*) >&2; exit 1")
    opened = GpuAttachment(id="gpu1", driver="vfio-user-pci", root_port_window_mib=64)
    with (tmp_path / "socket").open("w") as handed:
        gpu = an_attachment("gpu0", fd=handed.fileno())
        machine = QemuMachine(a_machine_spec(qemu=qemu, root_ports=2), tmp_path, [opened, gpu])
        with pytest.raises(HarnessError), machine:
            pass

    words = shlex.split((tmp_path / "argv.txt").read_text())
    folder, descriptors = machine.stderr_log.read_text().splitlines()
    named = re.findall(r"(?:id=(\w+),)?fd=(\d+)", " ".join(words))
    assert folder == str(tmp_path)
    assert [name for name, _ in named] == ["qmp", "serial", "agent", "gpu0"]
    assert len({number for _, number in named}) == 4
    assert {number for _, number in named} <= {*descriptors.split()}
    assert f"logfile={tmp_path}/serial.log" in " ".join(words)
    assert '"id": "gpu1", "bus": "rp0"' in " ".join(words)


#: A fake QEMU that negotiates QMP, requests the agent's program as the loader in a guest does, and
#: prints a line on the console when the program has arrived.
_BOOTS = """\
import json, re, socket, sys
fds = dict(re.findall(r"id=(\\w+),fd=(\\d+)", " ".join(sys.argv)))
qmp, serial, agent = (socket.socket(fileno=int(fds[name])) for name in ("qmp", "serial", "agent"))
qmp.sendall(b'{"QMP": {"version": {}, "capabilities": []}}\\n')
command = json.loads(qmp.recv(9999))
qmp.sendall(json.dumps({"return": {}, "id": command.get("id")}).encode() + b"\\n")
agent.sendall(bytes.fromhex(sys.argv[1]))
received = b""
while b"the agent's program" not in received:
    received += agent.recv(9999) or sys.exit("The host is gone.")
serial.sendall(b"The agent runs.\\r\\n")
qmp.recv(1)
"""


def test_started_machine_serves_its_agent_and_reads_its_console(tmp_path: Path) -> None:
    (tmp_path / "boots.py").write_text(_BOOTS)
    asks = frames.SYNC_FRAME + frames.encode(frames.BOOT, 0, b"token")
    qemu = _program(tmp_path, f'exec python3 boots.py {asks.hex()} "$@"')
    machine = QemuMachine(
        a_machine_spec(qemu=qemu), tmp_path, agent_program=b"the agent's program"
    )

    with machine:
        machine.console.wait_for("The agent runs", Deadline.after(30), what="the agent")
        for ask in (
            lambda: machine.console.wait_for("x", Deadline.after(0), what="x"),
            lambda: machine.agent.wait_until_ready(Deadline.after(0)),
            lambda: machine.monitor.wait_for_event("x", bool, Deadline.after(0)),
        ):
            with pytest.raises(HarnessError, match="achine 'node'"):
                ask()
        with pytest.raises(
            HarnessError,
            match="QEMU of machine 'node' to end; last seen: the process is still running",
        ):
            machine._wait_for_exit(Deadline.after(0, FakeClock()))
