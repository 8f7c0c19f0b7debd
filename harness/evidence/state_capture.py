"""Reads the state of a whole node through its guest agent.

For an ext4 file system, the host reads the blocks that describe the files. Reading the blocks is
about ten times as fast as a stat of each file, and needs no permissions. The host reads only the
contents of the files that `_to_digest` returns; for each other file, the file's `FileIdentity`
shows whether the content has changed. The use of `FileIdentity` relies on these facts:

* ext4 sets a file's ctime at each change of its content or attributes, and no program can set a ctime.
* Before the blocks are read, all cached data is written to the disk. Without a sync, ext4 would
  not set the ctime at a later write through a memory map.
* Two changes within one tick of the clock leave the same ctime. So the ctime does not show every
  change in the last second before the state was taken.
* No program writes directly to the disk's block device.

The module is long because it reads all parts of the state, in the order in which the guest reports them.
"""

from __future__ import annotations

import stat
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from harness.errors import HarnessError
from harness.evidence import state_parts
from harness.evidence.state import (
    FileIdentity,
    NodeState,
    PathState,
    StateKind,
    Unknown,
    letter_of,
)
from harness.image.formats.ext4 import Ext4Error, read_file_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.evidence.state_parts import Items, Mount
    from harness.image.formats.ext4 import FileSystem, Inode
    from harness.machine.channels.agent import Agent
    from harness.provisioning.command import CommandResult
    from harness.provisioning.wait import Deadline

#: File systems that are not read, because they contain no files of the node itself but files of
#: the kernel, of containers or of packages.
_PASSED_OVER = frozenset(
    {
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"),
        *(
            "efivarfs",
            "fuse.lxcfs",
            "fusectl",
            "hugetlbfs",
            "iso9660",
            "mqueue",
            "nsfs",
            "overlay",
        ),
        *("proc", "pstore", "ramfs", "rpc_pipefs", "securityfs", "squashfs", "sysfs", "tracefs"),
    }
)
#: The types of small file systems, which the harness reads with `find`.
_SMALL = frozenset({"devtmpfs", "tmpfs", "vfat"})
#: The parts of /run that are read; other files in /run change often and do not outlive the boot.
RUN_PARTS = (
    "/run/cdi",
    "/run/modprobe.d",
    "/run/nvidia",
    "/run/sysctl.d",
    "/run/systemd/system",
    "/run/udev/rules.d",
)
_FIND_FORMAT = r"%y %m %U %G %s %T@ %C@ %p\0%l\0"
#: The folder for the records of '--shell-cov' in a machine; it is not a part of the node's state.
SHELL_TRACE_FOLDER = "/var/lib/harness-shell-trace"
_READ_ATTEMPTS = 3
#: The inode number of files on FAT, which has no inodes.
NO_INODE = 0

#: Files whose contents are always read, since tools often write them again with the same content.
_ALWAYS_READ = ("/etc/", "/var/lib/dkms/", "/var/lib/dpkg/status")
_MODULE_LISTS = "/usr/lib/modules/"
_LONGEST_READ = 4 << 20
_MOST_READ = 24 << 20
_MOST_FILES_READ = 2500
#: The clock of the image's builder may be ahead by this many seconds.
_BUILD_S = 60

_TEXTS = (
    *("/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/osrelease", "/proc/self/mountinfo"),
    *("/proc/modules", "/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6"),
    *("/etc/passwd", "/etc/group", "/proc/uptime"),
)
_NEEDED = {
    *("/proc/sys/kernel/random/boot_id", "/proc/self/mountinfo"),
    *("/proc/uptime", "/etc/passwd"),
}
_TEXT_PATTERNS = (
    "/sys/module/*/version /sys/module/*/srcversion "
    "/sys/bus/pci/devices/*/vendor /sys/bus/pci/devices/*/device /sys/bus/pci/devices/*/class"
)
#: The error for a missing file: a node may lack the files of IPv6 or of PCI functions.
_MAY_BE_ABSENT = "No such file or directory"
_NO_SUCH_PROGRAM = 127


#: The exceptions that parsers raise for output in an unknown format.
_OTHER_FORM = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
    struct.error,
)


class _Found(NamedTuple):
    """The parts of a state that have been read so far."""

    paths: dict[str, PathState]
    items: dict[StateKind, Items]
    unknown: list[Unknown]
    deadline: Deadline


def take_state(agent: Agent, *, node: str, deadline: Deadline, folder: Path | None) -> NodeState:
    """Return the state of an idle node; the field `unknown` lists unreadable parts.

    Raises HarnessError if the node does not answer, or lacks a file that every Linux system has.
    """
    try:
        return _take_state(agent, node, deadline, folder)
    except _OTHER_FORM as error:
        raise HarnessError(
            f"The state of '{node}' could not be read, because the answer of the node has an "
            f"unknown format ({error!r})."
        ) from error


def _take_state(agent: Agent, node: str, deadline: Deadline, folder: Path | None) -> NodeState:
    found = _Found({}, {}, [], deadline)
    # One shell runs all commands, since starting a program takes an emulated guest some ten
    # milliseconds.
    script = f"sync && date +%s%N && grep -aHZ '' {' '.join(_TEXTS)} {_TEXT_PATTERNS}"
    result = _run(agent, found, "sh", "-c", script)
    stamp, _, text = result.stdout.partition("\n")
    files = state_parts.parse_lines_by_file(text)
    refused = [line for line in result.stderr.splitlines() if _MAY_BE_ABSENT not in line]
    if refused or not files.keys() >= _NEEDED:
        raise HarnessError(
            f"The state of '{node}' could not be read, because files that every Linux system has "
            f"could not be read.\n{result.render()}"
        )
    boot_id = files["/proc/sys/kernel/random/boot_id"][0]
    uptime_ns = int(float(files["/proc/uptime"][0].split()[0]) * 1_000_000_000)
    run_ns = range(int(stamp) - uptime_ns, int(stamp) + 1)
    mounts = list(state_parts.parse_mountinfo(files["/proc/self/mountinfo"]))
    found.items[StateKind.MOUNTS] = state_parts.mounts(mounts)
    found.items[StateKind.KERNELS] = {"release": {"value": files["/proc/sys/kernel/osrelease"][0]}}
    found.items[StateKind.MODULES] = state_parts.modules(files)
    found.items[StateKind.USERS] = state_parts.users(files["/etc/passwd"])
    found.items[StateKind.GROUPS] = state_parts.groups(files.get("/etc/group", []))
    # The guest runs the tools while this host parses blocks.
    with ThreadPoolExecutor(max_workers=1) as beside:
        tools = beside.submit(_run_tools, agent, found)
        made_at_s = _read_paths(agent, found, mounts, boot_id)
        for path in [path for path in found.paths if _is_trace(path)]:
            del found.paths[path]
        _read_digests(agent, found, _to_digest(found.paths, made_at_s, run_ns))
        results = tools.result()
    _parse_tools(found, results, files)
    return NodeState(
        node=node,
        taken_at_ns=int(stamp),
        boot_id=boot_id,
        paths={
            path: state for path, state in found.paths.items() if not _is_device_node(path, state)
        },
        items={
            **found.items,
            StateKind.DEVICE_NODES: {
                path: state.to_item()
                for path, state in found.paths.items()
                if _is_device_node(path, state)
            },
        },
        unknown=tuple(found.unknown),
        folder=folder,
    )


def _is_trace(path: str) -> bool:
    return path == SHELL_TRACE_FOLDER or path.startswith(f"{SHELL_TRACE_FOLDER}/")


def _is_device_node(path: str, state: PathState) -> bool:
    return state.device is not None and path.startswith("/dev/")


def _run(agent: Agent, found: _Found, *argv: str) -> CommandResult:
    return agent.run(argv, timeout_s=max(1.0, found.deadline.remaining_s()), env={"LC_ALL": "C"})


# Paths


def _read_paths(agent: Agent, found: _Found, mounts: Sequence[Mount], boot_id: str) -> float:
    """Read the paths of all file systems; return the time at which the newest ext4 file system was made."""
    made_at_s = 0.0
    targets = {mount.target for mount in mounts}
    small = list(RUN_PARTS)
    # Of several mounts on one folder, only the last is visible.
    for mount in {mount.target: mount for mount in mounts}.values():
        is_in_run = mount.target == "/run" or mount.target.startswith("/run/")
        if mount.root != "/" or mount.kind in _PASSED_OVER or is_in_run:
            continue
        if mount.kind in _SMALL:
            small.append(mount.target)
        elif mount.kind == "ext4":
            made_at_s = max(made_at_s, _read_ext4(agent, found, mount, targets))
        else:
            _note(
                found,
                StateKind.PATHS,
                mount.target,
                f"it has the file system '{mount.kind}', and only ext4 can be read",
            )
    _read_small(agent, found, small, boot_id)
    return made_at_s


def _read_ext4(agent: Agent, found: _Found, mount: Mount, targets: set[str]) -> float:
    top = mount.target.rstrip("/")
    hidden = {path[len(top) :] for path in targets if path.startswith(f"{top}/")}

    def read(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return agent.read_ranges(f"/dev/block/{mount.device}", ranges, found.deadline)

    trouble = ""
    for _ in range(_READ_ATTEMPTS):
        try:
            system = read_file_system(read, hidden)
        except Ext4Error as error:
            trouble = str(error)
            continue
        found.paths.update(_ext4_states(system, top))
        return system.made_at_s
    _note(found, StateKind.PATHS, mount.target, f"its file system can't be read: {trouble}")
    return 0.0


def _ext4_states(system: FileSystem, top: str) -> Iterator[tuple[str, PathState]]:
    for path, inode in system.inodes.items():
        full = f"{top}{path}" if path != "/" else top or "/"
        yield full, _state_of_inode(inode, system.uuid, system.targets.get(path))


def _state_of_inode(inode: Inode, uuid: str, target: str | None) -> PathState:
    capabilities: str | None = None
    xattrs: tuple[tuple[str, str], ...] = ()
    if inode.xattrs:
        value = inode.xattrs.get("security.capability")
        capabilities = None if value is None else state_parts.render_capabilities(value)
        xattrs = tuple(
            sorted(
                (name, content.hex())
                for name, content in inode.xattrs.items()
                if name != "security.capability"
            )
        )
    is_device = stat.S_ISCHR(inode.mode) or stat.S_ISBLK(inode.mode)
    return PathState(
        kind=letter_of(inode.mode),
        mode=stat.S_IMODE(inode.mode),
        uid=inode.uid,
        gid=inode.gid,
        size=inode.size if stat.S_ISREG(inode.mode) else 0,
        identity=FileIdentity(uuid, inode.number, inode.mtime_ns, inode.ctime_ns),
        target=target,
        device="{}:{}".format(*inode.device) if is_device else None,
        capabilities=capabilities,
        attributes=("i" if inode.flags & 0x10 else "") + ("a" if inode.flags & 0x20 else ""),
        xattrs=xattrs,
    )


def _read_small(agent: Agent, found: _Found, folders: Sequence[str], boot_id: str) -> None:
    """Read small file systems with find, without the capabilities of their files."""
    result = _run(agent, found, "find", *folders, "-xdev", "-printf", _FIND_FORMAT)
    _note_errors(found, result, "find: ")
    fields = result.stdout.split("\0")
    devices = []
    for head, target in zip(fields[::2], fields[1::2], strict=False):
        kind, mode, uid, gid, size, mtime, ctime, path = head.split(" ", 7)
        identity = FileIdentity(boot_id, NO_INODE, _nanoseconds(mtime), _nanoseconds(ctime))
        found.paths[path] = PathState(
            kind=kind,
            mode=int(mode, 8),
            uid=int(uid),
            gid=int(gid),
            size=int(size) if kind == "f" else 0,
            identity=identity,
            target=target if kind == "l" else None,
        )
        if kind in {"b", "c"}:
            devices.append(path)
    if not devices:
        return
    result = _run(agent, found, "stat", "--printf=%t:%T %n\\0", "--", *devices)
    _note_errors(found, result, "stat: ")
    for line in result.stdout.split("\0")[:-1]:
        number, _, path = line.partition(" ")
        major, minor = (int(each, 16) for each in number.split(":"))
        found.paths[path] = found.paths[path]._replace(device=f"{major}:{minor}")


def _nanoseconds(text: str) -> int:
    seconds, _, fraction = text.partition(".")
    return int(seconds) * 1_000_000_000 + int(fraction[:9].ljust(9, "0"))


def _note_errors(found: _Found, result: CommandResult, prefix: str) -> None:
    """Record as unknown each path that `find` or `stat` could not read, except absent paths."""
    for line in result.stderr.splitlines():
        if _MAY_BE_ABSENT not in line:
            path, _, reason = line.removeprefix(prefix).rpartition(": ")
            path = path.partition("'")[2].rpartition("'")[0] or path
            _note(found, StateKind.PATHS, path or "*", reason)
    if not result.ok and not result.stderr:
        _note(found, StateKind.PATHS, "*", f"{prefix}exit code {result.exit_code}")


# Contents


def _to_digest(paths: Mapping[str, PathState], made_at_s: float, run_ns: range) -> list[str]:
    """Return the files to read: files that were written since the image was made, newest first.

    `run_ns` is the period from the node's start until now, by the node's clock. Files that were
    written in `run_ns` are included, because the node's clock may be behind the time at which the
    image was made. Before all other files, the result has the files that tools often write again
    with the same content.
    """
    since_ns = int((made_at_s + _BUILD_S) * 1_000_000_000)
    first: list[tuple[int, str]] = []
    rest: list[tuple[int, str]] = []
    for path, state in paths.items():
        if state.kind != "f" or not 0 < state.size <= _LONGEST_READ:
            continue
        if (
            state.identity.inode == NO_INODE
            or path.startswith(_ALWAYS_READ)
            or (path.startswith(_MODULE_LISTS) and "/modules." in path)
        ):
            first.append((-state.identity.ctime_ns, path))
        elif state.identity.ctime_ns > since_ns or state.identity.ctime_ns in run_ns:
            rest.append((-state.identity.ctime_ns, path))
    chosen: list[str] = []
    left = _MOST_READ
    for _, path in (*sorted(first), *sorted(rest)):
        left -= paths[path].size
        if left < 0 or len(chosen) == _MOST_FILES_READ:
            break
        chosen.append(path)
    return chosen


def _read_digests(agent: Agent, found: _Found, paths: Sequence[str]) -> None:
    """Read the digests of files; a file that can't be read gets no digest.

    A file without a digest is compared by its `FileIdentity`.
    """
    output = bytearray()
    agent.stream(
        ["xargs", "-0", "-r", "sha256sum", "-z", "--"],
        timeout_s=max(1.0, found.deadline.remaining_s()),
        stdin=b"".join(path.encode(errors="surrogateescape") + b"\0" for path in paths),
        on_stdout=output.extend,
    )
    for line in output.split(b"\0")[:-1]:
        digest, _, name = line.decode(errors="surrogateescape").partition("  ")
        found.paths[name] = found.paths[name]._replace(sha256=digest)


# Tools


_TOOLS: Mapping[StateKind, tuple[str, ...]] = {
    StateKind.IMAGES: ("ctr", "-n", "k8s.io", "images", "ls"),
    StateKind.UNITS: (
        *("systemctl", "list-units", "--all", "--full", "--no-pager", "--output=json"),
    ),
    StateKind.LIBRARIES: ("ldconfig", "-p"),
    StateKind.PACKAGES: (
        *("dpkg-query", "-W", "-f"),
        r"${Package}:${Architecture} ${Version} ${db:Status-Status}\n",
    ),
    StateKind.PCI_FUNCTIONS: (
        *("find", "/sys/bus/pci/drivers", "-mindepth", "2", "-maxdepth", "2"),
        *("-name", "*:*", "-printf", r"%P\n"),
    ),
    # Reading fails for parameters that can only be written, and for parameters that have no value
    # yet.
    StateKind.SYSCTLS: ("grep", "-arHsZ", "", "/proc/sys"),
}


def _run_tools(agent: Agent, found: _Found) -> dict[StateKind, CommandResult]:
    return {kind: _run(agent, found, *argv) for kind, argv in _TOOLS.items()}


def _parse_tools(
    found: _Found, results: Mapping[StateKind, CommandResult], files: Mapping[str, list[str]]
) -> None:
    parsers: dict[StateKind, Callable[[str], Items]] = {
        StateKind.UNITS: lambda text: state_parts.units(text, found.paths),
        StateKind.LIBRARIES: state_parts.libraries,
        StateKind.PACKAGES: state_parts.packages,
        StateKind.IMAGES: state_parts.images,
        StateKind.PCI_FUNCTIONS: lambda text: state_parts.pci_functions(files, text),
    }
    for kind, parse in parsers.items():
        result = results[kind]
        if kind is StateKind.IMAGES and result.exit_code == _NO_SUCH_PROGRAM:
            # A node without containerd has no images.
            found.items[kind] = {}
        elif not result.ok:
            last = (result.stderr.strip() or "it printed no error").splitlines()[-1]
            program = result.argv[0]
            _note(found, kind, "*", f"'{program}' ended with exit code {result.exit_code}: {last}")
        else:
            _parse(found, kind, parse, result.stdout)
    parameters = state_parts.parse_lines_by_file(results[StateKind.SYSCTLS].stdout)
    _parse(found, StateKind.SYSCTLS, lambda _: state_parts.sysctls(parameters), "")
    _parse(found, StateKind.PORTS, lambda _: state_parts.ports({**files, **parameters}), "")


def _parse(found: _Found, kind: StateKind, parse: Callable[[str], Items], text: str) -> None:
    try:
        found.items[kind] = parse(text)
    except (*_OTHER_FORM, HarnessError) as error:
        _note(found, kind, "*", f"the node's output about it has an unknown format ({error!r})")


def _note(found: _Found, kind: StateKind, name: str, reason: str) -> None:
    found.unknown.append(Unknown(kind, name, reason))
