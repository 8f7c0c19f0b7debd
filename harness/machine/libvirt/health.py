"""What a libvirt has of what machines need, found without starting one."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import stat
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.lease import leased_folder
from harness.machine.broker import host_folder
from harness.machine.finding import Finding
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.complaint import NotAllowedError
from harness.machine.libvirt.driver import DEFAULT_URI, connect

if TYPE_CHECKING:
    from collections.abc import Collection

    from harness.machine.libvirt.connection import Connection
    from harness.machine.spec import Accelerator

KVM = Path("/dev/kvm")
_BINDING = "libvirt's Python binding"
_DAEMON = "libvirtd"
_PERMISSION = "permission for libvirt"
_EMULATOR = "libvirt's emulator"
_KVM = "KVM for libvirt's QEMU"
#: All that is looked at, in this order.
REQUIREMENTS = (_BINDING, _DAEMON, _PERMISSION, _EMULATOR, _KVM)
_ARCH = "x86_64"
_MACHINE = "q35"
_ACL = "system.posix_acl_access"


@dataclass(frozen=True, kw_only=True)
class Device:
    """Who may open a device node."""

    mode: int
    owner: int
    group: int
    has_acl: bool = False

    @classmethod
    def look(cls, path: Path) -> Device | None:
        """Return the node at `path`, or nothing where there is none."""
        try:
            node = path.stat()
        except OSError:
            return None
        has_acl = False
        with contextlib.suppress(OSError):
            has_acl = _ACL in os.listxattr(path)
        return cls(
            mode=stat.S_IMODE(node.st_mode),
            owner=node.st_uid,
            group=node.st_gid,
            has_acl=has_acl,
        )

    def is_open_to(self, user: int, groups: Collection[int]) -> bool:
        """Tell whether the user may read and write it, by its mode alone."""
        if user == 0:
            return True
        shift = 6 if user == self.owner else 3 if self.group in groups else 0
        return self.mode >> shift & 0o6 == 0o6


def examine(uri: str | None, *, qemu: str, accelerator: Accelerator | None) -> list[Finding]:
    """Look for what machines at `uri` need; what is missing hides only what depends on it."""
    try:
        number = load_libvirt().getVersion()
    except HarnessError as error:
        return [_missing(_BINDING, str(error))]
    version = f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"
    binding = _met(_BINDING, f"libvirt-python, on libvirt {version}.")
    told: list[str] = []
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(leased_folder(host_folder() / "libvirt", prefix="h"))
        try:
            connection = connect(uri or DEFAULT_URI, folder, opened, told.append)
        except NotAllowedError as error:
            # It answered, if only to refuse.
            return [
                binding,
                _met(_DAEMON, f"It answers at '{uri or DEFAULT_URI}'."),
                _missing(_PERMISSION, str(error)),
            ]
        except HarnessError as error:
            return [binding, _missing(_DAEMON, str(error))]
        dotted = ".".join(str(part) for part in connection.daemon_version)
        where = (
            f"None answers at '{uri or DEFAULT_URI}', so each run starts one of its own: libvirt "
            f"{dotted}."
            if told
            else f"libvirt {dotted} at '{connection.uri}'."
        )
        return [
            binding,
            _met(_DAEMON, where),
            _met(_PERMISSION, f"User {os.geteuid()} may use it."),
            _emulator(connection, qemu, accelerator),
            _kvm(connection),
        ]


def _emulator(connection: Connection, qemu: str, accelerator: Accelerator | None) -> Finding:
    """Ask libvirt what QEMU can do: it runs it to find out, as its own user."""
    kind = "kvm" if accelerator is not None and accelerator.accel == "kvm" else "qemu"
    # A far host has its emulator where its distribution puts it.
    path = (shutil.which(qemu) or qemu) if connection.is_local else None
    try:
        text = connection.run(
            f"the query of what '{path or 'its QEMU'}' can do",
            lambda: str(connection.raw.getDomainCapabilities(path, _ARCH, _MACHINE, kind, 0)),
        )
    except HarnessError as error:
        return _missing(
            _EMULATOR,
            str(error),
            "Run `apt-get install --no-install-recommends qemu-system-x86` on that host, and see "
            "whether libvirt's QEMU user may execute the emulator"
            + (", or use --accelerator=tcg." if kind == "kvm" else "."),
        )
    emulator, machine = parse_emulator(text)
    return _met(_EMULATOR, f"{emulator}, with machine '{machine}' as domain type '{kind}'.")


def _kvm(connection: Connection) -> Finding:
    if not connection.is_local:
        return _met(_KVM, "Its /dev/kvm is the other host's, and not looked at from here.")
    if connection.is_session:
        return _met(_KVM, "QEMU runs as libvirtd's own user, so what one may open, both may.")
    capabilities = connection.run(
        "the query of its capabilities", lambda: str(connection.raw.getCapabilities())
    )
    return judge_kvm(Device.look(KVM), parse_qemu_user(capabilities))


def judge_kvm(device: Device | None, user: tuple[int, int] | None) -> Finding:
    """Find the trap: a KVM that libvirtd may open and its QEMU's user may not.

    libvirtd, as root, finds that QEMU has KVM. At each use it sees that QEMU's user has none, calls
    what it found stale, and finds out again ('KVM was enabled when probing … but it is not
    available now'), some twenty times a start: 22 and 92 seconds were measured, against 0.4.
    """
    if device is None:
        return _met(_KVM, f"There is no '{KVM}', so libvirt does not count on it.")
    if user is None:
        return _met(_KVM, "libvirt changes no user for QEMU, so what one may open, both may.")
    number, group = user
    name, groups = _account(number, group)
    if device.is_open_to(number, groups):
        return _met(_KVM, f"QEMU's user {name} may open '{KVM}'.")
    if device.has_acl:
        return _met(
            _KVM,
            f"'{KVM}' has an access list, which decides whether QEMU's user {name} may open it.",
        )
    return _missing(
        _KVM,
        f"'{KVM}' has mode {device.mode:04o} and owner {_owner_of(device)}: libvirtd may open it, "
        f"but QEMU's user {name} may not. libvirt then finds out what QEMU can do some twenty times "
        "for each start of a machine, also of one that does without KVM: 22 to 92 seconds were "
        "measured, where others take one.",
        f"Run `chgrp kvm {KVM} && chmod 0660 {KVM}` with the user in that group, as udev does on "
        'other hosts, or set `user = "root"` in /etc/libvirt/qemu.conf; then restart libvirtd. '
        "A libvirtd of the run's own, which is started where none runs, does not have this.",
    )


def parse_qemu_user(capabilities: str) -> tuple[int, int] | None:
    """Return user and group that libvirt runs QEMU as, where it sets them."""
    host = ET.fromstring(capabilities).find("host")  # noqa: S314 - libvirt's
    for model in () if host is None else host.findall("secmodel"):
        if model.findtext("model") != "dac":
            continue
        for label in model.findall("baselabel"):
            user, _, group = (label.text or "").partition(":")
            if label.get("type") == "kvm":
                return int(user.lstrip("+")), int(group.lstrip("+"))
    return None


def parse_emulator(capabilities: str) -> tuple[str, str]:
    """Return path and machine type, from libvirt's answer about an emulator."""
    tree = ET.fromstring(capabilities)  # noqa: S314 - libvirt's
    return tree.findtext("path", "?"), tree.findtext("machine", "?")


def _account(user: int, group: int) -> tuple[str, set[int]]:
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user), {group}
    return f"'{name}'", {group, *os.getgrouplist(name, group)}


def _owner_of(device: Device) -> str:
    owner, group = str(device.owner), str(device.group)
    with contextlib.suppress(KeyError):
        owner = pwd.getpwuid(device.owner).pw_name
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(device.group).gr_name
    return f"{owner}:{group}"


def _met(requirement: str, found: str) -> Finding:
    return Finding(requirement=requirement, is_met=True, found=found)


def _missing(requirement: str, found: str, remedy: str | None = None) -> Finding:
    return Finding(requirement=requirement, is_met=False, found=found, remedy=remedy)
