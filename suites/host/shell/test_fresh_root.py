"""Tests share a shell that was sourced once, and each has a fresh root."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.shell.sandbox import Sandbox, SandboxKind
from harness.shell.testing import Shell
from harness.shell.warm_shell.pool import WarmShellPool
from suites.host.shell.running import run_pytest, this_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SCRIPT = """\
mkdir -p /etc/sourced; echo kept >/etc/sourced/file
rm -f /usr/local/bin/dpkg; printf '#!/bin/sh\necho own\n' >/usr/local/bin/dpkg; chmod +x /usr/local/bin/dpkg
NUMBER=$RANDOM$RANDOM
cd /etc/sourced
"""


@pytest.fixture
def new_shell(tmp_path: Path) -> Iterator[Callable[[], Shell]]:
    """Yield a function that returns a shell as in the next test, with the same pool and script."""
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


def test_next_test_keeps_files_of_sourcing_but_no_changes_of_the_previous_test(
    new_shell: Callable[[], Shell],
) -> None:
    """Sourcing replaces a denied command by a file, which stays. Directories keep their modes."""
    folders = [Path("/dev/shm"), Path("/usr/local")]  # noqa: S108 - of the host
    modes = "".join(f"{folder.stat().st_mode & 0o7777:o}\n" for folder in folders)
    numbers = []
    changes = [
        "echo changed >file", "rm -r /etc/sourced", "touch /etc/new", "touch /dev/new",
        "touch /dev/shm/new", "mkdir /usr/local/new", "chmod 700 /usr/local", "true",
    ]  # fmt: skip
    for change in [*changes, "; ".join(changes), ""]:
        shell = new_shell()
        result = shell.evaluate(
            "cat /etc/sourced/file file\nls /etc/new /dev/new /usr/local/new /dev/shm/new\n"
            "/usr/local/bin/dpkg; stat -c %a /dev/shm /usr/local\n"
            f"echo $PWD ${{OLDPWD:-none}}\n{change}"
        )
        assert result.stdout.startswith(f"kept\nkept\nown\n{modes}/etc/sourced "), result.streams()
        numbers.append(result.variable("NUMBER"))
        shell.finish()

    assert len(set(numbers)) == 1, "the script was sourced again"


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user gets an overlay a directory")
def test_root_user_gets_one_overlay_for_etc_and_usr() -> None:
    """With an overlay for each directory, each test would wait 20 ms for its root."""
    disk = Path("/").stat().st_dev
    if any(Path(place).stat().st_dev != disk for place in ("/etc", "/usr", "/var/cache")):
        pytest.skip("'/etc', '/usr' or '/var/cache' is a file system of its own on this host")
    with tempfile.TemporaryDirectory(dir="/var/cache", prefix="harness-test.") as name:
        pool = WarmShellPool(
            cwd=Path(name), scratch=Path(name), sandbox=Sandbox(kind=SandboxKind.THROWAWAY)
        )
        for _ in range(2):
            shell = Shell(pool, virtual=True, timeout_s=60)
            result = shell.evaluate("ln /etc/passwd /usr/linked")
            shell.finish()
            assert result.status == 0, result.streams()
        pool.close()


def test_processes_of_a_test_end_when_the_test_ends(new_shell: Callable[[], Shell]) -> None:
    shell = new_shell()
    shell.evaluate("setsid /bin/sleep 1000 & touch /etc/new")
    shell.finish()

    running = new_shell().evaluate("ps -e -o comm= | grep -c sleep").stdout

    assert running == "0\n"


def test_path_variable_may_have_directories_with_blanks(
    new_shell: Callable[[], Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/mnt/c/Program Files/*:/usr/bin:/bin")
    shell = new_shell()

    assert ":/mnt/c/Program Files/*:/usr/bin:/bin:" in shell.evaluate('echo "$PATH"').stdout
    assert shell.evaluate("ls -d /").stdout == "/\n"


def test_code_under_test_has_no_access_to_the_control_socket(
    new_shell: Callable[[], Shell],
) -> None:
    """If code could answer, a test could pass its root on to the next test."""
    shell = new_shell()

    assert "socket:" not in shell.evaluate("readlink /proc/[0-9]*/fd/*").stdout


def test_host_socket_is_hidden_in_each_new_root(
    new_shell: Callable[[], Shell], host_socket: Path
) -> None:
    for _ in range(2):
        shell = new_shell()
        assert shell.evaluate(f"touch /etc/new; test -S {host_socket}").status == 1
        shell.finish()
    assert host_socket.is_socket()


def test_fake_kernel_file_does_not_exist_in_the_next_test(
    new_shell: Callable[[], Shell],
) -> None:
    """Fake each file alone, since other changes also renew the root; then fake all files."""
    paths = ["/proc/cmdline", "/proc/sys/gpu/version", "/proc/sys/kernel/osrelease",
             "/proc/driver/gpu/version", "/sys/module/gpu/version", "/sys/class/gpu/model"]  # fmt: skip
    show = f"for file in {' '.join(paths)}; do cat $file 2>/dev/null || echo none; done; ls -d /proc/sys/vm"
    shown = []
    for faked in (paths[:0], *([path] for path in paths), paths, paths):
        shell = new_shell()
        before = shell.evaluate(show)
        for path in faked:
            shell.write(path, "faked\n")
        after = shell.evaluate(show).stdout
        assert after.split("\n").count("faked") == len(faked)
        assert after.endswith("/proc/sys/vm\n"), "the other directories are gone"
        shown.append((before.stdout, before.variable("NUMBER")))
        shell.finish()

    assert len(set(shown)) == 1, shown


def test_kernel_directories_stay_read_only_despite_a_remount(
    new_shell: Callable[[], Shell],
) -> None:
    for _ in range(2):
        shell = new_shell()
        shell.allow("mount")
        result = shell.evaluate(
            "touch /etc/new; for place in /sys /proc/sys; do\n"
            "  mount -o remount,bind,rw $place; touch $place/kernel; echo $?; done"
        )
        assert result.stdout == "1\n1\n", result.streams()
        shell.finish()


def test_next_test_does_not_see_a_mount_of_the_previous_test(
    new_shell: Callable[[], Shell],
) -> None:
    shell = new_shell()
    shell.allow("mount")
    shell.evaluate("mount -t tmpfs none /proc/fs && touch /proc/fs/here /etc/new").check()
    shell.finish()

    assert new_shell().evaluate("test -e /proc/fs/here").status == 1


@pytest.mark.parametrize("path", ["/etc", "/proc/../etc", "/sys/module\nfake /etc"])
def test_file_outside_proc_and_sys_cannot_be_faked(
    new_shell: Callable[[], Shell], path: str
) -> None:
    """A process that sees the host's files makes the copy, so it must refuse other paths."""
    shell = new_shell()
    shell.evaluate("true").check()

    with pytest.raises(HarnessError, match=r"not below /proc or /sys|has more than one line"):
        shell.warm_shell.fake(Path(path))


@pytest.mark.parametrize("target", ["/dev/null", "/proc/sys/vm/swappiness", "/srv/pipe", "/srv"])
def test_write_through_a_link_to_a_device_or_kernel_setting_is_refused(
    new_shell: Callable[[], Shell], target: str
) -> None:
    """A device file in the root leads to the host's device."""
    before = Path("/dev/null").stat().st_mode
    shell = new_shell()
    shell.evaluate(f"mkdir -p /srv; mkfifo /srv/pipe; ln -s {target} /srv/link").check()

    with pytest.raises(HarnessError, match=r"can't be written in the throw-away root"):
        shell.files.write("/srv/link", b"x", 0o600)

    assert Path("/dev/null").stat().st_mode == before


def test_link_in_place_of_a_socket_folder_does_not_change_the_host_socket(
    tmp_path: Path, host_socket: Path
) -> None:
    """A process outside of the root hides sockets; sourcing may have put links in their place."""
    folder = host_socket.parent
    script = tmp_path / "script.sh"
    script.write_text(f"rm -r {folder}; ln -s {folder} {folder}\n")
    pool = WarmShellPool(
        cwd=tmp_path, scratch=tmp_path, sandbox=Sandbox(kind=SandboxKind.THROWAWAY)
    )

    for _ in range(3):
        shell = Shell(pool, virtual=True, timeout_s=60)
        shell.source(script)
        shell.evaluate("touch /etc/new").check()
        shell.finish()
    pool.close()

    assert host_socket.is_socket()


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user can't mount a file")
def test_link_in_place_of_a_mounted_file_does_not_change_the_host_file() -> None:
    """Containers have mounted files, such as /etc/resolv.conf."""
    with this_user("/var") as run:
        for name in ("file", "mounted", "victim"):
            (run.root / name).write_text(name)
        (run.root / "source.sh").write_text(
            f"rm {run.root}/mounted; ln -s {run.root}/victim {run.root}/mounted\n"
        )
        (run.root / "test_a.py").write_text(
            "def test_a(shell):\n    shell.source('source.sh')\n    shell.evaluate('touch /a').check()\n"
            "def test_b(shell):\n    shell.source('source.sh')\n    shell.evaluate('touch /a').check()\n"
        )
        mount = 'mount --bind file mounted && exec "$@"'
        start = ("unshare", "--mount", "sh", "-c", mount, "sh", *run.start)

        result = run_pytest(replace(run, start=start), "test_a.py")

        assert "2 passed" in result.stdout, result.render()
        assert (run.root / "victim").read_text() == "victim"
