"""A serial console over a socket pair."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.channels.console import Console
from harness.provisioning.wait import Deadline
from suites.unit.machine.channels.played_guest import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONG_S = 20.0
_SHORT_S = 0.02


class _Guest:
    """QEMU's end of the console's socket."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair()

    def prints(self, text: str | bytes) -> None:
        self._theirs.sendall(text.encode() if isinstance(text, str) else text)

    def ends(self) -> None:
        self._theirs.close()

    def reads(self) -> bytes:
        return self._theirs.recv(4096)


@pytest.fixture
def guest() -> Iterator[_Guest]:
    guest = _Guest()
    yield guest
    guest.ends()


@pytest.fixture
def console(guest: _Guest) -> Iterator[Console]:
    console = Console("node", guest.ours)
    yield console
    console.close()


def _wait(console: Console, pattern: str, seconds: float = _LONG_S) -> str:
    return console.wait_for(pattern, Deadline.after(seconds), what=f"'{pattern}'")


def test_pattern_that_is_split_across_reads_is_found(guest: _Guest, console: Console) -> None:
    guest.prints("HARNESS: cloud-")
    with pytest.raises(HarnessError):
        _wait(console, "cloud-init has finished", _SHORT_S)
    guest.prints("init has finished\r\n")

    assert _wait(console, "cloud-init has finished") == "cloud-init has finished"


def test_character_that_arrives_in_two_reads_is_decoded_as_one(
    guest: _Guest, console: Console
) -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    guest.prints(b"caf" + first)
    with pytest.raises(HarnessError):
        _wait(console, "never", _SHORT_S)
    guest.prints(second + b".")

    assert _wait(console, r"caf.\.") == "café."


def test_wait_searches_only_the_output_after_the_last_match(
    guest: _Guest, console: Console
) -> None:
    guest.prints("one two one three ")
    _wait(console, "two")

    assert _wait(console, r"one \w+ ") == "one three "


def test_early_line_of_a_long_burst_of_output_is_found(guest: _Guest, console: Console) -> None:
    """A wait searches all output since the last match from its beginning."""
    guest.prints("HARNESS: cloud-init has finished\r\n" + "noise\r\n" * 6_000)

    assert _wait(console, "cloud-init has finished")


def test_console_is_read_even_while_nobody_waits_for_output(
    guest: _Guest, console: Console
) -> None:
    """A guest blocks when the socket of its console is full, at some 200 KiB."""
    printing = threading.Thread(target=guest.prints, args=("x" * (1 << 19) + "END",), daemon=True)
    printing.start()

    printing.join(_LONG_S)

    assert not printing.is_alive()
    assert _wait(console, "END") == "END"


def test_only_the_end_of_too_long_console_output_is_kept(
    guest: _Guest, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.machine.channels.console._BACKLOG_BYTES", 1024)
    guest.prints("x" * 100_000 + "END")
    wait_until(lambda: console.tail().endswith("END"))

    assert _wait(console, "x*END") == "x" * 1021 + "END"


def test_removal_of_one_listener_keeps_the_other_listeners(
    guest: _Guest, console: Console
) -> None:
    first: list[bytes] = []
    second: list[bytes] = []
    with contextlib.ExitStack() as both:
        leaving = both.enter_context(contextlib.ExitStack())
        leaving.enter_context(console.tapped(first.append))
        both.enter_context(console.tapped(second.append))
        leaving.close()
        guest.prints("login:")
        _wait(console, "login:")

    assert (first, b"".join(second)) == ([], b"login:")


def test_output_in_many_short_writes_is_kept(guest: _Guest, console: Console) -> None:
    """The serial port of QEMU passes on a few bytes at a time."""
    guest.prints("FIRST\r\n")
    for number in range(1_000):
        guest.prints(f"{number}\r\n")
    guest.prints("END\r\n")

    assert _wait(console, "FIRST")


def test_fatal_console_line_ends_the_wait_early(guest: _Guest, console: Console) -> None:
    for line, failure in (
        ("Kernel panic - not syncing: VFS: Unable to mount root fs", "the kernel panicked"),
        ("You are in emergency mode. After logging in", "emergency mode"),
        ("(initramfs) ", "found no root file system"),
        ("No bootable device.", "found nothing to boot"),
    ):
        guest.prints(f"[    1.0] boot\r\n{line}\r\n")

        with pytest.raises(HarnessError, match=f"on its console, but .*{failure}") as caught:
            _wait(console, "login:")

        assert line.strip() in str(caught.value)


def test_pattern_before_a_fatal_console_line_is_found(guest: _Guest, console: Console) -> None:
    guest.prints("login: \r\nKernel panic - not syncing: late\r\n")

    assert _wait(console, "login:") == "login:"


def test_every_wait_ends_early_if_the_machine_ends(guest: _Guest, console: Console) -> None:
    guest.prints("half a boo")
    guest.ends()

    expected = (
        "Machine 'node' was expected to print 'login:' on its console, but the machine ended. "
        "The console's last lines:\nhalf a boo"
    )
    for _ in range(2):
        with pytest.raises(HarnessError, match=f"^{expected}$"):
            _wait(console, "login:")


def test_wait_ends_early_if_the_machine_ends_with_unread_input(
    guest: _Guest, console: Console
) -> None:
    """The socket then reports a reset connection instead of its end."""
    console.type(b"reboot\n")
    guest.ends()

    with pytest.raises(
        HarnessError, match=r"but the machine ended\. The console printed nothing\.$"
    ):
        _wait(console, "login:")


def test_wait_ends_at_the_first_check_that_finds_a_failure(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.machine.channels.console._CHECK_S", _SHORT_S)
    checks = iter([None, "its GPU is stuck", "it is late"])

    with pytest.raises(HarnessError, match="on its console, but its GPU is stuck"):
        console.wait_for(
            "login:",
            Deadline.after(_LONG_S),
            what="a login prompt",
            failure=lambda: next(checks),
        )


def test_wait_continues_while_other_checks_find_nothing(
    guest: _Guest, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.machine.channels.console._CHECK_S", _SHORT_S)
    checks: list[str] = []

    def prints_at_the_third_check() -> None:
        checks.append("nothing found")
        if len(checks) == 3:
            guest.prints("login: ")

    matched = console.wait_for(
        "login:", Deadline.after(_LONG_S), what="a prompt", failure=prints_at_the_third_check
    )

    assert matched == "login:"
    assert len(checks) > 3


def test_timeout_error_has_the_expectation_and_the_last_lines(
    guest: _Guest, console: Console
) -> None:
    guest.prints("x" * (64 << 10) + "".join(f"line {number}\r\n" for number in range(100)))
    _wait(console, "line 99")

    with pytest.raises(HarnessError) as caught:
        console.wait_for("login:", Deadline.after(_SHORT_S), what="a login prompt")

    message = str(caught.value)
    assert message.startswith(
        "Machine 'node' was expected to print a login prompt on its console, but the time limit passed."
    )
    assert message.endswith("line 98\nline 99")
    assert message.count("\n") == 20


def test_console_tail_contains_overwritten_text_and_lines_that_no_wait_consumed(
    guest: _Guest, console: Console
) -> None:
    guest.prints("begin\r\n10 %\r100 %\r\nready\r\n")
    _wait(console, "ready")
    guest.prints("reboot: Restarting system\r\n")
    with pytest.raises(HarnessError):
        _wait(console, "never", _SHORT_S)

    assert console.tail() == "begin\n10 %100 %\nready\nreboot: Restarting system"
    assert console.tail(1) == "reboot: Restarting system"


def test_error_for_a_silent_console_says_that_there_was_no_output(console: Console) -> None:
    assert console.tail() == "(nothing)"

    with pytest.raises(
        HarnessError, match=r"the time limit passed\. The console printed nothing\.$"
    ):
        _wait(console, "never", _SHORT_S)


def test_typed_line_reaches_the_guest(guest: _Guest, console: Console) -> None:
    console.type("ls é\n".encode())

    assert guest.reads() == "ls é\n".encode()


def test_undecodable_console_bytes_do_not_end_a_wait(guest: _Guest, console: Console) -> None:
    guest.prints(b"\xff\xfe\x00 login: ")

    assert _wait(console, "login:") == "login:"


def test_closed_console_leaves_no_thread_or_socket_and_its_thread_is_a_daemon(
    guest: _Guest,
) -> None:
    """The thread is a daemon, since an error may leave the console open."""
    before = set(threading.enumerate())
    console = Console("node", guest.ours)
    (reader,) = set(threading.enumerate()) - before

    console.close()

    assert reader.daemon
    assert not reader.is_alive()
    assert guest.ours.fileno() == -1
