"""Runs one command in a throw-away root; a program of its own, standard library only.

Usage: sandbox_enter.py SETTINGS COMMAND [ARGUMENT…], with the settings as JSON.

The command sees the host's files through overlays whose upper layers live in memory and go with
it; its own process, IPC and host-name spaces; few devices; `/sys` and `/proc/sys` read-only; no
socket file of the host. It owns none of the host's capabilities, even when root starts it.
Process 1 of its space is this program: when it ends, the kernel kills what is left, so nothing
survives, not even a fork storm. Just before the command begins, its own process looks whether all
that is so, and else refuses: code under test that runs `kill -9 -1` must never find the host.
Sources: user_namespaces(7), mount_namespaces(7), overlayfs.rst.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import stat
import sys
from pathlib import Path
from typing import NoReturn

CANNOT_ENTER = 251
TOO_MANY_PROCESSES = 250
KERNEL_REFUSES = 249
MARK = "harness sandbox:"

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_SPACES = _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWUTS
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_MOUNT_SETATTR = 442
_KERNELS_OWN = """
    autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl
    hugetlbfs mqueue nsfs proc pstore rpc_pipefs securityfs sysfs tracefs
"""
_NO_OVERLAY = frozenset(_KERNELS_OWN.split())
_COPIED_BYTES = 1 << 20
_WRITTEN = ("/etc", "/opt", "/run", "/srv", "/usr/local", "/var")
_DEPTH = 6
_CONFIGURATION_BYTES = 1 << 16
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SPECIAL = ("/proc", "/sys", "/dev")
_PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "latency_stats")
_PROCESS_LOOK_S = 0.1
_DESCRIPTORS = 4096
_SPACE_NAMES = ("pid", "mnt", "user", "ipc", "uts")
# from user_namespaces(7) and unshare(2): no permission, no support, a limit of 0
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.ENOSPC, errno.EUSERS)

_libc = ctypes.CDLL(None, use_errno=True)


def _call(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _mount(source: str, target: Path | str, kind: str, flags: int, data: str = "") -> None:
    status = _libc.mount(
        source.encode(), str(target).encode(), kind.encode(), flags, data.encode() or None
    )
    _call(status, f"mount {kind or 'bind'} on {target}")


def _die_with_parent() -> None:
    _call(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _expect_alive(pipe: int) -> None:
    """Raise OSError where the parent, which holds the pipe's other end, died before it mattered."""
    if select.select([pipe], [], [], 0)[0]:
        raise OSError("the parent process has ended")


def _enter_user_space() -> None:
    """As an ordinary user: own all the new spaces, as root of nothing but oneself."""
    uid, gid = os.geteuid(), os.getegid()
    _call(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWPID | _SPACES), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    _die_with_parent()


def _drop_root() -> None:
    """As root: keep the ids, every one mapped to itself, but no capability of the host's."""
    ready_read, ready_write = os.pipe()
    target = os.getpid()
    mapper = os.fork()
    if mapper == 0:
        os.close(ready_write)
        os.read(ready_read, 1)
        for name in ("uid_map", "gid_map"):
            first, below, count = Path(f"/proc/self/{name}").read_text().split()[:3]
            whole = f"{first} {first} {count}" if below.isdigit() else ""
            Path(f"/proc/{target}/{name}").write_text(whole)
        os._exit(0)
    unshared = _libc.unshare(_CLONE_NEWUSER | _SPACES)
    number = ctypes.get_errno()
    os.close(ready_write)
    _, status = os.waitpid(mapper, 0)
    os.close(ready_read)
    ctypes.set_errno(number)
    _call(unshared, "unshare")
    if status:
        raise OSError("the ids could not be mapped")
    _die_with_parent()


def _mount_points() -> list[tuple[Path, str]]:
    """Return the host's mount points below the root with their kinds, outer ones first."""
    found: dict[Path, str] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        raw = left.split()[4]
        name = raw.encode().decode("unicode_escape") if "\\" in raw else raw
        found[Path(name)] = right.split()[0]
    return sorted(found.items())


def _build_root(staging: Path, size_mib: int, *, is_root: bool) -> Path:
    """Assemble the new root from overlays.

    Root lays one over `/` and one over each mount below it. An ordinary user, and root inside
    another sandbox, may not take a layer that would show what a mount hides; there a directory
    with mounts in it is made anew, and its entries are layered one by one. A file system that
    allows no layer is shown read-only.
    """
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    mounts = {p: k for p, k in _mount_points() if not _is_below(p, str(staging), *_SPECIAL)}
    _mount("tmpfs", staging, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size_mib}m,mode=755")
    options = _overlay_options(staging)
    if options is None:  # before Linux 6.6 a tmpfs keeps no attributes of users
        _call(_libc.umount2(str(staging).encode(), 0), "umount")
        options = _overlay_options(staging)
    if options is None:
        raise OSError(
            f"the file system of {staging} keeps no attributes; set TMPDIR to one that does"
        )
    root = staging / "root"
    root.mkdir()
    if is_root and _overlay(Path("/"), root, staging / "layer", options):
        layers = _Layers(staging, mounts, options, descend=False)
        for point in sorted(mounts):
            if point != Path("/"):
                layers.add(point, root / point.relative_to("/"))
    else:
        _mount(str(root), root, "", _MS_BIND)
        layers = _Layers(staging, mounts, options, descend=True)
        for entry in sorted(Path("/").iterdir()):
            if str(entry) not in _SPECIAL:
                layers.add(entry, root / entry.name)
    for name in _SPECIAL:
        (root / name[1:]).mkdir(exist_ok=True)
    _build_dev(root / "dev")
    layers.add(Path("/dev/shm"), root / "dev/shm")  # noqa: S108 - people keep projects there
    # an ordinary user may mount a `/proc` only where the whole of another is seen
    for name in ("/sys",) if is_root else ("/sys", "/proc"):
        _mount(name, root / name[1:], "", _MS_BIND | _MS_REC)
    _make_read_only(root / "sys")
    return root


class _Layers:
    def __init__(
        self, staging: Path, mounts: dict[Path, str], options: str, *, descend: bool
    ) -> None:
        self.staging = staging
        self.mounts = mounts
        self.options = options
        self.descend = descend
        self.count = 0

    def add(self, source: Path, target: Path) -> None:
        """Make what is at `source` appear at `target`, open to writes that go nowhere."""
        if source == self.staging:
            return
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_file():
            self._add_file(source, target)
        elif source.is_dir() and self.mounts.get(source) not in _NO_OVERLAY:
            status = source.stat()
            target.mkdir(exist_ok=True)
            target.chmod(status.st_mode & 0o7777)
            with contextlib.suppress(OSError):
                os.chown(target, status.st_uid, status.st_gid)
            if self.descend and any(source in point.parents for point in self.mounts):
                with contextlib.suppress(PermissionError):
                    for entry in sorted(source.iterdir()):
                        self.add(entry, target / entry.name)
                return
            self.count += 1
            layer = self.staging / f"layer{self.count}"
            if not _overlay(source, target, layer, self.options, is_ours=self.descend):
                _mount(str(source), target, "", _MS_BIND | _MS_REC)
                _make_read_only(target)

    def _add_file(self, source: Path, target: Path) -> None:
        target.touch()
        try:
            if source.stat().st_size > _COPIED_BYTES:
                _mount(str(source), target, "", _MS_BIND)
                _make_read_only(target)
            else:
                target.write_bytes(source.read_bytes())
                target.chmod(source.stat().st_mode & 0o7777)
        except OSError:
            return


def _bound_sockets() -> list[str]:
    """Return the paths at which this host's processes listen, or did so."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    return sorted({fields[7] for line in lines if len(fields := line.split(None, 7)) == 8})


def _cover(root: Path, sockets: list[str]) -> None:
    """Hide socket files: a daemon behind one (systemd, a container engine) acts on the host."""
    for path in sockets:
        place = root / path.lstrip("/")
        with contextlib.suppress(OSError):
            if path.startswith("/") and place.is_socket():
                _mount(str(root / "dev/null"), place, "", _MS_BIND)


def _is_below(path: Path, *places: str) -> bool:
    return any(str(path) == place or str(path).startswith(place + "/") for place in places)


def _overlay_options(staging: Path) -> str | None:
    """Return how an upper layer there marks deletions; None where it can't, and would fail."""
    for attribute, options in (
        ("trusted.overlay.trial", ""),
        ("user.overlay.trial", ",userxattr"),
    ):
        with contextlib.suppress(OSError):
            os.setxattr(staging, attribute, b"y")
            return options
    return None


def _make_ours(lower: Path, upper: Path) -> None:
    """Prepare an ordinary user's upper layer, so that code may write where root's code would.

    A directory that is in both layers has the owner of the upper one.
    """
    for place in map(Path, _WRITTEN):
        if _is_below(lower, str(place)):
            _take(lower, upper, _DEPTH)
        elif _is_below(place, str(lower)):
            inside = upper / place.relative_to(lower)
            inside.mkdir(parents=True, exist_ok=True)
            _take(place, inside, _DEPTH)


def _take(lower: Path, upper: Path, depth: int) -> None:
    """Make the directories below `lower` anew in `upper`; copy what is configuration."""
    with contextlib.suppress(OSError), os.scandir(lower) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                own = upper / entry.name
                if stat.S_ISDIR(status.st_mode) and depth:
                    own.mkdir()
                    own.chmod(status.st_mode & 0o7777)
                    _take(lower / entry.name, own, depth - 1)
                elif stat.S_ISREG(status.st_mode) and _is_configuration(entry.path, status):
                    own.write_bytes(Path(entry.path).read_bytes())
                    own.chmod(status.st_mode & 0o7777)


def _is_configuration(path: str, status: os.stat_result) -> bool:
    return path.startswith("/etc/") and status.st_size <= _CONFIGURATION_BYTES


def _overlay(
    lower: Path, target: Path, layer: Path, options: str, *, is_ours: bool = False
) -> bool:
    """Lay an upper layer over `lower` at `target`; return whether the kernel let us."""
    upper, work = layer / "upper", layer / "work"
    upper.mkdir(parents=True)
    work.mkdir()
    status = lower.stat()
    upper.chmod(status.st_mode & 0o7777)
    with contextlib.suppress(OSError):
        os.chown(upper, status.st_uid, status.st_gid)
    if is_ours:
        _make_ours(lower, upper)
    if any(character in str(lower) for character in ":,\\"):
        return False
    places = f"lowerdir={lower},upperdir={upper},workdir={work}"
    try:
        _mount("overlay", target, "overlay", 0, places + options)
    except OSError:
        return False
    with contextlib.suppress(OSError):  # so that an ordinary user can remove it from a disk
        (work / "work").chmod(0o700)
    return True


def _make_read_only(target: Path) -> None:
    attributes = (ctypes.c_uint64 * 4)(_MS_RDONLY, 0, 0, 0)
    status = _libc.syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, str(target).encode(), _AT_RECURSIVE, attributes, 32
    )
    _call(status, f"make {target} read-only")


def _build_dev(dev: Path) -> None:
    _mount("tmpfs", dev, "tmpfs", _MS_NOSUID, "size=64m,mode=755")
    for name in _DEVICES:
        (dev / name).touch()
        with contextlib.suppress(OSError):
            _mount(f"/dev/{name}", dev / name, "", _MS_BIND)
    (dev / "pts").mkdir()
    with contextlib.suppress(OSError):
        _mount(
            "devpts", dev / "pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=666"
        )
    for name, target in (
        ("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2"),
    ):  # fmt: skip
        (dev / name).symlink_to(target)


def _finish_root(root: Path, limit: int) -> None:
    """Mount `/proc` of the new process space, then make `root` the only root there is."""
    proc = root / "proc"
    _mount("proc", proc, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    with contextlib.suppress(OSError):  # per process space since Linux 6.14
        (proc / "sys/kernel/pid_max").write_text(str(max(limit * 4, 1024)))
    for name in _PROC_READ_ONLY:
        if (proc / name).exists():
            _mount(str(proc / name), proc / name, "", _MS_BIND | _MS_REC)
            _make_read_only(proc / name)
    os.chdir(root)
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    _call(_libc.syscall(number, b".", b"."), "pivot_root")
    _call(_libc.umount2(b".", _MNT_DETACH), "umount of the old root")
    os.chdir("/")


def _watch(child: int, limit: int) -> int:
    """Reap until `child` ends; end all at once when there are more than `limit` processes."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            signal.sigtimedwait({signal.SIGCHLD}, _PROCESS_LOOK_S)
            if sum(name.isdigit() for name in os.listdir("/proc")) > limit:  # noqa: PTH208
                return TOO_MANY_PROCESSES


def _as_exit_code(status: int) -> int:
    return 128 - status if status < 0 else status


def _become(command: list[str]) -> NoReturn:
    os.execvp(command[0], command)  # noqa: S606 - an argv, on purpose


class _Spaces:
    """What tells one process's surroundings from another's: its name spaces and its root."""

    def __init__(self) -> None:
        self.names = {n: str(Path(f"/proc/self/ns/{n}").readlink()) for n in _SPACE_NAMES}
        root = Path("/").stat()
        self.root = (root.st_dev, root.st_ino)


def _refuse_to_run_on(host: _Spaces) -> None:
    """Raise PermissionError unless this process has left all that `host` was."""
    here = _Spaces()
    shared = [name for name in _SPACE_NAMES if here.names[name] == host.names[name]]
    if here.root == host.root:
        shared.append("root directory")
    # Process 1 is the parent, and both have the small numbers of a space that was just made.
    if os.getppid() != 1 or not 1 < os.getpid() < 10:
        shared.append(f"process numbers ({os.getpid()} below {os.getppid()})")
    if shared:
        raise PermissionError(
            f"the command would have run on the host, with its {', '.join(shared)}"
        )


def _run(command: list[str], cwd: str, host: _Spaces) -> NoReturn:
    """In the command's own process: become it, if this is surely not the host."""
    try:
        _refuse_to_run_on(host)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.setsid()
        os.chdir(cwd)
        _become(command)
    except OSError as error:
        _say(error)
    os._exit(CANNOT_ENTER)


def _say(error: OSError) -> None:
    sys.stderr.write(f"{MARK} {error}\n")
    sys.stderr.flush()


def _throw_away(settings: dict[str, object], command: list[str]) -> int:
    is_root = os.geteuid() == 0
    try:
        host = _Spaces()
        _die_with_parent()
        if is_root:
            _call(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID), "unshare")
        else:
            _enter_user_space()
    except OSError as error:
        _say(error)
        return KERNEL_REFUSES if error.errno in _REFUSALS else CANNOT_ENTER
    alive_read, alive_write = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(alive_write)
        code = CANNOT_ENTER
        try:
            _die_with_parent()
            _expect_alive(alive_read)
            code = _be_init(settings, command, host, is_root=is_root)
        except OSError as error:
            _say(error)
            # some kernels grant the name spaces and then nothing in them
            code = KERNEL_REFUSES if error.errno in {errno.EPERM, errno.EACCES} else code
        os._exit(code)
    # all but the pipe's end, which tells the other process that this one lives
    os.closerange(3, alive_write)
    os.closerange(alive_write + 1, _DESCRIPTORS)
    return _as_exit_code(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]))


def _be_init(
    settings: dict[str, object], command: list[str], host: _Spaces, *, is_root: bool
) -> int:
    if os.getpid() != 1:
        raise OSError("the process space is not a new one")
    limit = int(str(settings["process_limit"]))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    size_mib = int(str(settings["size_mib"]))
    sockets = _bound_sockets()
    root = _build_root(Path(str(settings["staging"])), size_mib, is_root=is_root)
    _cover(root, sockets)
    _finish_root(root, limit)
    if is_root:
        _drop_root()
    child = os.fork()
    if child == 0:
        _run(command, str(settings["cwd"]), host)
    # the command alone may hold what it was given, else its pipes never end
    os.closerange(3, _DESCRIPTORS)
    return _as_exit_code(_watch(child, limit))


def main() -> int:
    """Enter the throw-away root; return the command's exit code."""
    return _throw_away(json.loads(sys.argv[1]), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
