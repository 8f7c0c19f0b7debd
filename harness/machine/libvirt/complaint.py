"""What libvirt complains of, as sentences that end with a remedy; pure data, no libvirt."""

from __future__ import annotations

import enum
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, RequirementError

if TYPE_CHECKING:
    from harness.machine.libvirt.uri import HostUri


class Code(enum.IntEnum):
    """The numbers of libvirt's virterror.h that the harness tells apart."""

    INTERNAL_ERROR = 1
    NO_SUPPORT = 3
    NO_CONNECT = 5
    INVALID_CONN = 6
    OPERATION_FAILED = 9
    OPERATION_DENIED = 29
    SYSTEM_ERROR = 38
    RPC = 39
    NO_DOMAIN = 42
    AUTH_FAILED = 45
    NO_STORAGE_POOL = 49
    NO_STORAGE_VOL = 50
    OPERATION_INVALID = 55
    CONFIG_UNSUPPORTED = 67
    AUTH_CANCELLED = 79
    ACCESS_DENIED = 88
    STORAGE_VOL_EXIST = 90
    AUTH_UNAVAILABLE = 94


class Origin(enum.IntEnum):
    """The parts of libvirt, by virterror.h, whose complaints are about the connection."""

    RPC = 7
    REMOTE = 13


_NOT_ALLOWED = frozenset(
    {
        Code.OPERATION_DENIED,
        Code.AUTH_FAILED,
        Code.AUTH_CANCELLED,
        Code.AUTH_UNAVAILABLE,
        Code.ACCESS_DENIED,
    }
)


class LibvirtError(HarnessError):
    """libvirt refused a call; `code` is the number it gave, mostly one of `Code`."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class ConnectionLostError(HarnessError):
    """The libvirtd behind a connection ended or was restarted; what hung on it is gone."""


class NotAllowedError(RequirementError):
    """A libvirtd is there, but not for this user."""


class NoDaemonError(RequirementError):
    """No libvirtd of this host answers."""


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """One error as libvirt tells it; `errno` is the system's number where there is one."""

    code: int
    origin: int
    message: str
    errno: int | None = None

    @classmethod
    def of(cls, error: Any) -> Complaint:
        """Take a `libvirtError` apart."""
        code = error.get_error_code()
        number = error.get_int1()
        return cls(
            code=-1 if code is None else code,
            origin=-1 if code is None else error.get_error_domain(),
            message=str(error.get_error_message() or error),
            errno=number if code == Code.SYSTEM_ERROR and number and number > 0 else None,
        )

    @property
    def tells_of_loss(self) -> bool:
        """Tell whether the connection itself is at fault, and no longer of use."""
        if self.code == Code.INVALID_CONN:
            return True
        if self.origin not in tuple(Origin):
            return False
        # "client socket is closed" is libvirt's word for each call after the first that failed.
        return self.code == Code.SYSTEM_ERROR or (
            self.code == Code.INTERNAL_ERROR and "closed" in self.message
        )


def refused_call(what: str, uri: str, complaint: Complaint) -> HarnessError:
    """Return what to raise where a call on an open connection failed."""
    said = complaint.message.rstrip(".")
    if complaint.tells_of_loss:
        return lost(what, uri, said)
    if complaint.code == Code.NO_SUPPORT or (
        complaint.code == Code.RPC and "unknown procedure" in said
    ):
        return LibvirtError(
            f"libvirt at '{uri}' is too old for {what}: {said}. Use a host with a newer libvirt.",
            code=complaint.code,
        )
    if complaint.code in _NOT_ALLOWED:
        return LibvirtError(
            f"libvirt at '{uri}' does not allow {what}: {said}. Use a connection that may write, "
            "and a user whom libvirt's polkit rules let manage machines.",
            code=complaint.code,
        )
    return LibvirtError(f"libvirt at '{uri}' failed {what}: {said}.", code=complaint.code)


def lost(what: str, uri: str, said: str) -> ConnectionLostError:
    """Return what to raise where the connection broke."""
    return ConnectionLostError(
        f"libvirtd at '{uri}' ended or was restarted during {what} ({said}); the machines of that "
        "connection are gone with it. Look into libvirtd's log for the reason, then run again."
    )


def refused_connection(uri: HostUri, user: str, complaint: Complaint) -> HarnessError:
    """Return what to raise where no connection came to be."""
    said = complaint.message.rstrip(".")
    if complaint.errno in {errno.EACCES, errno.EPERM} or complaint.code in _NOT_ALLOWED:
        return NotAllowedError(
            f"User '{user}' may not use libvirt at '{uri.text}' ({said}); let it join the group of "
            f"libvirt's socket there (`usermod --append --groups libvirt {user}`, and log in "
            "again), or use 'qemu:///session'."
        )
    if uri.is_local:
        start = (
            "`libvirtd -d` as this user"
            if uri.is_session
            else "`systemctl start libvirtd`, or without systemd `virtlogd -d` and `libvirtd -d`"
        )
        return NoDaemonError(
            f"No libvirtd answers at '{uri.text}' ({said}); start it by {start}, or name another "
            "by --machine-uri."
        )
    return unreachable(uri, said)


def unreachable(uri: HostUri, said: str) -> RequirementError:
    """Return what to raise where another host's libvirtd is out of reach."""
    way = (
        f"`{uri.ssh_command}` has to work without a password"
        if uri.transport == "ssh"
        else f"the transport '{uri.transport}' has to lead to a running libvirtd"
    )
    return RequirementError(
        f"The libvirtd of '{uri.text}' can't be reached ({said}); {way}, and a libvirtd has to "
        "run there."
    )
