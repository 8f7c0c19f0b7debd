"""A program that runs one command in a throw-away root; the program imports no module of the harness.

Usage: throwaway_root.py [SETTING=VALUE…] -- COMMAND [ARGUMENT…]

Isolation: the command sees the host's files through overlays, whose upper layers are in memory and
vanish when the command ends. The command has its own PID, IPC, UTS and network namespaces; the
network namespace has only a loopback interface. The command sees few devices and none of the host's
socket files. `/sys`, and the files of `/proc` that belong to no process, are read-only. With
`network=host` the command has the host's network. With `network=host`, a kernel that supports
Landlock's scopes still denies the command the host's abstract sockets. The command has no
capabilities on the host, even if the user root starts the command.

Processes: this program forks process 1 of the new PID namespace, and process 1 forks the command.
When process 1 ends, the kernel kills all other processes of the PID namespace, even a fork bomb.
Just before the command starts, the child process checks its own namespaces and root directory. The
child process refuses to start the command if a namespace or the root directory is the host's,
because a `kill -9 -1` must never reach the host.

The parent of process 1 can replace the throw-away root while the command runs, because the parent
continues to see the host's files. On request through its socket, the parent of process 1 provides a
new root, with empty upper layers on top of the layers of the first root. pivot_root(2) moves all
processes of the mount namespace to the new root.

Because this program starts for each `*_spec.sh` file, the program does not even import pathlib or
json, whose import takes longer than all mounts. Sources: user_namespaces(7), mount_namespaces(7),
overlayfs.rst, pivot_root(2), open_tree(2), network_namespaces(7), netdevice(7), landlock(7),
seccomp(2), vsock(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # each import costs CPU time for each spec file
    import signal
    from typing import NoReturn

    from typing_extensions import Self
else:
    import _signal as signal  # this module loads faster than `signal`, which defines enums

CANNOT_ENTER = 251
TOO_MANY_PROCESSES = 250
KERNEL_REFUSES = 249
MARK = "harness sandbox:"
_report = {"fd": 2}
"""The descriptor to which this program reports why the command did not run or was ended."""

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_SPACES = _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWUTS
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _CAP_SYS_RESOURCE = 1, 24, 24
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_MOUNT_SETATTR = 442
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_OPENAT2 = 428, 429, 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_AF_INET, _SOCK_DGRAM, _SIOCSIFFLAGS, _IFF_UP = 2, 2, 0x8914, 1
_SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_RESTRICT = 444, 446
_LANDLOCK_VERSION, _LANDLOCK_SCOPES_SINCE, _LANDLOCK_SCOPE_ABSTRACT_SOCKETS = 1, 6, 1
_AF_VSOCK = 40
_SYS_IO_URING_SETUP = 425
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SYS_SOCKET = {"x86_64": 41, "aarch64": 198}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 4
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
_ANY_WRITE = 0o222
_PROCESS_LOOK_S = 0.1
_DESCRIPTORS = 4096
_SPACE_NAMES = ("pid", "mnt", "user", "ipc", "uts", "net")
_NOTHING_GRANTED = (errno.EPERM, errno.EACCES)
# errors of unshare(2), see user_namespaces(7): no permission, no kernel support, a limit of 0
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.ENOSPC, errno.EUSERS)

_libc = ctypes.CDLL(None, use_errno=True)


class _Suppressed:
    """Replaces `contextlib.suppress`, whose import would take longer than all imports of this program."""

    def __init__(self, error: type[OSError]) -> None:
        self.error = error

    def __enter__(self) -> None:
        pass

    def __exit__(self, raised: type[BaseException] | None, *_rest: object) -> bool:
        return raised is not None and issubclass(raised, self.error)


def _call(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    status = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), flags, os.fsencode(data) or None
    )
    _call(status, f"mount {kind or 'bind'} on {target}")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _read_bytes(path: str, limit: int = -1) -> bytes:
    with open(path, "rb") as file:
        return file.read(limit)


def _write(path: str, data: str | bytes) -> None:
    with open(path, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _in_root(root: str, path: str) -> str:
    """Return the path of a file below the directory `root`; `path` is the file's absolute path inside the root."""
    return f"{root}/{path.lstrip('/')}" if path != "/" else root


class _Places:
    """A context manager that resolves paths below a root directory.

    Code under test that ran before may have left symbolic links that lead out of the root
    directory. To stay below the root directory, the class lets the kernel resolve parent
    directories with RESOLVE_IN_ROOT, and keeps these directories open.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.held: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        for fd in self.held:
            os.close(fd)

    def of(self, path: str) -> str:
        """Return a path to the root's file `path`; only links in parent folders are resolved."""
        parent, _, name = path.strip("/").rpartition("/")
        how = (ctypes.c_uint64 * 3)(
            os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS
        )
        root = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            size = ctypes.sizeof(how)
            fd = _libc.syscall(_SYS_OPENAT2, root, os.fsencode(parent or "."), how, size)
            self.held.append(_call(fd, f"open '{parent}' in the root"))
        finally:
            os.close(root)
        return f"/proc/self/fd/{fd}/{name}"


def _list(path: str) -> list[str]:
    """Return the sorted paths of a directory's entries."""
    folder = path.rstrip("/")
    return [f"{folder}/{name}" for name in sorted(os.listdir(path))]


def _make_directory(path: str) -> None:
    """Make a directory unless it exists."""
    with _Suppressed(FileExistsError):
        os.mkdir(path)


def _die_with_parent() -> None:
    _call(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _expect_alive(pipe: int) -> None:
    """Raise OSError if the parent process, which has the writing end of `pipe`, has already died."""
    if select.select([pipe], [], [], 0)[0]:
        raise OSError("the parent process has ended")


def _enter_user_space() -> None:
    """Enter new namespaces as an ordinary user; the new user namespace maps only this user, to root."""
    uid, gid = os.geteuid(), os.getegid()
    _call(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWPID | _SPACES), "unshare")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")
    _die_with_parent()


def _enter_network_space() -> None:
    """Enter a new network namespace, with a loopback interface and without the host's abstract sockets."""
    _call(_libc.unshare(_CLONE_NEWNET), "unshare the network ('--shell-network=host' keeps it)")
    fd = _call(_libc.socket(_AF_INET, _SOCK_DGRAM, 0), "socket")
    request = b"lo".ljust(16, b"\0") + _IFF_UP.to_bytes(2, sys.byteorder)
    _call(_libc.ioctl(fd, _SIOCSIFFLAGS, ctypes.create_string_buffer(request, 40)), "set lo up")
    os.close(fd)


def _refuse_abstract_sockets() -> None:
    """Deny this process and its children the abstract sockets of all other processes.

    This needs a kernel with Landlock's scopes.
    """
    version = _libc.syscall(_SYS_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION)
    if version < _LANDLOCK_SCOPES_SINCE:
        return
    rules = (ctypes.c_uint64 * 3)(0, 0, _LANDLOCK_SCOPE_ABSTRACT_SOCKETS)
    ruleset = _libc.syscall(_SYS_LANDLOCK_CREATE, rules, ctypes.sizeof(rules), 0)
    _call(ruleset, "landlock")
    _call(_libc.syscall(_SYS_LANDLOCK_RESTRICT, ruleset, 0), "landlock")
    os.close(ruleset)


def _refuse_vsock() -> None:
    """Deny this process vsock sockets, which reach the hypervisor from any network namespace.

    io_uring(7) is denied too, because io_uring opens sockets without socket(2), the system call
    that the seccomp filter checks. Programs of another architecture, such as 32-bit programs, can
    still open vsock sockets.
    """
    machine = os.uname().machine
    rules = (
        (0x20, 0, 0, 4),  # load the architecture
        (0x15, 0, 7, _AUDIT_ARCH[machine]),  # if the architecture differs, go to the last rule
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x15, 4, 0, _SYS_IO_URING_SETUP),
        (0x15, 0, 4, _SYS_SOCKET[machine]),
        (0x20, 0, 0, 16),  # load the first argument
        (0x15, 0, 2, _AF_VSOCK),
        (0x06, 0, 0, 0x50000 | errno.EAFNOSUPPORT),  # return an error
        (0x06, 0, 0, 0x50000 | errno.EPERM),
        (0x06, 0, 0, 0x7FFF0000),  # allow
    )
    words = (c | then << 16 | other << 24 | k << 32 for c, then, other, k in rules)
    code = (ctypes.c_uint64 * len(rules))(*words)
    program = (ctypes.c_uint64 * 2)(len(rules), ctypes.addressof(code))
    number, mode = _SYS_SECCOMP[machine], _SECCOMP_SET_MODE_FILTER
    _call(_libc.syscall(number, mode, _SECCOMP_FILTER_FLAG_SPEC_ALLOW, program), "seccomp")


def _leave_session_keyring() -> None:
    """Join a new session keyring, so that code under test can't change the keys of the host (keyrings(7))."""
    number = _SYS_KEYCTL[os.uname().machine]
    joined = _libc.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None)
    # these errors mean that neither this process nor the code can use a keyring
    if joined >= 0 or ctypes.get_errno() not in {errno.EPERM, errno.ENOSYS}:
        _call(joined, "keyctl")


def _refuse_cgroup_spaces(limits: int, host: _Spaces) -> None:
    """Deny code under test new cgroup namespaces.

    In such a namespace, the code could mount the host's cgroups and kill their processes.

    `limits` is a descriptor of `/proc/sys/user`, whose files belong to the user namespace of the
    process that opens them; see namespaces(7). CAP_SYS_RESOURCE is dropped, because with this
    capability the code could raise the limit on cgroup namespaces again.
    """
    if os.readlink("/proc/self/ns/user") == host.names["user"]:
        raise OSError("the user namespace is not a new one")
    with _Suppressed(FileNotFoundError):  # a kernel without cgroups
        fd = os.open("max_cgroup_namespaces", os.O_WRONLY | os.O_CLOEXEC, dir_fd=limits)
        os.write(fd, b"0")
        os.close(fd)
    os.close(limits)
    _call(_libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_RESOURCE, 0, 0, 0), "prctl")


def _drop_root() -> None:
    """Enter a new user namespace as the user root.

    The user namespace has the same ids, but no capabilities on the host.
    """
    ready_read, ready_write = os.pipe()
    target = os.getpid()
    mapper = os.fork()
    if mapper == 0:
        os.close(ready_write)
        os.read(ready_read, 1)
        for name in ("uid_map", "gid_map"):
            first, below, count = _read(f"/proc/self/{name}").split()[:3]
            whole = f"{first} {first} {count}" if below.isdigit() else ""
            _write(f"/proc/{target}/{name}", whole)
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


def _mount_points() -> list[tuple[str, str]]:
    """Return the host's mount points and their file system types, parents before children."""
    found: dict[str, str] = {}
    # The kernel escapes only a few ASCII characters: a name may have other kinds of spaces.
    for line in _read_bytes("/proc/self/mountinfo").split(b"\n")[:-1]:
        left, _, right = line.partition(b" - ")
        name = left.split(b" ")[4]
        if b"\\" in name:
            name = name.decode("unicode_escape").encode("latin-1")
        found[os.fsdecode(name)] = right.partition(b" ")[0].decode()
    return sorted(found.items())


class _RootBuilder:
    """Builds throw-away roots from overlays below the directory `staging`.

    If the program runs as the user root, the class mounts one overlay over `/` and one overlay over
    each mount point below `/`. To an ordinary user, and to the user root inside another sandbox,
    the kernel refuses an overlay of a directory that contains mount points, because the overlay
    would show files that the mounts hide. If the kernel refuses such an overlay, the class replaces
    the directory that contains mount points by a new directory, with an overlay for each entry. A
    file system that supports no overlay is shown read-only. The files below `replaced` hide the
    host's files with the same paths. `shared` is a directory that all roots share; at first, the
    directory has copies of the files in the host's directory `shared`.
    """

    def __init__(self, settings: dict[str, str], sockets: int, *, is_root: bool) -> None:
        self.sockets = sockets
        self.cwd = settings["cwd"]
        self.staging = staging = settings["staging"]
        self.size_mib = int(settings["size_mib"])
        self.replaced = settings.get("layer")
        self.shared = settings.get("shared")
        self.is_root = is_root
        self.fakes: list[str] = []
        self.count = 0
        _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
        self.mounts = {p: k for p, k in _mount_points() if not _is_below(p, staging, *_SPECIAL)}
        self._mount_tmpfs(staging)
        options = _overlay_options(staging)
        self.is_in_memory = options is not None
        if options is None:  # before Linux 6.6 a tmpfs has no user extended attributes
            _call(_libc.umount2(os.fsencode(staging), 0), "umount")
            options = _overlay_options(staging)
        if options is None:
            raise OSError(
                f"the file system of {staging} has no extended attributes; set TMPDIR to a file "
                "system that has them"
            )
        self.options = options
        if self.replaced is not None and self.is_in_memory:
            copy = f"{staging}/replaced"
            _copy_linked(self.replaced, copy)
            self.replaced = copy

    def _mount_tmpfs(self, place: str) -> None:
        options = f"size={self.size_mib}m,mode=755"
        _mount("tmpfs", place, "tmpfs", _MS_NOSUID | _MS_NODEV, options)

    def build(self, place: str, below: str | None = None) -> tuple[str, list[str]]:
        """Build a new root at `place`.

        If `below` is given, the new root's upper layers are on top of the layers of the earlier
        root at `below`.

        Return the directory of the new root, and the paths that are read-only in the new root. If
        `below` is given, the read-only paths are still empty in the new root.
        """
        root = f"{place}/root"
        os.mkdir(root)
        with _Places(root) as places:
            return root, self._fill(root, places, _Layers(self, place, below))

    def _fill(self, root: str, places: _Places, layers: _Layers) -> list[str]:
        if self.is_root and layers.overlay("/", root, "layer"):
            for point in sorted(self.mounts.keys() - {"/"}):
                try:
                    target = places.of(point)
                except (FileNotFoundError, NotADirectoryError):  # below a mount that is not shown
                    continue
                layers.add(point, target, point)
        else:
            _mount(root, root, "", _MS_BIND)
            layers.descend = True
            for entry in _list("/"):
                if entry not in _SPECIAL:
                    layers.add(entry, _in_root(root, entry), entry)
        for name in _SPECIAL:
            _make_directory(_in_root(root, name))
        _build_dev(f"{root}/dev")
        shm = "/dev/shm"  # noqa: S108 - people keep projects there
        layers.add(shm, _in_root(root, shm), shm)
        _cover(root, _bound_sockets(self.sockets))
        if layers.below is None:
            # an ordinary user may mount a new `/proc` only if an existing one is fully visible
            for name in ("/sys",) if self.is_root else ("/sys", "/proc"):
                _mount(name, _in_root(root, name), "", _MS_BIND | _MS_REC)
            _make_read_only(f"{root}/sys")
            if self.shared is not None:
                self._build_shared(self.shared, _in_root(root, self.shared))
        return layers.read_only

    def _build_shared(self, source: str, target: str) -> None:
        self._mount_tmpfs(target)
        for name in os.listdir(source):
            _write(f"{target}/{name}", _read_bytes(f"{source}/{name}"))
            os.chmod(f"{target}/{name}", 0o755)  # noqa: S103 - commands

    def build_again(self) -> tuple[int, list[str]]:
        """Build a root whose upper layers are empty.

        Return the new root as a detached mount tree, and the paths whose mounts have to be moved
        from the present root to the new root.
        """
        if not self.is_in_memory:
            raise OSError("a root whose layers are on a disk can't be renewed")
        place = self._new_place()
        try:
            root, kept = self.build(place, self.staging)
            tree = _open_tree(root, _OPEN_TREE_CLONE | _AT_RECURSIVE)
            shared = [] if self.shared is None else [self.shared.lstrip("/")]
            return tree, ["proc", "sys", *kept, *shared]
        finally:
            self._leave(place)

    def build_fake(self, path: str) -> int:
        """Return a detached mount tree that can hide the kernel's `path`.

        The tree is a writable copy of a directory, or an empty file.
        """
        place = self._new_place()
        try:
            if os.path.isdir(path):
                target, upper, work = f"{place}/root", f"{place}/upper", f"{place}/work"
                for directory in (target, upper, work):
                    os.mkdir(directory)
                places = f"lowerdir={path},upperdir={upper},workdir={work}"
                try:
                    _mount("overlay", target, "overlay", 0, places + self.options)
                except OSError:  # procfs supports no overlay
                    _copy_texts(path, target)
            else:
                target = f"{place}/file"
                _touch(target)
            return _open_tree(target, _OPEN_TREE_CLONE)
        finally:
            self._leave(place)

    def _new_place(self) -> str:
        self.count += 1
        place = f"{self.staging}/again{self.count}"
        os.mkdir(place)
        self._mount_tmpfs(place)
        return place

    def _leave(self, place: str) -> None:
        _call(_libc.umount2(os.fsencode(place), _MNT_DETACH), "umount")
        os.rmdir(place)


def _copy_texts(source: str, target: str) -> None:
    """Copy the beginning of each file in a directory; make an empty directory for each subdirectory."""
    for name in os.listdir(source):
        entry = f"{source}/{name}"
        with _Suppressed(OSError):
            if os.path.isdir(entry):
                os.mkdir(f"{target}/{name}")
            else:
                _write(f"{target}/{name}", _read_bytes(entry, _CONFIGURATION_BYTES))


def _copy_linked(source: str, target: str) -> None:
    """Copy a directory; hard links to one file become hard links to one copy."""
    copies: dict[int, str] = {}
    folders = [(source, target)]
    for folder, copied in folders:
        status = os.stat(folder)
        os.mkdir(copied)
        os.chmod(copied, status.st_mode & 0o7777)
        os.chown(copied, status.st_uid, status.st_gid)
        with os.scandir(folder) as entries:
            for entry in entries:
                place = f"{copied}/{entry.name}"
                number = entry.inode()
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, place))
                elif number in copies:
                    os.link(copies[number], place)
                else:
                    _write(place, _read_bytes(entry.path))
                    os.chmod(place, entry.stat().st_mode & 0o7777)
                    copies[number] = place


class _Layers:
    def __init__(self, builder: _RootBuilder, place: str, below: str | None) -> None:
        self.builder = builder
        self.place = place
        self.below = below
        self.descend = False
        self.count = 0
        self.read_only: list[str] = []

    def add(self, source: str, target: str, path: str) -> None:
        """Show the host's file `source` at `target`; writes go to the upper layer, not to the host.

        `path` is the file's path for processes in the root.
        """
        if source == self.builder.staging:
            return
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
        elif os.path.isfile(source):
            self._add_file(source, target, path)
        elif os.path.isdir(source) and self.builder.mounts.get(source) not in _NO_OVERLAY:
            status = os.stat(source)
            _make_directory(target)
            held = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.chmod(f"/proc/self/fd/{held}", status.st_mode & 0o7777)
            with _Suppressed(OSError):
                os.chown(f"/proc/self/fd/{held}", status.st_uid, status.st_gid)
            os.close(held)
            if self.descend and any(
                point.startswith(f"{source}/") for point in self.builder.mounts
            ):
                for name in self._entries(source):
                    self.add(f"{source}/{name}", f"{target}/{name}", f"{path}/{name}")
                return
            self.count += 1
            if not self.overlay(source, target, f"layer{self.count}"):
                self._show_read_only(source, target, path)

    def _entries(self, folder: str) -> list[str]:
        """Return the names in a directory.

        If the directory can't be listed, return only the names that the paths of mount points, of
        `cwd` and of `staging` contain.
        """
        try:
            return sorted(os.listdir(folder))
        except PermissionError:
            known = (*self.builder.mounts, self.builder.cwd, self.builder.staging)
            below = [
                place.removeprefix(f"{folder}/") for place in known if _is_below(place, folder)
            ]
            return sorted({name.partition("/")[0] for name in below if not name.startswith("/")})

    def _show_read_only(self, source: str, target: str, path: str) -> None:
        self.read_only.append(path.lstrip("/"))
        if self.below is None:
            _mount(source, target, "", _MS_BIND | _MS_REC)
            _make_read_only(target)

    def _add_file(self, source: str, target: str, path: str) -> None:
        flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.open(target, flags, 0o644)
        except OSError:  # code in an earlier root has put another kind of file there
            return
        try:
            status = os.stat(source)
            if status.st_size > _COPIED_BYTES:
                self._show_read_only(source, target, path)
            elif stat.S_ISREG(os.fstat(file).st_mode):
                data = _read_bytes(source)
                os.ftruncate(file, 0)
                os.write(file, data)
                os.fchmod(file, status.st_mode & 0o7777)
        except OSError:
            return
        finally:
            os.close(file)

    def overlay(self, lower: str, target: str, name: str) -> bool:
        """Mount an overlay of `lower` at `target`; return whether the kernel allowed the mount.

        The files of an earlier root and the files of `replaced` are layers between `lower` and the
        upper layer.
        """
        upper, work = f"{self.place}/{name}/upper", f"{self.place}/{name}/work"
        os.makedirs(upper)
        os.mkdir(work)
        lowers = [lower]
        replaced = self.builder.replaced
        if replaced is not None and os.path.isdir(_in_root(replaced, lower)):
            lowers.insert(0, _in_root(replaced, lower))
        if self.below is not None:
            lowers.insert(0, f"{self.below}/{name}/upper")
        status = os.stat(lower if self.below is None else lowers[0])
        os.chmod(upper, status.st_mode & 0o7777)
        with _Suppressed(OSError):
            os.chown(upper, status.st_uid, status.st_gid)
        if self.descend and self.below is None:
            _make_ours(lower, upper, self.builder.cwd, self.builder.staging)
        held: list[int] = []
        try:
            *lowers, upper, outer = (_for_options(place, held) for place in (*lowers, upper, work))
            places = f"lowerdir={':'.join(lowers)},upperdir={upper},workdir={outer}"
            # nodev: a device file outside of /dev, for example in a chroot, is the host's device
            _mount("overlay", target, "overlay", _MS_NODEV, places + self.builder.options)
        except OSError:
            return False
        finally:
            for fd in held:
                os.close(fd)
        with _Suppressed(OSError):  # so that an ordinary user can remove the work directory
            os.chmod(f"{work}/work", 0o700)
        return True


def _for_options(place: str, held: list[int]) -> str:
    """Return a path that leads to the directory `place` and has no characters that separate mount options.

    If the path needs an open descriptor, the descriptor is appended to `held`.
    """
    if not any(character in place for character in ":,\\"):
        return place
    held.append(os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    return f"/proc/self/fd/{held[-1]}"


def _bound_sockets(table: int) -> list[str]:
    """Return the paths of the Unix sockets that the host's processes have bound.

    `table` is a descriptor of `/proc/net/unix` that was opened before this process left the host's
    network namespace.
    """
    os.lseek(table, 0, os.SEEK_SET)
    data = b""
    while part := os.read(table, _COPIED_BYTES):
        data += part
    lines = os.fsdecode(data).split("\n")[1:]
    return sorted({fields[7] for line in lines if len(fields := line.split(None, 7)) == 8})


def _cover(root: str, sockets: list[str]) -> None:
    """Hide the host's socket files, because the daemons behind these sockets (such as systemd) act on the host."""
    for path in sockets:
        with _Suppressed(OSError), _Places(root) as places:
            place = places.of(path) if path.startswith("/") else ""
            if place and stat.S_ISSOCK(os.lstat(place).st_mode):
                try:  # remove the socket in the upper layer, so that no umount can show it again
                    os.unlink(place)
                    _touch(place)
                except OSError:
                    _mount(f"{root}/dev/null", place, "", _MS_BIND)


def _is_below(path: str, *places: str) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _overlay_options(staging: str) -> str | None:
    """Return the mount options with which an overlay can mark deletions in an upper layer below `staging`.

    Return None if the file system of `staging` supports no upper layer.
    """
    for attribute, options in (
        ("trusted.overlay.trial", ""),
        ("user.overlay.trial", ",userxattr"),
    ):
        with _Suppressed(OSError):
            os.setxattr(staging, attribute, b"y")
            return options
    return None


def _make_ours(lower: str, upper: str, *used: str) -> None:
    """Prepare an ordinary user's upper layer, so that code may write where root could write.

    If a directory is in the lower and the upper layer, the kernel uses the owner that the directory
    has in the upper layer. The kernel can't copy a directory of another user to the upper layer, so
    this function makes the directories above the `used` paths in the upper layer.
    """
    for place in used:
        above, own = lower, upper
        names = place.removeprefix(f"{lower}/").split("/")
        for name in names[:-1] if place.startswith(f"{lower}/") else ():
            above, own = f"{above}/{name}", f"{own}/{name}"
            if os.path.islink(above):
                break
            _make_directory(own)
            os.chmod(own, os.stat(above).st_mode & 0o7777)
    for place in _WRITTEN:
        if _is_below(lower, place):
            _take(lower, upper, _DEPTH)
        elif _is_below(place, lower):
            inside = upper + place.removeprefix(lower)
            os.makedirs(inside, exist_ok=True)
            _take(place, inside, _DEPTH)


def _take(lower: str, upper: str, depth: int) -> None:
    """Make a directory in `upper` for each directory below `lower`; copy configuration files to `upper`."""
    with _Suppressed(OSError), os.scandir(lower) as entries:
        for entry in entries:
            with _Suppressed(OSError):
                status = entry.stat(follow_symlinks=False)
                own = f"{upper}/{entry.name}"
                if stat.S_ISDIR(status.st_mode) and depth:
                    os.mkdir(own)
                    os.chmod(own, status.st_mode & 0o7777)
                    _take(entry.path, own, depth - 1)
                elif stat.S_ISREG(status.st_mode) and _is_configuration(entry.path, status):
                    _write(own, _read_bytes(entry.path))
                    os.chmod(own, status.st_mode & 0o7777)


def _is_configuration(path: str, status: os.stat_result) -> bool:
    return path.startswith("/etc/") and status.st_size <= _CONFIGURATION_BYTES


def _open_tree(path: str, flags: int) -> int:
    fd = _libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags | os.O_CLOEXEC)
    return _call(fd, f"open_tree of {path}")


def _attach(tree: int, target: str) -> None:
    status = _libc.syscall(
        _SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH
    )
    _call(status, f"attach a mount at {target}")


def _pivot() -> None:
    """Make the working directory (a mount point) the root directory of all processes in this mount namespace."""
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    _call(_libc.syscall(number, b".", b"."), "pivot_root")
    _call(_libc.umount2(b".", _MNT_DETACH), "umount of the old root")


def _make_read_only(target: str) -> None:
    """Make mounts read-only; disable device files, because even a read-only mount allows writes to device files."""
    attributes = (ctypes.c_uint64 * 4)(_MS_RDONLY | _MS_NODEV, 0, 0, 0)
    status = _libc.syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), _AT_RECURSIVE, attributes, 32
    )
    _call(status, f"make {target} read-only")


def _build_dev(dev: str) -> None:
    _mount("tmpfs", dev, "tmpfs", _MS_NOSUID, "size=64m,mode=755")
    for name in _DEVICES:
        _touch(f"{dev}/{name}")
        with _Suppressed(OSError):
            _mount(f"/dev/{name}", f"{dev}/{name}", "", _MS_BIND)
    os.mkdir(f"{dev}/pts")
    with _Suppressed(OSError):
        _mount(
            "devpts", f"{dev}/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=666"
        )
    for name, target in (
        ("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2"),
    ):  # fmt: skip
        os.symlink(target, f"{dev}/{name}")


def _finish_root(root: str, limit: int) -> int:
    """Mount `/proc` of the new PID namespace, then make `root` the root directory.

    Return a descriptor of `/proc/sys/user`, through which the files of this directory can still be
    written.
    """
    proc = f"{root}/proc"
    _mount("proc", proc, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    with _Suppressed(OSError):  # since Linux 6.14 each PID namespace has its own pid_max
        _write(f"{proc}/sys/kernel/pid_max", str(max(limit * 4, 1024)))
    limits = os.open(f"{proc}/sys/user", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # Root in the namespace could still write to files that control the host's kernel, such as
    # /proc/driver/nvidia/suspend.
    for name in os.listdir(proc):
        place = f"{proc}/{name}"
        mode = 0 if name.isdigit() else os.lstat(place).st_mode
        if stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and mode & _ANY_WRITE):
            _mount(place, place, "", _MS_BIND | _MS_REC)
            _make_read_only(place)
    os.chdir(root)
    _pivot()
    os.chdir("/")
    return limits


def _watch(child: int, limit: int) -> int:
    """Reap processes until `child` ends, or until there are more than `limit` processes."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            signal.sigtimedwait({signal.SIGCHLD}, _PROCESS_LOOK_S)
            if sum(name.isdigit() for name in os.listdir("/proc")) > limit:
                _say(f"there were more than {limit} processes")
                return TOO_MANY_PROCESSES


def _die_of(number: int) -> NoReturn:
    """End this process by the signal that ended the command, so that the waiting parent sees this signal."""
    with _Suppressed(OSError):  # the action of SIGKILL can't be set
        signal.signal(number, signal.SIG_DFL)
    import resource  # noqa: PLC0415 - few commands die of a signal

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _close_all_but(*kept: int) -> None:
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, _DESCRIPTORS)


def _reset_signals() -> None:
    """Restore the default action of the signals that this process ignores, such as SIGPIPE, which Python ignores."""
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _become(command: list[str]) -> NoReturn:
    _reset_signals()
    os.execvp(command[0], command)  # noqa: S606 - starts a program without a shell


class _Spaces:
    """Identifies the surroundings of this process: its namespaces and its root directory."""

    def __init__(self) -> None:
        self.names = {n: os.readlink(f"/proc/self/ns/{n}") for n in _SPACE_NAMES}
        root = os.stat("/")
        self.root = (root.st_dev, root.st_ino)


def _expect_new_spaces(host: _Spaces) -> None:
    """Raise OSError if this process or its children can reach the host's mounts or processes.

    This process must not be in the host's mount namespace, and its children must not be in the
    host's PID namespace.
    """
    with _Suppressed(FileNotFoundError):  # no process is in the new PID namespace yet
        if os.readlink("/proc/self/ns/pid_for_children") == host.names["pid"]:
            raise OSError("the PID namespace is not a new one")
    if os.readlink("/proc/self/ns/mnt") == host.names["mnt"]:
        raise OSError("the mount namespace is not a new one")


def _refuse_to_run_on(host: _Spaces) -> None:
    """Raise PermissionError if this process shares a namespace or the root directory with `host`."""
    here = _Spaces()
    shared = [name for name in _SPACE_NAMES if here.names[name] == host.names[name]]
    if here.root == host.root:
        shared.append("root directory")
    # In a new PID namespace the parent is process 1, and this process has a small PID.
    if os.getppid() != 1 or not 1 < os.getpid() < 10:
        shared.append(f"process numbers ({os.getpid()} below {os.getppid()})")
    if shared:
        raise PermissionError(
            f"the command would have run on the host, with the host's {', '.join(shared)}"
        )


def _run(command: list[str], cwd: str, host: _Spaces) -> NoReturn:
    """Check, in the child process, that this process is isolated from the host, then execute the command."""
    try:
        _refuse_to_run_on(host)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.setsid()
        os.chdir(cwd)
        _become(command)
    except OSError as error:
        _say(error)
    os._exit(CANNOT_ENTER)


def _say(said: object) -> None:
    os.write(_report["fd"], f"{MARK} {said}\n".encode(errors="surrogateescape"))


def _throw_away(settings: dict[str, str], command: list[str]) -> int:
    is_root = os.geteuid() == 0
    try:
        host = _Spaces()
        sockets = os.open("/proc/net/unix", os.O_RDONLY | os.O_CLOEXEC)
        _die_with_parent()
        if is_root:
            _call(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID), "unshare")
        else:
            _enter_user_space()
        if settings.get("network") != "host":
            _enter_network_space()
    except OSError as error:
        _say(error)
        return KERNEL_REFUSES if error.errno in _REFUSALS else CANNOT_ENTER
    control = settings.get("control_fd")
    kept = () if control is None else (int(control),)
    for fd in kept:  # the command must not answer the harness in place of this process
        os.set_inheritable(fd, False)
    alive_read, alive_write = os.pipe()
    signal_read, signal_write = os.pipe()
    try:
        _expect_new_spaces(host)
        builder = _RootBuilder(settings, sockets, is_root=is_root)
    except OSError as error:
        _say(error)
        return KERNEL_REFUSES if error.errno in _NOTHING_GRANTED else CANNOT_ENTER
    init = os.fork()
    if init == 0:
        os.close(alive_write)
        code = CANNOT_ENTER
        try:
            _die_with_parent()
            _expect_alive(alive_read)
            code = _be_init(settings, command, host, signal_write, builder)
        except OSError as error:
            _say(error)
            # some kernels grant the namespaces, but refuse the mounts in them
            code = KERNEL_REFUSES if error.errno in _NOTHING_GRANTED else code
        os._exit(code)
    # alive_write shows the child that this process lives; signal_read receives the signal that ended
    # the command
    _close_all_but(alive_write, signal_read, sockets, *kept)
    if kept:
        _Renewal(builder, init).serve(kept[0])
    code = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
    number = int(os.read(signal_read, 4) or b"0") or max(0, -code)
    if number:
        _die_of(number)
    return code


class _MountSpace:
    """A context manager that moves this process to the mount namespace at `path`.

    The process also moves to the root directory of this namespace.
    """

    def __init__(self, path: str) -> None:
        self.own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.other = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self.own)
            raise

    def __enter__(self) -> None:
        try:
            _call(_libc.setns(self.other, _CLONE_NEWNS), "setns")
        except OSError:
            self._close()
            raise

    def __exit__(self, *_raised: object) -> None:
        try:
            _call(_libc.setns(self.own, _CLONE_NEWNS), "setns")
        finally:
            self._close()

    def _close(self) -> None:
        os.close(self.own)
        os.close(self.other)


class _Renewal:
    """Replaces the root of the processes that run in the namespaces of process 1, whose PID on the host is `init`."""

    def __init__(self, builder: _RootBuilder, init: int) -> None:
        self.builder = builder
        self.init = init
        self.mounts = -1
        self.prepared: tuple[int, list[str]] | None = None

    def serve(self, control: int) -> None:
        """Answer each request, which is one line, with one line, until the process `init` ends."""
        os.write(control, f"{self.init}\n".encode())
        watched = os.pidfd_open(self.init)
        requests = b""
        while True:
            ready = select.select([control, watched], [], [])[0]
            if watched in ready:
                return
            data = os.read(control, 4096)
            if not data:
                return
            requests += data
            while b"\n" in requests:
                request, _, requests = requests.partition(b"\n")
                try:
                    self._do(request.decode(errors="surrogateescape"))
                    answer = "done"
                except OSError as error:
                    answer = f"failed {error}".replace("\n", " ")
                os.write(control, f"{answer}\n".encode(errors="surrogateescape"))
                if self.prepared is None and answer == "done":
                    # Build the next root while the test runs. If this fails, `_renew` builds the
                    # root.
                    with _Suppressed(OSError):
                        self.prepared = self.builder.build_again()

    def _do(self, request: str) -> None:
        name, _, path = request.partition(" ")
        if name == "renew":
            self._renew()
        elif name == "fake":
            self._fake(path)
        else:
            raise OSError(f"there is no request '{name}'")

    def _renew(self) -> None:
        tree, places = self.prepared or self.builder.build_again()
        self.prepared = None
        try:
            with self._inside():
                for fake in self.builder.fakes:
                    _call(_libc.umount2(os.fsencode(fake), _MNT_DETACH), "umount of a fake")
                self.builder.fakes.clear()
                self._expect_no_other_mounts()
                kept = [
                    (place, _open_tree(f"/{place}", _OPEN_TREE_CLONE | _AT_RECURSIVE))
                    for place in places
                ]
                _attach(tree, "/")
                os.fchdir(tree)
                for place, fd in kept:
                    _attach(fd, place)
                    os.close(fd)
                _pivot()
                self.mounts = self._count_mounts()
        finally:
            os.close(tree)

    def _fake(self, path: str) -> None:
        if not _is_below(path, "/proc", "/sys") or ".." in path.split("/"):
            raise OSError("the path is not below /proc or /sys")
        tree = self.builder.build_fake(path)
        try:
            with self._inside():
                _attach(tree, path)
            self.builder.fakes.append(path)
        finally:
            os.close(tree)

    def _count_mounts(self) -> int:
        return len(_read("/proc/1/mountinfo").splitlines())

    def _expect_no_other_mounts(self) -> None:
        """Raise OSError if code under test mounted a file system, because the new root might keep this file system."""
        if self.mounts not in {-1, self._count_mounts()}:
            raise OSError("the code under test mounted a file system")

    def _inside(self) -> _MountSpace:
        return _MountSpace(f"/proc/{self.init}/ns/mnt")


def _be_init(
    settings: dict[str, str],
    command: list[str],
    host: _Spaces,
    signal_write: int,
    builder: _RootBuilder,
) -> int:
    """Build the throw-away root and run the command in this root.

    Return the command's exit code; if a signal ended the command, write the number of the signal to
    `signal_write`.
    """
    if os.getpid() != 1:
        raise OSError("the process is not the first of a new PID namespace")
    limit = int(settings["process_limit"])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    # the parent continues to see the host's files, from which it builds new roots
    _call(_libc.unshare(_CLONE_NEWNS), "unshare")
    root, _ = builder.build(builder.staging)
    limits = _finish_root(root, limit)
    if builder.is_root:
        _drop_root()
    _refuse_cgroup_spaces(limits, host)
    # this process needs the command's limits too: the command can control this process by ptrace(2)
    if settings.get("network") == "host":
        host.names["net"] = ""
        _refuse_abstract_sockets()
    else:
        _refuse_vsock()
    _leave_session_keyring()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that the command can't end this process
    child = os.fork()
    if child == 0:
        _run(command, settings["cwd"], host)
    # only the command may have the passed descriptors, since otherwise readers of its pipes see no
    # end of file
    _close_all_but(signal_write, _report["fd"])
    code = _watch(child, limit)
    if code < 0:
        os.write(signal_write, str(-code).encode())
    return max(0, code)


def main() -> int:
    """Run the command in a throw-away root; return the command's exit code."""
    end = sys.argv.index("--")
    settings = dict(word.split("=", 1) for word in sys.argv[1:end])
    _report["fd"] = int(settings.get("report_fd", "2"))
    if _report["fd"] != 2:  # the command must not inherit it
        os.set_inheritable(_report["fd"], False)
    return _throw_away(settings, sys.argv[end + 1 :])


if __name__ == "__main__":
    os._exit(main())
