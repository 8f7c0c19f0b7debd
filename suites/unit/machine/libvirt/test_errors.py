"""Each kind of error from libvirt is reported as one sentence with a remedy."""

from __future__ import annotations

import errno

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


def test_error_for_a_missing_libvirtd_says_how_to_start_libvirtd_for_the_uri() -> None:
    message = "Failed to connect socket to '/s': No such file"

    assert _connecting("qemu:///system", message, number=errno.ENOENT) == (
        "No libvirtd answers at 'qemu:///system' (Failed to connect socket to '/s': No such "
        "file); start it by `systemctl start libvirtd`, or without systemd `virtlogd -d` and "
        "`libvirtd -d`, or name another libvirtd by --machine-uri."
    )
    assert _connecting("qemu:///session", "nobody.", number=errno.ECONNREFUSED) == (
        "No libvirtd answers at 'qemu:///session' (nobody); start it by `libvirtd -d` as this user, or "
        "name another libvirtd by --machine-uri."
    )


def test_error_for_a_user_without_permission_mentions_the_group_to_join() -> None:
    said = {
        (code, number): _connecting(
            "qemu:///system", "denied by policy.", code=code, number=number
        )
        for code, number in (
            (Code.SYSTEM_ERROR, errno.EACCES),
            (Code.SYSTEM_ERROR, errno.EPERM),
            (Code.AUTH_FAILED, 0),
            (Code.AUTH_CANCELLED, 0),
            (Code.AUTH_UNAVAILABLE, 0),
            (Code.ACCESS_DENIED, 0),
        )
    }

    assert said == dict.fromkeys(
        said,
        "User 'ada' may not use libvirt at 'qemu:///system' (denied by policy); let it join the group "
        "of libvirt's socket (`usermod --append --groups libvirt ada`, and log in again), or use "
        "'qemu:///session'.",
    )


def test_error_for_a_call_that_libvirt_lacks_says_that_libvirt_is_too_old() -> None:
    for code, message in (
        (Code.NO_SUPPORT, "this function is not supported by the connection driver"),
        (Code.RPC, "unknown procedure: 447"),
    ):
        error = refused_call(
            "the save of 'x'", "u", ErrorContext(code=code, origin=7, message=f"{message}.")
        )

        assert isinstance(error, LibvirtError)
        assert error.code == code
        assert str(error) == (
            f"libvirt at 'u' is too old for the save of 'x': {message}. Use a newer libvirt."
        )


def test_error_for_read_only_access_suggests_a_read_write_connection() -> None:
    context = ErrorContext(code=Code.OPERATION_DENIED, origin=0, message="read only access.")

    error = refused_call("the start of 'x'", "u", context)

    assert isinstance(error, LibvirtError)
    assert error.code == Code.OPERATION_DENIED
    assert str(error) == (
        "libvirt at 'u' does not allow the start of 'x': read only access. Use a read-write "
        "connection, and a user whom libvirt's polkit rules allow to manage machines."
    )


def test_error_of_a_refused_call_has_the_message_and_code_of_libvirt() -> None:
    for code, message in (
        (Code.OPERATION_FAILED, "domain 'x' exists"),
        (Code.RPC, "unexpected message"),
        (Code.OPERATION_FAILED, "unknown procedure of the guest"),
    ):
        context = ErrorContext(code=code, origin=10, message=f"{message}.")

        error = refused_call("the start of 'x'", "u", context)

        assert isinstance(error, LibvirtError)
        assert str(error) == f"libvirt at 'u' failed the start of 'x': {message}."
        assert error.code == code


def test_lost_connection_is_reported_with_the_purpose_of_the_call_and_a_remedy() -> None:
    context = ErrorContext(
        code=Code.INTERNAL_ERROR, origin=ErrorDomain.RPC, message="client socket is closed."
    )

    assert str(refused_call("the start of 'x'", "u", context)) == (
        "libvirtd at 'u' ended or was restarted during the start of 'x' (client socket is closed); the "
        "machines of that connection ended too. Read libvirtd's log for the reason, then run again."
    )


def test_only_errors_of_the_connection_are_classified_as_a_lost_connection() -> None:
    losses = {
        (Code.INVALID_CONN, 0, "invalid connection pointer"): True,
        (Code.SYSTEM_ERROR, ErrorDomain.RPC, "Cannot recv data: Connection reset by peer"): True,
        (Code.INTERNAL_ERROR, ErrorDomain.RPC, "client socket is closed"): True,
        (Code.INTERNAL_ERROR, ErrorDomain.RPC, "unexpected message"): False,
        (Code.SYSTEM_ERROR, 10, "Unable to read from monitor: Connection reset by peer"): False,
        (Code.OPERATION_FAILED, ErrorDomain.RPC, "closed"): False,
    }
    contexts = {
        each: ErrorContext(code=each[0], origin=each[1], message=each[2]) for each in losses
    }

    assert {each: context.is_connection_loss for each, context in contexts.items()} == losses
    assert {
        each: isinstance(refused_call("a call", "u", context), ConnectionLostError)
        for each, context in contexts.items()
    } == losses


def test_error_context_has_an_errno_only_for_a_system_error_with_a_positive_errno() -> None:
    kept = {
        number: ErrorContext.of(FakeLibvirtError("no", code=Code.SYSTEM_ERROR, errno=number)).errno
        for number in (errno.EPERM, 0, -1)
    }

    assert kept == {errno.EPERM: errno.EPERM, 0: None, -1: None}
    other = FakeLibvirtError("no", code=Code.OPERATION_FAILED, errno=errno.EPERM)
    assert ErrorContext.of(other).errno is None


class BindingError(Exception):
    """An error that the Python binding raises itself, without an error of libvirt."""

    def get_nothing(self) -> None: ...

    get_error_code = get_error_domain = get_error_message = get_int1 = get_nothing


def test_unknown_libvirt_error_is_reported_as_a_failed_call() -> None:
    context = ErrorContext.of(BindingError("virDomainCreateXML() failed"))

    assert context == ErrorContext(code=-1, origin=-1, message="virDomainCreateXML() failed")
    assert str(refused_call("the start of 'x'", "u", context)) == (
        "libvirt at 'u' failed the start of 'x': virDomainCreateXML() failed."
    )
