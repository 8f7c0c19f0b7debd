"""The sandboxes keep code under test from changing the host."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.errors import HarnessError, RequirementError
from harness.provisioning.command import CommandResult, LocalRunner
from harness.shell.sandbox import (
    TOO_MANY_PROCESSES,
    Network,
    Sandbox,
    SandboxKind,
    check_entered,
    choose_for_user,
    choose_sandbox,
    find_refusal,
    throwaway_root,
    write_refusal,
)
from harness.shell.sandbox.root_control import RootControl
from harness.shell.sandbox.throwaway_root import CANNOT_ENTER, KERNEL_REFUSES, MARK
from suites.host.shell.running import ordinary_user, run_pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

_NOBODY = 65534


def _run(script: str, scratch: Path) -> CommandResult:
    argv = Sandbox(kind=SandboxKind.THROWAWAY, process_limit=60).argv(
        ["sh", "-c", script], cwd=scratch, scratch=scratch
    )
    return LocalRunner().run(argv, timeout_s=60)


def test_command_has_new_namespaces_and_sees_only_its_own_processes(tmp_path: Path) -> None:
    names = "pid mnt user ipc uts net"
    script = f"for n in {names}; do readlink /proc/self/ns/$n; done; echo /proc/[0-9]*; echo $PPID"

    *spaces, processes, parent = _run(script, tmp_path).stdout.splitlines()

    assert not {str(Path(f"/proc/self/ns/{n}").readlink()) for n in names.split()} & set(spaces)
    assert len(spaces) == len(names.split())
    assert "/proc/1 " in processes
    assert len(processes.split()) < 5
    assert parent == "1"


def test_first_process_of_the_sandbox_has_a_seccomp_filter_and_survives_all_signals(
    tmp_path: Path,
) -> None:
    """The command can make system calls in the name of the first process by ptrace(2)."""
    script = "for n in $(seq 64); do kill -$n 1 2>/dev/null; done; grep Seccomp: /proc/1/status"

    assert _run(script, tmp_path).stdout == "Seccomp:\t2\n"


def test_kill_of_all_processes_reaches_only_processes_in_the_sandbox(tmp_path: Path) -> None:
    script = "sleep 600 & [ $PPID = 1 ] && [ ! -e /proc/%d ] && kill -9 -1; wait $!; echo $?"

    assert _run(script % os.getpid(), tmp_path).stdout == "137\n"


_MOUNT_CGROUPS = """
    mount -t proc none /mnt; echo 9 >/mnt/sys/user/max_cgroup_namespaces
    for options in -C -Cr; do unshare $options mount -t cgroup2 none /mnt && echo mounted; done
"""


@pytest.mark.parametrize("is_ordinary", [False, True])
def test_code_cannot_mount_the_cgroups_of_the_host(
    user_folder: Path, *, is_ordinary: bool
) -> None:
    """By the cgroup of the tests, code could freeze or kill the processes of the host."""
    limit = Path("/proc/sys/user/max_cgroup_namespaces")
    before = limit.read_text()
    settings = ["cwd=/", f"staging={user_folder}/.staging", "size_mib=64", "process_limit=100"]
    program = ["/usr/bin/python3", "-I", "-S", f"{user_folder}/throwaway_root.py", *settings]
    become = _as_user() if is_ordinary else []

    result = LocalRunner().run([*become, *program, "--", "sh", "-c", _MOUNT_CGROUPS], timeout_s=60)

    assert result.stdout == ""
    assert result.stderr.count("unshare failed: No space left") == 2, result.render()
    assert limit.read_text() == before


_WITH_KEY = """
import ctypes, os, sys
keys = ctypes.CDLL(None).syscall
keys({"x86_64": 250, "aarch64": 219}[os.uname().machine], 1, None)
keys({"x86_64": 248, "aarch64": 217}[os.uname().machine], b"user", b"harness-trial", b"x", 1, -3)
os.execv(sys.argv[1], sys.argv[1:])
"""
_FIND_KEY = """
import ctypes, os
number = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
print(ctypes.CDLL(None).syscall(number, 10, -3, b"user", b"harness-trial", 0))
"""


def test_command_in_the_sandbox_cannot_find_keys_of_the_host_session_keyring(
    tmp_path: Path,
) -> None:
    """A process inherits a session keyring, and may remove the keys from it."""
    command = [sys.executable, "-I", "-S", "-c", _FIND_KEY]
    argv = Sandbox(kind=SandboxKind.THROWAWAY).argv(command, cwd=tmp_path, scratch=tmp_path)

    result = LocalRunner().run([sys.executable, "-I", "-c", _WITH_KEY, *argv], timeout_s=60)

    assert result.stdout == "-1\n", result.render()


def test_mounts_that_hide_the_host_cannot_be_unmounted(tmp_path: Path) -> None:
    script = "for m in /proc /proc/sys /sys /dev /; do umount -l $m; done; ls /proc; ls /"

    result = _run(script, tmp_path)

    assert f"\n{os.getpid()}\n" not in result.stdout
    assert result.stderr.count("umount: ") == 5


def test_code_can_open_only_harmless_devices(tmp_path: Path) -> None:
    """This includes device files outside of /dev, such as those of a chroot."""
    node = tmp_path / "node"
    with contextlib.suppress(PermissionError):
        os.mknod(node, 0o600 | stat.S_IFCHR, Path("/dev/zero").stat().st_rdev)
    script = f"""
        ls -m -w 0 /dev; cd /dev; for n in full null random tty urandom zero; do [ -c $n ] || echo $n; done
        echo piped | cat stdin fd/0; echo written >stdout; echo hidden >null; head -c 2 zero | wc -c
        echo x 2>null >full && echo no limit; [ -w pts/ptmx ] && [ ptmx -ef pts/ptmx ] || echo no ptmx; head -c 1 {node}
    """

    result = _run(script, tmp_path)

    devices = "fd, full, null, ptmx, pts, random, shm, stderr, stdin, stdout, tty, urandom, zero"
    assert result.stdout == f"{devices}\npiped\nwritten\n2\n", result.render()


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can make device files.")
def test_devices_on_a_file_system_that_cannot_be_overlaid_cannot_be_opened(
    user_folder: Path,
) -> None:
    """The kernel refuses overlays that are nested three deep, so the sandbox shows them read-only."""
    place = user_folder / "tmpfs"  # /tmp may be on an overlay
    script = f"""
        mkdir {place} && mount -t tmpfs none {place} &&
        cd {place} && mkdir a b c d && mknod a/node c 1 5 && touch a/file &&
        mount -t overlay none -o lowerdir=a:b c && mount -t overlay none -o lowerdir=c:b d && "$@"
    """
    code = f"cd {place}; touch d/new; cat d/file; head -c 1 d/node; echo >d/node"
    argv = Sandbox(kind=SandboxKind.THROWAWAY).argv(
        ["sh", "-c", code], cwd=user_folder, scratch=user_folder
    )

    result = LocalRunner().run(["unshare", "-m", "sh", "-c", script, "sh", *argv], timeout_s=60)

    assert result.stdout == ""
    assert "d/new': Read-only file system" in result.stderr, result.render()
    assert result.stderr.count("Permission denied") == 2, result.render()


@pytest.mark.parametrize(
    "name", ["a:b", "a,b", "a\\b", "a\nb", "ü b", "\udcff b", "a\u2028b", "a\xa0b"]
)
def test_mount_point_with_special_characters_in_its_name_is_writable(
    user_folder: Path, name: str
) -> None:
    odd = user_folder / name
    odd.mkdir()
    script = 'mount -t tmpfs none "$0" && touch "$0/old" && "$@" && rm "$0"/*'
    argv = Sandbox(kind=SandboxKind.THROWAWAY).argv(
        ["sh", "-c", "touch new && mv old older && ls"], cwd=odd, scratch=user_folder
    )
    options = "-m" if os.geteuid() == 0 else "-rm"

    result = LocalRunner().run(
        ["unshare", options, "sh", "-c", script, str(odd), *argv], timeout_s=60
    )

    assert result.stdout == "new\nolder\n", result.render()


@pytest.mark.parametrize(
    "script",
    [
        "mkdir -p a/b && mount -t tmpfs none a && mkdir -p a/c/d && mount -t tmpfs none a/c/d && mount -t tmpfs none a",
        "mkdir -p a/c/d && mount --bind a/c/d a/c/d && mount -t tmpfs none a && touch a/c",
        "mkdir a && mount --rbind /sys a",  # as for a chroot; /sys has mounts below it
    ],
)
def test_sandbox_starts_if_other_mounts_on_the_host_hide_a_mount(
    user_folder: Path, script: str
) -> None:
    argv = Sandbox(kind=SandboxKind.THROWAWAY).argv(
        ["sh", "-c", "touch new && ls new"], cwd=user_folder, scratch=user_folder
    )
    options = "-m" if os.geteuid() == 0 else "-rm"
    inside = f'cd "$0" && {script} && "$@"'

    result = LocalRunner().run(
        ["unshare", options, "sh", "-c", inside, str(user_folder), *argv], timeout_s=60
    )

    assert result.stdout == "new\n", result.render()


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can take a folder from the user.")
def test_project_in_a_folder_of_another_user_is_writable_in_the_throwaway_root(
    user_folder: Path,
) -> None:
    project = user_folder / "of-root/project"
    project.mkdir(parents=True)
    (project / "file").touch()
    for path in (project, project / "file"):
        os.chown(path, _NOBODY, _NOBODY)
    argv = Sandbox(kind=SandboxKind.THROWAWAY).argv(
        ["sh", "-c", "rm file && touch new ../new && ls"], cwd=project, scratch=user_folder
    )

    result = LocalRunner().run(_by_user(argv, throwaway_root, user_folder), timeout_s=60)

    assert result.stdout == "new\n", result.render()
    assert (project / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can take a folder from the user.")
def test_mount_below_a_folder_without_read_permission_is_visible_in_the_sandbox(
    user_folder: Path,
) -> None:
    """A folder of home directories may allow users to enter it, but not to list it."""
    home = user_folder / "home"
    script = f"""
        mkdir -m 711 {home} && mkdir {home}/a {home}/b && mount -t tmpfs -o mode=777 none {home}/a &&
        mkdir {home}/b/project && chown -R {_NOBODY}:{_NOBODY} {home}/b && "$@"
    """
    argv = Sandbox(kind=SandboxKind.THROWAWAY).argv(
        ["sh", "-c", f"touch {home}/a/new new && echo written"],
        cwd=home / "b/project",
        scratch=user_folder,
    )

    command = _by_user(argv, throwaway_root, user_folder)
    result = LocalRunner().run(["unshare", "-m", "sh", "-c", script, "sh", *command], timeout_s=60)

    assert result.stdout == "written\n", result.render()


@pytest.fixture
def listening() -> Iterator[list[socket.socket]]:
    """Yield two listening sockets of the host: an abstract socket and a TCP socket."""
    made = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET)]
    made[0].bind(f"\0harness-trial-{os.getpid()}")
    made[1].bind(("127.0.0.1", 0))
    for one in made:
        one.listen()
    yield made
    for one in made:
        one.close()


_CONNECT = """\
import socket, sys
for family, address in (
    (socket.AF_UNIX, "\\0harness-trial-" + sys.argv[1]), (socket.AF_INET, ("127.0.0.1", int(sys.argv[2]))),
):
    try:
        socket.socket(family).connect(address)
        print("connected")
    except OSError:
        print("refused")
with socket.create_server(("127.0.0.1", 0)) as own:
    socket.create_connection(own.getsockname())
    print("own")
"""


@pytest.mark.parametrize(
    ("network", "seen"),
    [(Network.LOOPBACK, "refused refused own"), (Network.HOST, "refused connected own")],
)
def test_sockets_of_the_host_cannot_be_connected(
    tmp_path: Path, listening: Sequence[socket.socket], network: Network, seen: str
) -> None:
    """Abstract sockets are refused even with the host's network, and other sockets without it."""
    port = str(listening[1].getsockname()[1])
    command = [sys.executable, "-I", "-S", "-c", _CONNECT, str(os.getpid()), port]
    argv = Sandbox(kind=SandboxKind.THROWAWAY, network=network).argv(
        command, cwd=tmp_path, scratch=tmp_path
    )
    if network is Network.HOST and not _has_landlock_scopes():
        seen = "connected connected own"

    result = LocalRunner().run(argv, timeout_s=60)

    assert result.stdout.split() == seen.split(), result.render()


_SOCKET = "import socket; socket.socket(int(__import__('sys').argv[1]))"


@pytest.mark.skipif(not hasattr(socket, "AF_VSOCK"), reason="Python knows no vsock here.")
def test_vsock_sockets_cannot_be_opened(tmp_path: Path) -> None:
    """A network namespace does not isolate the sockets of vsock(7)."""
    seen = {}
    for family in (socket.AF_VSOCK, socket.AF_INET, socket.AF_UNIX):
        command = [sys.executable, "-I", "-S", "-c", _SOCKET, str(int(family))]
        argv = Sandbox(kind=SandboxKind.THROWAWAY).argv(command, cwd=tmp_path, scratch=tmp_path)
        seen[family] = LocalRunner().run(argv, timeout_s=60)

    assert "Address family not supported" in seen[socket.AF_VSOCK].stderr
    assert seen[socket.AF_INET].ok, seen[socket.AF_INET].render()
    assert seen[socket.AF_UNIX].ok, seen[socket.AF_UNIX].render()


def test_io_uring_setup_is_refused(tmp_path: Path) -> None:
    code = "import ctypes; print(ctypes.CDLL(None).syscall(425, 1, bytes(120)))"
    command = [sys.executable, "-I", "-S", "-c", code]
    argv = Sandbox(kind=SandboxKind.THROWAWAY).argv(command, cwd=tmp_path, scratch=tmp_path)

    result = LocalRunner().run(argv, timeout_s=60)

    assert result.stdout == "-1\n", result.render()


def test_kernel_settings_are_read_only(tmp_path: Path) -> None:
    """Files of root in /proc belong to the host's root, including files below /proc/driver."""
    script = """
        for each in /proc/[!0-9]*; do
            [ -L "$each" ] || { [ -f "$each" ] && ! stat -c %A "$each" | grep -q w; } ||
                echo "$(stat -f -c %T "$each") $(grep -c " $each ro," /proc/self/mountinfo) $each"
        done
    """

    result = _run(script, tmp_path)

    found = [line.split() for line in result.stdout.splitlines()]
    assert ["proc", "1", "/proc/sys"] in found, result.render()
    assert [line for line in found if line[1] != "1"] == []


@pytest.mark.parametrize("network", Network)
@pytest.mark.usefixtures("listening")
def test_ordinary_user_reaches_no_socket_of_the_host(network: Network) -> None:
    """This includes a socket file that was created after the sandbox."""
    with ordinary_user() as run:
        (run.root / "late.sh").write_text('late() { python3 -c "$1" "$2" "$3"; }\n')
        (run.root / "test_late.py").write_text(
            "import socket\n"
            "def test_late(shell):\n"
            "    shell.source('late.sh')\n"
            "    shell.allow('python3')\n"
            "    shell.call('true').check()\n"
            "    late = socket.socket(socket.AF_UNIX)\n"
            f"    late.bind('{run.root}/s')\n"
            "    late.listen()\n"
            f"    code = {_CONNECT!r}.replace(chr(92) + '0harness-trial-', '{run.root}/s#')\n"
            f"    code = code.replace('sys.argv[1]', '\"\"').replace('s#', 's')\n"
            "    for each in (code, CONNECT):\n"
            f"        out = shell.call('late', each, '{os.getpid()}', '1').check().stdout\n"
            "        assert out.split() == ['refused', 'refused', 'own'], out\n"
            f"CONNECT = {_CONNECT!r}\n"
        )

        result = run_pytest(run, "test_late.py", f"--shell-network={network.value}")

    if network is Network.HOST and not _has_landlock_scopes():
        pytest.skip(
            "This kernel has no Landlock scopes, which keep abstract sockets out of reach."
        )
    assert "1 passed" in result.stdout, result.render()


@pytest.mark.usefixtures("listening")
def test_write_refusal_sandbox_blocks_connections_to_abstract_sockets_of_the_host() -> None:
    if not _has_landlock_scopes():
        pytest.skip(
            "This kernel has no Landlock scopes, which keep abstract sockets out of reach."
        )
    with ordinary_user() as run:
        (run.root / "connect.py").write_text(_CONNECT)
        (run.root / "a_spec.sh").write_text(
            f"It 'x'\nWhen call python3 connect.py {os.getpid()} 1\n"
            "The line 1 of output should equal refused\n"
            "The line 3 of output should equal own\nEnd\n"
        )

        result = run_pytest(run, "a_spec.sh", "--shell-sandbox=refuse")

    assert "1 passed" in result.stdout, result.render()


def _landlock_version() -> int:
    version: int = throwaway_root._libc.syscall(444, None, 0, 1)
    return version


def _has_landlock_scopes() -> bool:
    return _landlock_version() >= 6


def test_command_that_starts_too_many_processes_is_ended(tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 100 ]; do sleep 30 & i=$((i+1)); done; wait"

    assert _run(script, tmp_path).exit_code == TOO_MANY_PROCESSES


# --- no command runs outside of its sandbox ---------------------------------------------------

_ON_THE_HOST = """\
import sys
sys.path.insert(0, {folder!r})
import throwaway_root
{act}
"""


def _run_python(act: str) -> CommandResult:
    folder = str(Path(throwaway_root.__file__).parent)
    code = _ON_THE_HOST.format(folder=folder, act=act)
    return LocalRunner().run([sys.executable, "-I", "-c", code], timeout_s=60)


def test_sandbox_program_refuses_to_run_a_command_in_the_namespaces_of_the_host(
    tmp_path: Path,
) -> None:
    proof = tmp_path / "proof"

    result = _run_python(
        f"throwaway_root._run(['touch', '{proof}'], '/', throwaway_root._Spaces())"
    )

    assert result.exit_code == CANNOT_ENTER
    assert (
        "would have run on the host, with the host's pid, mnt, user, ipc, uts, net, root"
        in result.stderr
    )
    assert not proof.exists()


@pytest.mark.parametrize("name", ["pid", "mnt", "root directory"])
def test_command_that_shares_a_namespace_or_root_directory_with_the_host_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    host = throwaway_root._Spaces()
    host.names = {each: "another" for each in host.names if each != name} | (
        {name: host.names[name]} if name in host.names else {}
    )
    if name != "root directory":
        host.root = (0, 0)
    monkeypatch.setattr("os.getppid", lambda: 1)
    monkeypatch.setattr("os.getpid", lambda: 3)
    monkeypatch.setattr(throwaway_root, "_SPACE_NAMES", tuple(host.names))

    with pytest.raises(PermissionError, match=f"with the host's {name}$"):
        throwaway_root._refuse_to_run_on(host)


def test_unshare_that_reports_success_without_new_namespaces_is_detected(tmp_path: Path) -> None:
    """The program notices this before it mounts anything."""
    proof = tmp_path / "proof"

    result = _run_python(
        "throwaway_root._libc.unshare = lambda flags: 0\n"
        "throwaway_root._enter_user_space = lambda: None\n"
        "throwaway_root._mount = lambda *_: throwaway_root.os.abort()\n"
        f"sys.argv = ['', 'staging={tmp_path}', 'cwd=/', '--', 'touch', '{proof}']\n"
        "sys.exit(throwaway_root.main())"
    )

    assert result.exit_code == CANNOT_ENTER, result.render()
    assert "the PID namespace is not a new one" in result.stderr
    assert not proof.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="what root is refused, only root can see")
def test_write_refusal_sandbox_does_not_run_as_root(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    argv = Sandbox(kind=SandboxKind.REFUSE).argv(
        ["touch", str(proof)], cwd=tmp_path, scratch=tmp_path
    )

    result = LocalRunner().run(argv, timeout_s=60)

    assert result.exit_code == CANNOT_ENTER
    assert not proof.exists()


def test_shell_that_could_not_enter_its_sandbox_raises_harness_error() -> None:
    with pytest.raises(RequirementError, match=r"refuses here \(unshare: no\); run the tests as"):
        check_entered(KERNEL_REFUSES, f"{MARK} unshare: no\n")
    with pytest.raises(HarnessError, match=r"could not be entered: no room. Nothing was run"):
        check_entered(CANNOT_ENTER, f"{MARK} no room\n")
    check_entered(CANNOT_ENTER, "code under test ended so\n")
    check_entered(3, f"{MARK} said by the code under test\n")


# --- the choice of the sandbox ----------------------------------------------------------------


class _Kernel:
    """A fake runner for the probes of sandboxes; `answers` has the result of each kind of probe."""

    def __init__(self, **answers: CommandResult) -> None:
        self.answers = answers

    def run(
        self,
        argv: object,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: object = None,
    ) -> CommandResult:
        del timeout_s, stdin, env
        programs = {"throwaway": "/throwaway_root.py", "refuse": "/write_refusal.py"}
        kind = next(name for name in self.answers if programs[name] in str(argv))
        return self.answers[kind]


def _answer(exit_code: int = 0, stderr: str = "", *, timed_out: bool = False) -> CommandResult:
    return CommandResult(
        argv=("probe",), exit_code=exit_code, stdout="", stderr=stderr, timed_out=timed_out
    )


_REFUSED = _answer(KERNEL_REFUSES, f"{MARK} unshare: Operation not permitted\n")
_SLOW = _answer(124, timed_out=True)


def test_user_gets_the_throwaway_root_if_the_kernel_grants_it() -> None:
    for network in Network:
        chosen = choose_for_user(_Kernel(throwaway=_answer()), network)
        assert (chosen.kind, chosen.network) == (SandboxKind.THROWAWAY, network)


def test_user_without_namespaces_gets_the_write_refusal_sandbox_and_a_warning() -> None:
    chosen = choose_for_user(_Kernel(throwaway=_REFUSED, refuse=_answer()))

    assert chosen.kind is SandboxKind.REFUSE
    assert "(unshare: Operation not permitted)" in chosen.why
    assert "could still signal your other processes" in chosen.why
    assert "change the modes and times of your files elsewhere" in chosen.why


def test_run_is_refused_on_a_host_that_allows_no_sandbox() -> None:
    with pytest.raises(RequirementError, match="--shell-sandbox=off"):
        choose_for_user(_Kernel(throwaway=_REFUSED, refuse=_REFUSED))


@pytest.mark.parametrize(
    "answer",
    [
        _SLOW,
        _answer(1, "no room on device"),
        _answer(CANNOT_ENTER, f"{MARK} no room on device"),
        _answer(KERNEL_REFUSES, "the command's own words"),
    ],
)
def test_failed_probe_of_the_throwaway_root_raises_an_error(
    answer: CommandResult,
) -> None:
    with pytest.raises(HarnessError, match=r"'throwaway' (failed|took longer)"):
        choose_for_user(_Kernel(throwaway=answer, refuse=_answer()))


def test_probe_that_deleted_a_file_of_the_host_raises_a_harness_error() -> None:
    class Leaking(_Kernel):
        @override
        def run(
            self,
            argv: object,
            *,
            timeout_s: float,
            stdin: str | None = None,
            env: object = None,
        ) -> CommandResult:
            assert isinstance(argv, tuple)
            (Path(argv[-1]) / "file").unlink()
            return _answer()

    with pytest.raises(HarnessError, match="reached the host"):
        find_refusal(SandboxKind.THROWAWAY, Leaking())


def test_root_gets_the_throwaway_root_without_a_probe() -> None:
    assert choose_sandbox("auto", is_root=True).kind is SandboxKind.THROWAWAY
    assert choose_sandbox("throwaway", is_root=True).kind is SandboxKind.THROWAWAY
    with pytest.raises(RequirementError, match="not enough for root"):
        choose_sandbox("refuse", is_root=True)


def test_root_control_raises_a_harness_error_if_the_throwaway_root_fails_or_ends() -> None:
    control = RootControl()
    control.other_end.sendall(b"77\ndone\nno space\n")

    assert control.first_process == 77
    control.renew()
    with pytest.raises(HarnessError, match="can't do 'fake /sys/module': no space"):
        control.fake(Path("/sys/module"))
    control.other_end.shutdown(socket.SHUT_WR)
    with pytest.raises(HarnessError, match="does not answer: it has ended"):
        control.renew()
    control.close()


# --- the sandbox of an ordinary user ----------------------------------------------------------


def _as_user() -> list[str]:
    """Return the command prefix that changes from root to an ordinary user."""
    become = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    return become if os.geteuid() == 0 else []


def _by_user(argv: Sequence[str], program: ModuleType, folder: Path) -> list[str]:
    """Return the command of a sandbox for an ordinary user, who may not be able to read the project."""
    own = str(shutil.copy(str(program.__file__), folder))
    return [
        *_as_user(),
        "/usr/bin/python3",
        *(word.replace(str(program.__file__), own) for word in argv[1:]),
    ]


@pytest.fixture
def user_folder() -> Iterator[Path]:
    """Return a folder of an ordinary user, with a copy of the sandbox program."""
    with tempfile.TemporaryDirectory(prefix="harness-user.", dir="/tmp") as folder:
        shutil.copy(str(throwaway_root.__file__), folder)
        (Path(folder) / ".staging").mkdir()
        if os.geteuid() == 0:
            for path in (Path(folder), Path(folder) / ".staging"):
                os.chown(path, _NOBODY, _NOBODY)
        yield Path(folder)


_CALLER = """\
umask 027; ulimit -Sn 400; ulimit -Sc 0; exec 7</dev/null
exec nice -n 3 env -i "$@"
"""
_STATE = """\
umask; ulimit -a; nice; pwd; env | sort; (cd /proc/self/fd && echo *)
read -r pid comm state parent group session terminal rest </proc/self/stat
echo "leads its session: $((pid == session)), terminal: $terminal"
"""


@pytest.mark.parametrize(
    ("program", "is_ordinary"),
    [(throwaway_root, False), (throwaway_root, True), (write_refusal, True)],
)
def test_command_inherits_the_same_process_attributes_as_without_a_sandbox(
    user_folder: Path, program: ModuleType, *, is_ordinary: bool
) -> None:
    """The attributes are umask, limits, niceness, environment, descriptors and signal handling."""
    path = Path(shutil.copy(str(program.__file__), user_folder))
    settings = ["cwd=/usr", f"staging={user_folder}/.staging", "size_mib=64", "process_limit=100"]
    sandbox = ["/usr/bin/python3", "-I", "-S", str(path), *settings, "--"]
    ignoring = "trap '' HUP INT QUIT PIPE TERM USR1 XFSZ CHLD\n"

    def state(ignored: str, cwd: str, *words: str) -> str:
        env = ["-C", cwd, "PATH=/usr/bin:/bin", "LC_ALL=C", "A=b c"]
        become = _as_user() if is_ordinary else []
        # pytest may ignore signals, since it may have been started as a background job
        argv = [*become, "env", "--default-signal", "sh", "-c", ignored + _CALLER, "sh", *env]
        # a shell blocks no signal, whatever signal mask it inherits
        signals = ["env", "--list-signal-handling"]
        result = LocalRunner().run([*argv, *words, *signals, "sh", "-c", _STATE], timeout_s=60)
        return result.check("the command").stdout + result.stderr

    assert state(ignoring, "/", *sandbox) == state("", "/usr")


def test_ordinary_user_can_change_system_directories_in_the_throwaway_root(
    user_folder: Path,
) -> None:
    script = (
        "find /etc /opt /run /srv /usr/local /var -maxdepth 2 -type d -perm -5 |"
        " while read -r d; do mkdir $d/harness-trial || exit; done &&"
        " echo b >>/etc/hosts && tail -n 1 /etc/hosts &&"
        " rm -r /etc/systemd/system && [ ! -e /etc/systemd/system ] && echo gone"
    )

    result = LocalRunner().run(_as_user_in_the_root(user_folder, script), timeout_s=60)

    assert result.stdout == "b\ngone\n", result.render()
    assert not Path("/opt/harness-trial").exists()


def test_ordinary_user_sees_the_files_of_the_host(user_folder: Path) -> None:
    """Links, modes and contents are the same, even in directories that the sandbox makes anew."""
    script = (
        "cd /etc && { find . -printf '%p %y %m %l\\n' -type f -exec cksum {} +;"
        " find /opt /usr/local -maxdepth 3 -printf '%p %y %m %l\\n'; } | sort"
    )
    of_the_host = LocalRunner().run([*_as_user(), "sh", "-c", script], timeout_s=60)

    result = LocalRunner().run(_as_user_in_the_root(user_folder, script), timeout_s=60)

    assert result.stdout == of_the_host.stdout


def _as_user_in_the_root(folder: Path, script: str) -> list[str]:
    settings = ["cwd=/", f"staging={folder}/.staging", "size_mib=64", "process_limit=100"]
    program = ["/usr/bin/python3", "-I", "-S", f"{folder}/throwaway_root.py"]
    return [*_as_user(), *program, *settings, "--", "sh", "-c", script]


_ACTS = """\
import os, socket, sys
for folder in sys.argv[1:]:
    done = []
    for name, act in {
        "write": lambda: open("file", "a").write("x"),
        "truncate": lambda: os.truncate("file", 0),
        "make": lambda: open("new", "w").close(),
        "make a folder": lambda: os.mkdir("new-folder"),
        "link": lambda: os.link("new", "new-folder/new"),
        "rename": lambda: os.rename("file", "new-folder/file"),
        "remove": lambda: os.unlink("new"),
        "remove a folder": lambda: os.rmdir("folder"),
        "make a link": lambda: os.symlink("x", "link"),
        "make a pipe": lambda: os.mkfifo("pipe"),
        "make a socket": lambda: socket.socket(socket.AF_UNIX).bind("socket"),
        "write to a device": lambda: open("/dev/null", "w").write("x"),
    }.items():
        os.chdir(folder)
        try:
            act()
            done.append(name)
        except OSError:
            pass
    print(os.path.basename(folder), len(done), *done, sep=", ")
"""


def test_write_refusal_sandbox_allows_writes_only_in_the_folders_of_the_test(
    user_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if _landlock_version() < 3:
        pytest.skip("This kernel does not refuse all writes: it has no Landlock, or an old one.")
    folders = [user_folder / name for name in ("project", "scratch", "temporary", "elsewhere")]
    for folder in folders:
        (folder / "folder").mkdir(parents=True)
        (folder / "file").touch()
    for path in user_folder.rglob("*"):
        shutil.chown(path, user_folder.stat().st_uid, user_folder.stat().st_gid)
    monkeypatch.setattr("tempfile.tempdir", str(folders[2]))
    command = ["/usr/bin/python3", "-I", "-S", "-c", _ACTS, *map(str, folders)]
    argv = Sandbox(kind=SandboxKind.REFUSE).argv(command, cwd=folders[0], scratch=folders[1])
    shutil.chown(folders[1] / ".staging", user_folder.stat().st_uid)

    result = LocalRunner().run(_by_user(argv, write_refusal, user_folder), timeout_s=60)

    lines = result.check("the command").stdout.splitlines()
    assert [line.split(", ")[:2] for line in lines[:3]] == [[f.name, "12"] for f in folders[:3]]
    assert lines[3:] == ["elsewhere, 1, write to a device"]
