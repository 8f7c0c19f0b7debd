"""Each way in which libvirt refuses, as one sentence with its remedy."""

from __future__ import annotations

import errno

import pytest

from harness.errors import RequirementError
from harness.machine.libvirt.errors import (
    Code,
    ConnectionLostError,
    ErrorContext,
    ErrorDomain,
    LibvirtError,
    refused_call,
    refused_connection,
)
from harness.machine.libvirt.uri import HostUri
from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirtError


def _connecting(uri: str, message: str, *, code: int = Code.SYSTEM_ERROR, number: int = 0) -> str:
    context = ErrorContext(
        code=code, origin=ErrorDomain.RPC, message=message, errno=number or None
    )
    error = refused_connection(HostUri.parse(uri), "ada", context)
    assert isinstance(error, RequirementError)
    return str(error)


def test_host_without_a_daemon_is_reported_with_the_remedy() -> None:
    said = _connecting(
        "qemu:///system", "Failed to connect socket to '/s': No such file", number=errno.ENOENT
    )

    assert said == (
        "No libvirtd answers at 'qemu:///system' (Failed to connect socket to '/s': No such "
        "file); start it by `systemctl start libvirtd`, or without systemd `virtlogd -d` and "
        "`libvirtd -d`, or name another by --machine-uri."
    )


def test_users_own_daemon_is_started_by_the_user() -> None:
    said = _connecting("qemu:///session", "nobody", number=errno.ECONNREFUSED)

    assert "start it by `libvirtd -d` as this user" in said


@pytest.mark.parametrize(
    ("code", "number"),
    [
        (Code.SYSTEM_ERROR, errno.EACCES),
        (Code.AUTH_FAILED, 0),
        (Code.AUTH_CANCELLED, 0),
        (Code.AUTH_UNAVAILABLE, 0),
        (Code.ACCESS_DENIED, 0),
    ],
)
def test_user_without_permission_gets_the_group_as_remedy(code: Code, number: int) -> None:
    said = _connecting("qemu:///system", "denied by policy.", code=code, number=number)

    assert said.startswith("User 'ada' may not use libvirt at 'qemu:///system' (denied by policy)")
    assert "`usermod --append --groups libvirt ada`" in said


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("qemu+ssh://remote/system", "`ssh remote true` has to work without a password"),
        ("qemu+ssh://ada@remote:22022/system", "`ssh -p 22022 ada@remote true` has to work"),
        ("qemu+tls://remote/system", "the transport 'tls' has to lead to a running libvirtd"),
    ],
)
def test_remote_host_that_does_not_answer_is_named_with_the_way_there(
    uri: str, remedy: str
) -> None:
    said = _connecting(uri, "Connection reset", number=errno.ECONNRESET)

    assert said.startswith(f"The libvirtd of '{uri}' can't be reached (Connection reset)")
    assert remedy in said


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (Code.NO_SUPPORT, "this function is not supported by the connection driver"),
        (Code.RPC, "unknown procedure: 447"),
    ],
)
def test_daemon_that_lacks_a_call_is_called_too_old(code: Code, message: str) -> None:
    error = refused_call(
        "the save of 'x'", "u", ErrorContext(code=code, origin=7, message=message)
    )

    assert isinstance(error, LibvirtError)
    assert error.code == code
    assert str(error) == (
        f"libvirt at 'u' is too old for the save of 'x': {message}. Use a host with a newer "
        "libvirt."
    )


def test_read_only_user_is_reported() -> None:
    context = ErrorContext(code=Code.OPERATION_DENIED, origin=0, message="read only access")

    said = str(refused_call("the start of 'x'", "u", context))

    assert said.startswith("libvirt at 'u' does not allow the start of 'x': read only access.")


def test_other_error_keeps_libvirts_message_and_number() -> None:
    context = ErrorContext(code=Code.OPERATION_FAILED, origin=10, message="domain 'x' exists")

    error = refused_call("the start of 'x'", "u", context)

    assert isinstance(error, LibvirtError)
    assert str(error) == "libvirt at 'u' failed the start of 'x': domain 'x' exists."
    assert error.code == Code.OPERATION_FAILED


@pytest.mark.parametrize(
    ("code", "origin", "message", "is_loss"),
    [
        (Code.INVALID_CONN, 0, "invalid connection pointer", True),
        (Code.SYSTEM_ERROR, ErrorDomain.RPC, "Cannot recv data: Connection reset by peer", True),
        (Code.INTERNAL_ERROR, ErrorDomain.RPC, "client socket is closed", True),
        (Code.INTERNAL_ERROR, ErrorDomain.RPC, "unexpected message", False),
        (Code.SYSTEM_ERROR, 10, "Unable to read from monitor: Connection reset by peer", False),
        (Code.OPERATION_FAILED, ErrorDomain.RPC, "closed", False),
    ],
)
def test_only_errors_of_the_connection_count_as_a_loss(
    code: Code, origin: int, message: str, *, is_loss: bool
) -> None:
    context = ErrorContext(code=code, origin=origin, message=message)

    assert context.is_connection_loss is is_loss
    error = refused_call("a call", "u", context)
    assert isinstance(error, ConnectionLostError) is is_loss


def test_error_is_taken_apart_with_its_system_number() -> None:
    error = FakeLibvirtError("no", code=Code.SYSTEM_ERROR, origin=7, errno=errno.ENOENT)

    assert ErrorContext.of(error) == ErrorContext(
        code=38, origin=7, message="no", errno=errno.ENOENT
    )


def test_number_of_another_error_is_not_an_errno() -> None:
    error = FakeLibvirtError("no", code=Code.RPC, origin=7, errno=13)

    assert ErrorContext.of(error).errno is None
