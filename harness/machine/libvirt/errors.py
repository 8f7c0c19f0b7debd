"""libvirt's errors as sentences that end with a remedy. The module does not import libvirt."""

from __future__ import annotations

import enum
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, RequirementError
from harness.machine.channels.monitor import MonitorLostError

if TYPE_CHECKING:
    from harness.machine.libvirt.uri import HostUri


class Code(enum.IntEnum):
    """libvirt's error numbers, from virterror.h, that the harness distinguishes."""

    INTERNAL_ERROR = 1
    NO_SUPPORT = 3
    INVALID_CONN = 6
    OPERATION_FAILED = 9
    OPERATION_DENIED = 29
    SYSTEM_ERROR = 38
    RPC = 39
    NO_DOMAIN = 42
    AUTH_FAILED = 45
    OPERATION_INVALID = 55
    AUTH_CANCELLED = 79
    ACCESS_DENIED = 88
    AUTH_UNAVAILABLE = 94


class ErrorDomain(enum.IntEnum):
    """libvirt's error domains, from virterror.h, whose errors are about the connection."""

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
    """libvirt refused a call. `code` is libvirt's error number, mostly one of `Code`."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class ConnectionLostError(MonitorLostError):
    """A connection's libvirtd ended or was restarted, so the connection's machines ended too."""


class NotAllowedError(RequirementError):
    """A libvirtd answers, but refuses this user."""


class NoDaemonError(RequirementError):
    """No libvirtd of this host answers."""


@dataclass(frozen=True, kw_only=True)
class ErrorContext:
    """One error as libvirt reports it. `errno` is the operating system's error number, or None."""

    code: int
    origin: int
    message: str
    errno: int | None = None

    @classmethod
    def of(cls, error: Any) -> ErrorContext:
        """Read the fields of a `libvirtError`."""
        code = error.get_error_code()
        number = error.get_int1()
        return cls(
            code=-1 if code is None else code,
            origin=-1 if code is None else error.get_error_domain(),
            message=str(error.get_error_message() or error),
            errno=number if code == Code.SYSTEM_ERROR and number and number > 0 else None,
        )

    @property
    def is_connection_loss(self) -> bool:
        """Return whether the connection itself failed and can't be used any more."""
        if self.code == Code.INVALID_CONN:
            return True
        if self.origin not in tuple(ErrorDomain):
            return False
        # After the first failed call, libvirt reports "client socket is closed" for each later
        # call.
        return self.code == Code.SYSTEM_ERROR or (
            self.code == Code.INTERNAL_ERROR and "closed" in self.message
        )


def refused_call(what: str, uri: str, error: ErrorContext) -> HarnessError:
    """Return the exception for a failed call on an open connection."""
    detail = error.message.rstrip(".")
    if error.is_connection_loss:
        return lost(what, uri, detail)
    if error.code == Code.NO_SUPPORT or (error.code == Code.RPC and "unknown procedure" in detail):
        return LibvirtError(
            f"libvirt at '{uri}' is too old for {what}: {detail}. Use a newer libvirt.",
            code=error.code,
        )
    if error.code in _NOT_ALLOWED:
        return LibvirtError(
            f"libvirt at '{uri}' does not allow {what}: {detail}. Use a read-write connection, "
            "and a user whom libvirt's polkit rules allow to manage machines.",
            code=error.code,
        )
    return LibvirtError(f"libvirt at '{uri}' failed {what}: {detail}.", code=error.code)


def lost(what: str, uri: str, detail: str) -> ConnectionLostError:
    """Return the exception for a broken connection."""
    return ConnectionLostError(
        f"libvirtd at '{uri}' ended or was restarted during {what} ({detail}); the machines of that "
        "connection ended too. Read libvirtd's log for the reason, then run again."
    )


def refused_connection(uri: HostUri, user: str, error: ErrorContext) -> HarnessError:
    """Return the exception for a connection that could not be opened."""
    detail = error.message.rstrip(".")
    if error.errno in {errno.EACCES, errno.EPERM} or error.code in _NOT_ALLOWED:
        return NotAllowedError(
            f"User '{user}' may not use libvirt at '{uri.text}' ({detail}); let it join the group of "
            f"libvirt's socket (`usermod --append --groups libvirt {user}`, and log in "
            "again), or use 'qemu:///session'."
        )
    start = (
        "`libvirtd -d` as this user"
        if uri.is_session
        else "`systemctl start libvirtd`, or without systemd `virtlogd -d` and `libvirtd -d`"
    )
    return NoDaemonError(
        f"No libvirtd answers at '{uri.text}' ({detail}); start it by {start}, or name another "
        "libvirtd by --machine-uri."
    )
