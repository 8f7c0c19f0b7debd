"""Checks the requirements of machines under libvirt, without starting a machine."""

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
from harness.machine.capacity.broker import host_folder
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.connection import dotted, version_of
from harness.machine.libvirt.driver import DEFAULT_URI, connect
from harness.machine.libvirt.errors import NotAllowedError
from harness.machine.requirement_check import RequirementCheck

if TYPE_CHECKING:
    from collections.abc import Collection

    from harness.machine.description.spec import Accelerator
    from harness.machine.libvirt.connection import Connection

KVM = Path("/dev/kvm")
_BINDING = "libvirt's Python binding"
_DAEMON = "libvirtd"
_PERMISSION = "permission for libvirt"
_EMULATOR = "libvirt's emulator"
_KVM = "KVM for libvirt's QEMU"
#: All checks, in this order.
REQUIREMENTS = (_BINDING, _DAEMON, _PERMISSION, _EMULATOR, _KVM)
_ARCH = "x86_64"
_MACHINE = "q35"
_ACL = "system.posix_acl_access"


@dataclass(frozen=True, kw_only=True)
class Device:
    """The owner and the permissions of a device node."""

    mode: int
    owner: int
    group: int
    has_acl: bool = False

    @classmethod
    def read(cls, path: Path) -> Device | None:
        """Return the device node at `path`, or None if it does not exist."""
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
        """Return whether the mode lets the user read and write the device node."""
        if user == 0:
            return True
        shift = 6 if user == self.owner else 3 if self.group in groups else 0
        return self.mode >> shift & 0o6 == 0o6


def examine(
    uri: str | None, *, qemu: str, accelerator: Accelerator | None
) -> list[RequirementCheck]:
    """Check the requirements of machines at `uri`. A failed check skips only the checks that depend on it."""
    try:
        number = load_libvirt().getVersion()
    except HarnessError as error:
        return [_missing(_BINDING, str(error))]
    binding = _met(
        _BINDING,
        f"libvirt-python, with the client library of libvirt {dotted(version_of(number))}.",
    )
    reports: list[str] = []
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(leased_folder(host_folder() / "libvirt", prefix="h"))
        try:
            connection = connect(uri or DEFAULT_URI, folder, opened, reports.append)
        except NotAllowedError as error:
            # The daemon answered, although it refused this user.
            return [
                binding,
                _met(_DAEMON, f"libvirtd answers at '{uri or DEFAULT_URI}'."),
                _missing(_PERMISSION, str(error)),
            ]
        except HarnessError as error:
            return [binding, _missing(_DAEMON, str(error))]
        version = dotted(connection.daemon_version)
        where = (
            f"No libvirtd answers at '{uri or DEFAULT_URI}', so each run starts a private "
            f"libvirtd: libvirt {version}."
            if reports
            else f"libvirt {version} at '{connection.uri}'."
        )
        return [
            binding,
            _met(_DAEMON, where),
            _met(_PERMISSION, f"User {os.geteuid()} may use libvirtd."),
            _emulator(connection, qemu, accelerator),
            _kvm(connection),
        ]


def _emulator(
    connection: Connection, qemu: str, accelerator: Accelerator | None
) -> RequirementCheck:
    """Ask libvirt for QEMU's capabilities. libvirt probes QEMU as QEMU's own user."""
    kind = "kvm" if accelerator is not None and accelerator.accel == "kvm" else "qemu"
    path = shutil.which(qemu) or qemu
    try:
        text = connection.run(
            f"the query of the capabilities of '{path}'",
            lambda: str(connection.raw.getDomainCapabilities(path, _ARCH, _MACHINE, kind, 0)),
        )
    except HarnessError as error:
        return _missing(
            _EMULATOR,
            str(error),
            "Run `apt-get install --no-install-recommends qemu-system-x86`, and see "
            "whether libvirt's QEMU user may execute the emulator"
            + (", or use --accelerator=tcg." if kind == "kvm" else "."),
        )
    emulator, machine = parse_emulator(text)
    return _met(_EMULATOR, f"{emulator}, with machine '{machine}' as domain type '{kind}'.")


def _kvm(connection: Connection) -> RequirementCheck:
    if connection.is_session:
        return _met(_KVM, "QEMU runs as libvirtd's own user, so both may open the same files.")
    try:
        capabilities = connection.run(
            "the query of its capabilities", lambda: str(connection.raw.getCapabilities())
        )
    except HarnessError as error:
        return _missing(_KVM, str(error))
    return judge_kvm(Device.read(KVM), parse_qemu_user(capabilities))


def judge_kvm(device: Device | None, user: tuple[int, int] | None) -> RequirementCheck:
    """Check that QEMU's user may open `/dev/kvm` if libvirtd may open it.

    If libvirtd, which is root, may open /dev/kvm, but QEMU's user may not, libvirtd probes QEMU some
    twenty times per start. Each probe finds KVM. At each use, libvirtd sees that QEMU's user may not
    open /dev/kvm, and discards the probed capabilities ('KVM was enabled when probing … but it is
    not available now'). Such starts took 22 and 92 seconds instead of 0.4.
    """
    if device is None:
        return _met(_KVM, f"There is no '{KVM}', so libvirt does not use it.")
    if user is None:
        return _met(_KVM, "libvirt runs QEMU as libvirtd's user, so both may open the same files.")
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
        f"but QEMU's user {name} may not. libvirt then probes QEMU some twenty times "
        "for each start of a machine, even without KVM: 22 to 92 seconds were "
        "measured instead of one.",
        f"Run `chgrp kvm {KVM} && chmod 0660 {KVM}`, as udev does on other hosts, and add that user to "
        "the group 'kvm', "
        'or set `user = "root"` in /etc/libvirt/qemu.conf; then restart libvirtd. '
        "The private libvirtd, which a run starts if no libvirtd runs, is not affected.",
    )


def parse_qemu_user(capabilities: str) -> tuple[int, int] | None:
    """Return the user and group of libvirt's QEMU, if libvirt sets them."""
    host = ET.fromstring(capabilities).find("host")  # noqa: S314 - XML from libvirtd
    for model in () if host is None else host.findall("secmodel"):
        if model.findtext("model") != "dac":
            continue
        for label in model.findall("baselabel"):
            user, _, group = (label.text or "").partition(":")
            if label.get("type") == "kvm":
                # The ids begin with a plus sign, which `int` accepts.
                return int(user), int(group)
    return None


def parse_emulator(capabilities: str) -> tuple[str, str]:
    """Return path and machine type, from libvirt's answer about an emulator."""
    tree = ET.fromstring(capabilities)  # noqa: S314 - XML from libvirtd
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


def _met(requirement: str, found: str) -> RequirementCheck:
    return RequirementCheck(requirement=requirement, is_met=True, found=found)


def _missing(requirement: str, found: str, remedy: str | None = None) -> RequirementCheck:
    return RequirementCheck(requirement=requirement, is_met=False, found=found, remedy=remedy)
