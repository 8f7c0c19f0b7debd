"""Tests share a shell that was sourced once, and each has a fresh root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.shell.sandbox import Sandbox, SandboxKind
from harness.shell.testing import Shell
from harness.shell.warm_shell.pool import WarmShellPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_SCRIPT = """\
mkdir -p /etc/sourced; echo kept >/etc/sourced/file
NUMBER=$RANDOM$RANDOM
cd /etc/sourced
"""


@pytest.fixture
def new_shell(tmp_path: Path) -> Iterator[Callable[[], Shell]]:
    """Give what begins a test with a pool of its own; all these tests use the same script."""
    script = tmp_path / "script.sh"
    script.write_text(_SCRIPT)
    pool = WarmShellPool(
        cwd=tmp_path, scratch=tmp_path, sandbox=Sandbox(kind=SandboxKind.THROWAWAY)
    )

    begun: list[Shell] = []

    def begin() -> Shell:
        shell = Shell(pool, virtual=True, timeout_s=60)
        begun.append(shell)
        shell.source(script)
        return shell

    yield begin
    for shell in begun:
        shell.finish()
    pool.close()


def test_next_test_has_what_sourcing_left_and_no_more(new_shell: Callable[[], Shell]) -> None:
    numbers = []
    for _ in range(3):
        shell = new_shell()
        result = shell.evaluate(
            "cat /etc/sourced/file file\nls /etc/new /dev/new /usr/local/new /dev/shm/new\n"
            "echo $PWD ${OLDPWD:-none}\n"
            "echo changed >file; rm -r /etc/sourced; touch /etc/new /dev/new /dev/shm/new\n"
            "mkdir -p /usr/local/new"
        )
        assert result.stdout.startswith("kept\nkept\n/etc/sourced "), result.streams()
        numbers.append(result.variable("NUMBER"))
        shell.finish()

    assert len(set(numbers)) == 1, "the script was sourced again"


def test_processes_of_a_test_end_with_it(new_shell: Callable[[], Shell]) -> None:
    shell = new_shell()
    shell.evaluate("setsid /bin/sleep 1000 & touch /etc/new")
    shell.finish()

    running = new_shell().evaluate("ps -e -o comm= | grep -c sleep").stdout

    assert running == "0\n"


def test_socket_of_the_host_stays_hidden(
    new_shell: Callable[[], Shell], host_socket: Path
) -> None:
    for _ in range(2):
        shell = new_shell()
        assert shell.evaluate(f"touch /etc/new; test -S {host_socket}").status == 1
        shell.finish()
    assert host_socket.is_socket()


def test_kernel_files_stay_read_only(new_shell: Callable[[], Shell]) -> None:
    for _ in range(2):
        shell = new_shell()
        shell.allow("mount")
        result = shell.evaluate(
            "touch /etc/new; for place in /sys /proc/sys; do\n"
            "  mount -o remount,bind,rw $place; touch $place/kernel; echo $?; done"
        )
        assert result.stdout == "1\n1\n", result.streams()
        shell.finish()


def test_mount_of_one_test_does_not_reach_the_next(new_shell: Callable[[], Shell]) -> None:
    shell = new_shell()
    shell.allow("mount")
    shell.evaluate("mount -t tmpfs none /proc/fs && touch /proc/fs/here /etc/new").check()
    shell.finish()

    assert new_shell().evaluate("test -e /proc/fs/here").status == 1
