"""Pure functions that parse what tools and the kernel print about parts of a node's state."""

from __future__ import annotations

import ipaddress
import re
import struct
from typing import TYPE_CHECKING, NamedTuple

from harness.foreign_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from harness.evidence.state import PathState

    Items = dict[str, dict[str, str]]

#: Values that change on an idle node.
_VOLATILE_SYSCTLS = re.compile(
    r"kernel\.(random\..*|ns_last_pid|pty\.nr|tainted_by|perf_event_max_sample_rate|perf_cpu_time_max_percent)"
    r"|fs\.(dentry-state|file-nr|inode-nr|inode-state|aio-nr|quota\..*)"
    r"|net\.(.*\.)?(nf_conntrack_count|stable_secret|base_reachable_time.*)"
)
#: Folders of unit files in order of precedence, from systemd.unit(5).
UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
)
#: The suffix of units that are left out: device units only repeat device nodes and PCI functions.
_NO_UNITS = (".device",)
_UNIT_SUFFIXES = (
    *(".service", ".socket", ".target", ".mount", ".automount", ".swap", ".timer"),
    *(".path", ".slice", ".scope"),
)
_IN_UNIT_FOLDER = re.compile(
    "(?P<folder>" + "|".join(map(re.escape, UNIT_FOLDERS)) + ")/"
    r"((?P<of>[^/]+)\.(?P<link>wants|requires|upholds|d)/)?(?P<name>[^/]+)"
)
#: Folders in which an administrator or a program enables units; the folders of packages are fixed.
_ENABLING = ("/etc/systemd/system", "/run/systemd/system")
_LISTENING = "0A"
_UDP_UNCONNECTED = "07"
#: The names of capabilities by their bits, from linux/capability.h.
_CAPABILITIES = (
    *("chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid"),
    *("setuid", "setpcap", "linux_immutable", "net_bind_service", "net_broadcast"),
    *("net_admin", "net_raw", "ipc_lock", "ipc_owner", "sys_module", "sys_rawio"),
    *("sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice"),
    *("sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write"),
    *("audit_control", "setfcap", "mac_override", "mac_admin", "syslog", "wake_alarm"),
    *("block_suspend", "audit_read", "perfmon", "bpf", "checkpoint_restore"),
)


class Mount(NamedTuple):
    """A line of /proc/self/mountinfo."""

    device: str
    root: str
    target: str
    options: str
    kind: str
    source: str


def parse_lines_by_file(text: str) -> dict[str, list[str]]:
    """Parse the output of `grep -HZ ''`: return the lines of each file; empty files are left out."""
    found: dict[str, list[str]] = {}
    for line in text.split("\n")[:-1]:
        path, _, content = line.partition("\0")
        found.setdefault(path, []).append(content)
    return found


def pci_functions(files: Mapping[str, list[str]], bound: str) -> Items:
    """Return the PCI functions from their files in sysfs; `bound` lists bound drivers as DRIVER/SLOT."""
    drivers = {slot: driver for driver, _, slot in (x.partition("/") for x in bound.splitlines())}
    found: Items = {}
    for path, lines in files.items():
        if path.startswith("/sys/bus/pci/devices/"):
            *_, slot, name = path.split("/")
            found.setdefault(slot, {"driver": drivers.get(slot, "none")})[name] = lines[0]
    return found


def modules(files: Mapping[str, list[str]]) -> Items:
    """Return the loaded kernel modules from /proc/modules, with their versions from /sys/module."""
    found: Items = {}
    for line in files.get("/proc/modules", []):
        name, _, references, holders, *_ = line.split()
        found[name] = {
            "references": references,
            "holders": ",".join(sorted(each for each in holders.strip("-").split(",") if each)),
        }
        for key in ("version", "srcversion"):
            if value := files.get(f"/sys/module/{name}/{key}"):
                found[name][key] = value[0]
    return found


def parse_mountinfo(lines: Iterable[str]) -> Iterator[Mount]:
    """Parse /proc/self/mountinfo, where blanks are octal escapes (proc(5))."""
    for line in lines:
        words = line.split(" ")
        end = words.index("-")
        kind, source, more = words[end + 1 : end + 4]
        yield Mount(
            device=words[2],
            root=_unescape(words[3]),
            target=_unescape(words[4]),
            options=f"{words[5]};{more}",
            kind=kind,
            source=_unescape(source),
        )


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def mounts(found: Iterable[Mount]) -> Items:
    """Return mounts by target; if a target has several mounts, the names of the later mounts end with a number."""
    items: Items = {}
    for mount in found:
        name, number = mount.target, 1
        while name in items:
            number += 1
            name = f"{mount.target} #{number}"
        items[name] = {
            "source": mount.source,
            "kind": mount.kind,
            "root": mount.root,
            "options": mount.options,
        }
    return items


def users(lines: Iterable[str]) -> Items:
    """Parse /etc/passwd."""
    keys = ("uid", "gid", "comment", "home", "shell")
    rows = (line.split(":") for line in lines if line.count(":") == 6)
    return {row[0]: dict(zip(keys, row[2:], strict=True)) for row in rows}


def groups(lines: Iterable[str]) -> Items:
    """Parse /etc/group."""
    rows = (line.split(":") for line in lines if line.count(":") == 3)
    return {row[0]: {"gid": row[2], "members": row[3]} for row in rows}


def ports(files: Mapping[str, list[str]]) -> Items:
    """Return the ports on which processes listen, from /proc/net.

    Only the count of kernel-assigned TCP ports is returned, because the kernel assigns other
    numbers each time. UDP has no listening state, so a UDP port is returned if its socket is not
    connected and the kernel did not assign the port.
    """
    low, high = (int(each) for each in files["/proc/sys/net/ipv4/ip_local_port_range"][0].split())
    found: Items = {}
    for path, lines in files.items():
        protocol = path.removeprefix("/proc/net/")
        if protocol not in {"tcp", "tcp6", "udp", "udp6"}:
            continue
        wanted = _LISTENING if protocol.startswith("tcp") else _UDP_UNCONNECTED
        for line in lines[1:]:
            words = line.split()
            address, port = _address(words[1])
            if words[3] != wanted:
                continue
            if not low <= port <= high:
                found[f"{protocol} {address}:{port}"] = {"uid": words[7]}
            elif wanted == _LISTENING:
                item = found.setdefault(f"{protocol} {address}:{low}-{high}", {"count": "0"})
                item["count"] = str(int(item["count"]) + 1)
    return found


def _address(text: str) -> tuple[str, int]:
    """Parse an address of /proc/net: words of four bytes in the byte order of the processor."""
    digits, _, port = text.partition(":")
    raw = bytes.fromhex(digits)
    words = struct.unpack(f"<{len(raw) // 4}I", raw)
    address = ipaddress.ip_address(struct.pack(f">{len(words)}I", *words))
    return (f"[{address}]" if address.version == 6 else str(address)), int(port, 16)


def sysctls(files: Mapping[str, list[str]]) -> Items:
    """Return kernel parameters by their names in sysctl(8), without volatile parameters.

    Raises KeyError if not even the kernel's release could be read.
    """
    found: Items = {"kernel.osrelease": {"value": files["/proc/sys/kernel/osrelease"][0]}}
    for path, lines in files.items():
        name = path.removeprefix("/proc/sys/").translate(str.maketrans("./", "/."))
        if not _VOLATILE_SYSCTLS.fullmatch(name):
            found[name] = {"value": "\n".join(lines)}
    return found


def packages(text: str) -> Items:
    """Parse lines that contain a package, a version and a status."""
    rows = (line.split(" ") for line in text.splitlines())
    return {name: {"version": version, "status": status} for name, version, status in rows}


def libraries(text: str) -> Items:
    """Parse `ldconfig -p`; a library for several architectures has several paths."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if " => " in line:
            name, _, path = line.strip().partition(" => ")
            found.setdefault(name, []).append(path)
    return {name: {"path": " ".join(paths)} for name, paths in found.items()}


def images(text: str) -> Items:
    """Parse the columns of `ctr images ls`: reference, type, digest and more."""
    rows = (line.split() for line in text.splitlines()[1:])
    return {row[0]: {"digest": row[2]} for row in rows if len(row) > 2}


def units(text: str, paths: Mapping[str, PathState]) -> Items:
    """Return units from `systemctl list-units --output=json` and from the folders of units.

    Links and files in the folders of units show whether a unit is enabled, linked or masked, and
    which drop-ins the unit has. So these attributes of a unit do not depend on whether systemd has
    loaded the unit.
    """
    found: Items = {}
    for path, state in paths.items():
        if not path.startswith(UNIT_FOLDERS):
            continue
        match = _IN_UNIT_FOLDER.fullmatch(path)
        if match is not None:
            _note_unit_path(found, match, state)
    for unit in parse_json(text):
        name, active = str(unit["unit"]), str(unit["active"])
        if name.endswith(_NO_UNITS) or (name not in found and active == "inactive"):
            continue
        found.setdefault(name, {}).update(active=active, sub=str(unit["sub"]))
    for item in found.values():
        item.setdefault("active", "inactive")
        item.setdefault("sub", "dead")
    return found


def _note_unit_path(found: Items, match: re.Match[str], state: PathState) -> None:
    folder, of, link, name = match["folder"], match["of"], match["link"], match["name"]
    if link == "d":
        if name.endswith(".conf"):
            _add(found, of, "drop-ins", match[0])
    elif link is not None:
        if folder in _ENABLING:
            _add(found, name, "enabled", f"{folder}/{of}.{link}")
    elif not name.endswith(_UNIT_SUFFIXES):
        return
    elif state.target is None:
        _add(found, name, "file", match[0])
    elif state.target == "/dev/null":
        _add(found, name, "masked", match[0])
    else:
        _add(found, name, "link", f"{match[0]} to {state.target}")
        unit = state.target.rsplit("/", 1)[-1]
        if folder in _ENABLING and unit != name:
            # `systemctl enable` created this link as an alias.
            _add(found, unit, "enabled", match[0])


def _add(found: Items, unit: str, key: str, value: str) -> None:
    item = found.setdefault(unit, {})
    item[key] = " ".join(sorted({*item.get(key, "").split(" "), value} - {""}))


def render_capabilities(value: bytes) -> str:
    """Render the attribute `security.capability` as getcap(8) does, with the attribute's root user id."""
    magic, permitted, inheritable = struct.unpack_from("<III", value)
    if len(value) >= 20:
        permitted_high, inheritable_high = struct.unpack_from("<II", value, 12)
        permitted |= permitted_high << 32
        inheritable |= inheritable_high << 32
    root = f" root user {struct.unpack_from('<I', value, 20)[0]}" if len(value) >= 24 else ""
    parts = [
        f"{_capability_names(mask)}+{flag}"
        for mask, flag in (
            (permitted, "ep" if magic & 1 else "p"),
            (inheritable, "i"),
        )
        if mask
    ]
    return (" ".join(parts) or "none") + root


def _capability_names(mask: int) -> str:
    return ",".join(
        f"cap_{_CAPABILITIES[bit]}" if bit < len(_CAPABILITIES) else f"cap_{bit}"
        for bit in range(mask.bit_length())
        if mask >> bit & 1
    )
