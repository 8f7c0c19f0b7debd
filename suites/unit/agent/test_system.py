"""The changes of settling in a guest, below a folder in place of its root."""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING

import pytest

from harness.agent.processes import DEFAULT_PATH, Processes, base_environment
from harness.agent.system import BorrowedSystem, NotAGuestError, System

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_hostname_is_set_in_the_kernel_and_on_disk(tmp_path: Path) -> None:
    kernel = tmp_path / "proc/sys/kernel"
    kernel.mkdir(parents=True)
    (tmp_path / "etc").mkdir()

    old = os.umask(0o077)
    try:
        System(root=str(tmp_path)).set_hostname("node-2")
    finally:
        os.umask(old)

    name = tmp_path / "etc/hostname"
    assert (kernel / "hostname").read_text() == "node-2"
    assert (name.read_text(), name.stat().st_mode & 0o777) == ("node-2\n", 0o644)
    name.unlink()
    name.mkdir()
    with pytest.raises(IsADirectoryError):
        System(root=str(tmp_path)).set_hostname("node-3")
    assert [path.name for path in (tmp_path / "etc").iterdir()] == ["hostname"]


def test_new_instance_id_replaces_the_instance_id_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "var/lib/cloud/data/instance-id"
    system = System(root=str(tmp_path))
    for instance_id in ("i-1", "i-2"):
        system.set_instance_id(instance_id)

    assert path.read_text() == "i-2\n"


def test_prepared_guest_adds_entropy_through_the_random_device_opened_earlier(
    tmp_path: Path,
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/urandom").touch()
    system = System(root=str(tmp_path))

    system.prepare()
    (tmp_path / "dev/urandom").unlink()

    with pytest.raises(OSError, match="Inappropriate ioctl"):
        system.add_entropy(b"no file takes entropy")


def test_added_entropy_is_credited_and_the_random_generator_is_reseeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reseed of an unseeded generator may fail. Every other error is reported to the host."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/urandom").touch()
    system = System(root=str(tmp_path))
    calls: list[tuple[int, object]] = []
    refusals = iter((0, errno.ENODATA, errno.EIO))

    def ioctl(_: int, request: int, argument: object = None) -> None:
        calls.append((request, argument))
        if argument is None and (refusal := next(refusals)):
            raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr("fcntl.ioctl", ioctl)
    for _ in range(2):
        system.add_entropy(b"abcd")
    with pytest.raises(OSError, match="output error"):
        system.add_entropy(b"abcd")

    # linux/random.h: RNDADDENTROPY with the number of bits and of bytes, and RNDRESEEDCRNG.
    once = [(0x40085203, struct.pack("ii", 32, 4) + b"abcd"), (0x5207, None)]
    assert calls == once * 3


def test_changing_the_clock_or_names_of_a_machine_that_is_not_a_guest_is_refused() -> None:
    system = BorrowedSystem()
    changes: tuple[Callable[[], None], ...] = (
        lambda: system.set_wall_ns(1),
        lambda: system.add_entropy(b"x"),
        lambda: system.set_hostname("x"),
        lambda: system.set_instance_id("x"),
    )
    for change in changes:
        with pytest.raises(NotAGuestError, match="This machine is not a guest of the harness"):
            change()


def test_signal_to_a_process_group_whose_id_is_below_2_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_pid: int, _number: int) -> None:
        pytest.fail("a group was signalled")

    monkeypatch.setattr("os.killpg", refuse)
    for pid in (-1, 0, 1):
        with pytest.raises(ValueError, match="no command with the process group"):
            Processes.signal_group(object.__new__(Processes), pid, 9)


def test_commands_have_the_same_environment_as_a_login_shell_of_root() -> None:
    """Variables that systemd sets for the agent are not passed on."""
    systemd = (
        *("INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID"),
        *("MAINPID", "NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "WATCHDOG_PID", "WATCHDOG_USEC"),
    )
    own = {
        "LANG": "C.UTF-8",
        "LC_CTYPE": "C.UTF-8",
        "HOME": "/home",
        **dict.fromkeys(systemd, "x"),
    }

    assert base_environment(own) == {
        "PATH": DEFAULT_PATH,
        "HOME": "/home",
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
    }


def test_boot_id_is_read_without_its_trailing_newline(tmp_path: Path) -> None:
    """The file of the kernel ends with a line break, which is removed."""
    file = tmp_path / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    file.write_text("b0071d00-0000\n")

    assert System(str(tmp_path)).boot_id() == "b0071d00-0000"
