"""A connection to libvirtd: its opening, the errors of its calls, and its loss."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness.errors import BadInputError, RequirementError
from harness.machine.libvirt import connection as connection_module
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.errors import (
    Code,
    ConnectionLostError,
    ErrorDomain,
    LibvirtError,
    NoDaemonError,
)
from harness.machine.libvirt.watchdog import LibvirtHangsError
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline
from suites.fakes.clock import FakeClock
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect, FakeLibvirtError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.provisioning.wait import Clock
    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

_LONG_S = 20.0
URI = "qemu:///system"


NO_DAEMON = FakeLibvirtError("no such file", code=Code.SYSTEM_ERROR, origin=7, errno=2)


def _open(
    libvirt: FakeLibvirt,
    *connects: FakeConnect | FakeLibvirtError,
    clock: Clock = SYSTEM_CLOCK,
) -> Connection:
    libvirt.connects.extend(connects)
    return Connection.open(URI, deadline=Deadline.after(_LONG_S, clock))


def test_open_connection_is_kept_alive_and_has_the_version_of_its_daemon(
    libvirt: FakeLibvirt,
) -> None:
    raw = FakeConnect(version=10_003_001)

    with _open(libvirt, raw) as connection:
        assert connection.daemon_version == (10, 3, 1)
        assert connection.raw is raw
        assert "keep-alive 5 5" in raw.calls

    assert raw.calls[-2:] == ["unwatch", "close"]


def test_bad_uri_is_refused_before_libvirt_is_called(libvirt: FakeLibvirt) -> None:
    with pytest.raises(BadInputError, match="its scheme is not 'qemu'"):
        Connection.open("lxc:///", deadline=Deadline.after(_LONG_S))

    assert libvirt.opened == []


def test_connection_to_a_daemon_that_is_too_old_is_refused_and_closed(
    libvirt: FakeLibvirt,
) -> None:
    raw = FakeConnect(version=7_006_000)

    with pytest.raises(RequirementError, match=r"version 7\.6\.0, but machines need 8\.0\.0"):
        _open(libvirt, raw)

    assert raw.calls[-1] == "close"
    with _open(libvirt, FakeConnect(version=8_000_000)) as connection:
        assert connection.daemon_version == (8, 0, 0)


def test_event_loop_is_started_before_the_connection_is_opened(
    libvirt: FakeLibvirt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection uses the event loop that is registered when it is opened."""
    started: list[tuple[object, list[str]]] = []

    class Loop:
        def start(self, module: object) -> None:
            started.append((module, list(libvirt.opened)))

    monkeypatch.setattr(connection_module, "EVENT_LOOP", Loop())

    with _open(libvirt, FakeConnect()):
        assert started == [(libvirt, [])]


def test_error_has_the_name_of_a_refused_user_or_the_uid_if_the_user_has_no_name(
    libvirt: FakeLibvirt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unnamed(error: type[Exception]) -> str:
        raise error("no such user")

    monkeypatch.setattr("os.getuid", lambda: 4242)
    users: tuple[tuple[Callable[[], str], str], ...] = (
        (lambda: "ada", "ada"),
        (lambda: unnamed(KeyError), "4242"),
        (lambda: unnamed(OSError), "4242"),
    )
    for user, name in users:
        monkeypatch.setattr("getpass.getuser", user)

        with pytest.raises(
            RequirementError,
            match=rf"^User '{name}' may not use libvirt at 'qemu:///system' \(denied\); ",
        ):
            _open(libvirt, FakeLibvirtError("denied", code=Code.AUTH_FAILED))


def test_refused_libvirt_call_is_reported_with_its_purpose(libvirt: FakeLibvirt) -> None:
    def refuse() -> NoReturn:
        raise FakeLibvirtError("no domain 'x'", code=Code.NO_DOMAIN)

    with _open(libvirt, FakeConnect()) as connection:
        with pytest.raises(LibvirtError, match="failed the look at 'x': no domain") as caught:
            connection.run("the look at 'x'", refuse)

        assert caught.value.code == Code.NO_DOMAIN
        assert connection.run("the next call", lambda: 7) == 7


def test_hanging_libvirt_call_raises_an_error_with_all_stack_traces(libvirt: FakeLibvirt) -> None:
    release = threading.Event()

    def hang_in_libvirt() -> None:
        release.wait(_LONG_S)

    with _open(libvirt, FakeConnect()) as connection:
        with pytest.raises(LibvirtHangsError) as caught:
            connection.run("the start of 'x'", hang_in_libvirt, limit_s=0.05)
        release.set()

    assert "did not answer the start of 'x' at 'qemu:///system'" in caught.value.sentence
    assert "in hang_in_libvirt" in caught.value.sentence
    assert (
        "in test_hanging_libvirt_call_raises_an_error_with_all_stack_traces"
        in caught.value.sentence
    )


@pytest.fixture
def silent(libvirt: FakeLibvirt) -> Iterator[None]:
    """Let the opening of a connection hang until the test ends."""
    release = threading.Event()

    def hang(uri: str) -> FakeConnect:
        del uri
        release.wait(_LONG_S)
        return FakeConnect()

    libvirt.open = hang  # type: ignore[method-assign]
    yield
    release.set()


@pytest.mark.usefixtures("silent")
def test_wait_for_a_daemon_that_never_answers_ends_at_the_deadline() -> None:
    with pytest.raises(
        LibvirtHangsError, match=r"answer the connection to 'qemu:///system' within"
    ):
        Connection.open(URI, deadline=Deadline.after(0.05))


def test_every_libvirt_call_after_the_end_of_the_daemon_raises_a_connection_lost_error(
    libvirt: FakeLibvirt,
) -> None:
    raw = FakeConnect()
    with _open(libvirt, raw) as connection:
        losses: list[str] = []
        connection.on_loss(lambda: losses.append("lost"))

        raw.break_down()
        raw.break_down()

        assert losses == ["lost"]
        assert connection.is_lost
        with pytest.raises(
            ConnectionLostError,
            match=r"^libvirtd at 'qemu:///system' ended or was restarted during the look at 'x' \(end",
        ):
            connection.run("the look at 'x'", lambda: 7)
        with pytest.raises(ConnectionLostError) as lost:
            _ = connection.raw

    assert str(lost.value).startswith(
        "libvirtd at 'qemu:///system' ended or was restarted during a call (end of file); "
    )


def test_lost_connection_is_reported_with_the_reason_from_libvirt(libvirt: FakeLibvirt) -> None:
    for reason, why in ((0, "an error of the connection"), (9, "reason 9")):
        raw = FakeConnect()
        with _open(libvirt, raw) as connection:
            raw.break_down(reason)

            with pytest.raises(ConnectionLostError, match=rf"during a look \({why}\);"):
                connection.run("a look", lambda: 7)


def test_watcher_that_was_removed_is_not_notified_of_a_lost_connection(
    libvirt: FakeLibvirt,
) -> None:
    raw = FakeConnect()
    losses: list[str] = []
    with _open(libvirt, raw) as connection:
        forget = connection.on_loss(lambda: losses.append("the first"))
        connection.on_loss(lambda: losses.append("the second"))
        connection.on_loss(lambda: losses.append("the third"))
        forget()

        raw.break_down()

    assert losses == ["the second", "the third"]


def test_libvirt_call_that_fails_with_an_rpc_error_is_reported_as_a_lost_connection(
    libvirt: FakeLibvirt,
) -> None:
    def break_off() -> NoReturn:
        raise FakeLibvirtError(
            "Cannot recv data: Connection reset", code=Code.SYSTEM_ERROR, origin=ErrorDomain.RPC
        )

    with _open(libvirt, FakeConnect()) as connection:
        with pytest.raises(ConnectionLostError, match="during the start of 'x'"):
            connection.run("the start of 'x'", break_off)

        assert connection.is_lost
        with pytest.raises(
            ConnectionLostError, match=r"a look \(Cannot recv data: Connection res"
        ):
            connection.run("a look", lambda: 7)


def test_connection_to_a_daemon_that_refuses_a_needed_call_is_closed(
    libvirt: FakeLibvirt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise FakeLibvirtError("not now", code=Code.OPERATION_FAILED)

    for call, what in (
        ("getLibVersion", "the query of its version"),
        ("registerCloseCallback", "the registration of its close callback"),
        ("setKeepAlive", "keep-alive"),
    ):
        raw = FakeConnect()
        monkeypatch.setattr(raw, call, refuse)

        with pytest.raises(
            LibvirtError, match=rf"^libvirt at 'qemu:///system' failed {what}: not now\.$"
        ):
            _open(libvirt, raw)

        assert raw.calls[-1] == "close"


def test_only_a_lost_connection_is_reopened(libvirt: FakeLibvirt) -> None:
    old, new = FakeConnect(), FakeConnect()
    with _open(libvirt, old, new) as connection:
        generation = connection.generation
        connection.reopen(Deadline.after(_LONG_S))
        assert connection.raw is old

        old.break_down()
        connection.reopen(Deadline.after(_LONG_S))
        # An event of the old connection may arrive late.
        old.break_down()

        assert connection.raw is new
        assert not connection.is_lost
        assert connection.generation == generation + 1
        assert old.calls[-1] == "close"


def test_threads_that_reopen_a_lost_connection_share_one_new_connection(
    libvirt: FakeLibvirt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machines of one connection end if another connection replaces it."""
    old, new = FakeConnect(), FakeConnect()
    with _open(libvirt, old, new, FakeConnect()) as connection:
        generation = connection.generation
        open_next = libvirt.open
        other = threading.Thread(target=lambda: connection.reopen(Deadline.after(_LONG_S)))

        def slow_open(uri: str) -> FakeConnect:
            if not other.ident:
                other.start()
                other.join(0.05)
            return open_next(uri)

        monkeypatch.setattr(libvirt, "open", slow_open)
        old.break_down()
        connection.reopen(Deadline.after(_LONG_S))
        other.join(_LONG_S)

        assert connection.raw is new
        assert connection.generation == generation + 1


def test_libvirtd_that_is_being_restarted_is_awaited(libvirt: FakeLibvirt) -> None:
    old, new = FakeConnect(), FakeConnect()
    clock = FakeClock()
    with _open(libvirt, old, NO_DAEMON, NO_DAEMON, new, clock=clock) as connection:
        old.break_down()

        connection.reopen(Deadline.after(_LONG_S, clock))

        assert connection.raw is new


def test_libvirtd_that_does_not_come_back_is_awaited_only_once(
    libvirt: FakeLibvirt, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The harness makes each attempt in a new thread.
    monkeypatch.setattr(connection_module, "_INTERVAL_S", 1.0)
    old = FakeConnect()
    clock = FakeClock()
    with _open(libvirt, old, *[NO_DAEMON] * 100, clock=clock) as connection:
        old.break_down()
        with pytest.raises(NoDaemonError, match="No libvirtd answers"):
            connection.reopen(Deadline.after(_LONG_S, clock))
        asked = len(libvirt.opened)

        with pytest.raises(NoDaemonError, match="No libvirtd answers"):
            connection.reopen(Deadline.after(_LONG_S, clock))

        assert asked > 8
        assert 10 <= clock.elapsed_s < 11.5
        assert len(libvirt.opened) == asked + 1


def test_wait_for_a_libvirtd_that_is_being_restarted_ends_at_the_deadline(
    libvirt: FakeLibvirt,
) -> None:
    old = FakeConnect()
    clock = FakeClock()
    with _open(libvirt, old, *[NO_DAEMON] * 100, clock=clock) as connection:
        old.break_down()

        with pytest.raises(NoDaemonError, match="No libvirtd answers"):
            connection.reopen(Deadline.after(2, clock))

    assert 2 <= clock.elapsed_s < 2.5


def test_libvirtd_that_is_too_old_after_its_restart_is_not_used(libvirt: FakeLibvirt) -> None:
    old = FakeConnect()
    with _open(libvirt, old, FakeConnect(version=7_000_000)) as connection:
        old.break_down()
        with pytest.raises(RequirementError, match=r"is version 7\.0\.0"):
            connection.reopen(Deadline.after(_LONG_S))

        with pytest.raises(ConnectionLostError, match=r"a call \(the connection was closed\)"):
            _ = connection.raw


def test_closing_the_connection_does_not_report_a_loss(libvirt: FakeLibvirt) -> None:
    raw = FakeConnect()
    losses: list[str] = []
    connection = _open(libvirt, raw)
    connection.on_loss(lambda: losses.append("lost"))
    connection.close()

    raw.break_down(3)

    assert losses == []
    with pytest.raises(ConnectionLostError, match=r"a look \(the connection was closed\);"):
        connection.run("a look", lambda: 7)
