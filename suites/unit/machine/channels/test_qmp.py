"""A QMP session against the other end of a socket pair."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.errors import HarnessError
from harness.machine.channels import qmp
from harness.machine.channels.event_log import names
from harness.machine.channels.monitor import COMMAND_S
from harness.machine.channels.qmp import QmpSession
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline
from suites.unit.machine.fake_qemu import FakeQemu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.provisioning.wait import Clock

_LONG_S = 20.0
_SHORT_S = 0.02


def _session(qemu: FakeQemu) -> QmpSession:
    session = QmpSession("node", qemu.ours)
    session.connect(Deadline.after(_LONG_S))
    return session


@pytest.fixture
def qemu() -> Iterator[FakeQemu]:
    answers = {
        "query-status": {"return": {"status": "running"}},
        "device_add": {"error": {"class": "GenericError", "desc": "Bus 'rp9' not found"}},
    }
    with FakeQemu(answers, silent=frozenset({"stop"})) as fake:
        yield fake


@pytest.fixture
def session(qemu: FakeQemu) -> Iterator[QmpSession]:
    session = _session(qemu)
    yield session
    session.close()


def test_error_for_a_refused_qmp_command_has_qemus_message(session: QmpSession) -> None:
    with pytest.raises(HarnessError, match="machine 'node' failed QMP command 'device_add': Bus"):
        session.execute("device_add", limit_s=_LONG_S)


def test_qmp_command_without_an_answer_ends_at_its_limit(
    session: QmpSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a default deadline, a hanging QEMU would hang the whole run."""
    limits_s: list[float] = []

    class SoonOver(Deadline):
        @classmethod
        @override
        def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
            limits_s.append(seconds)
            return Deadline.after(_SHORT_S, clock)

    monkeypatch.setattr(qmp, "Deadline", SoonOver)

    expected = (
        "QEMU of machine 'node' did not answer QMP command 'stop' in time; its main loop may be "
        "blocked by a device server that stopped answering."
    )
    with pytest.raises(HarnessError, match=f"^{re.escape(expected)}$"):
        session.execute("stop")
    with pytest.raises(HarnessError, match=f"^{re.escape(expected)}$"):
        session.execute("stop", limit_s=7.5)
    assert limits_s == [COMMAND_S, 7.5]


def test_qmp_answer_is_awaited_until_the_time_limit(
    session: QmpSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that the event loop needs to clean up is added to the limit."""
    monkeypatch.setattr(qmp, "_CLOSE_S", 2 * _LONG_S)

    assert session.execute("query-status", limit_s=_LONG_S) == {"status": "running"}


def test_qmp_session_continues_after_a_command_without_an_answer(session: QmpSession) -> None:
    with pytest.raises(HarnessError):
        session.execute("stop", limit_s=_SHORT_S)

    assert session.execute("query-status", limit_s=_LONG_S) == {"status": "running"}


def test_wait_for_a_qmp_answer_ends_as_soon_as_qemu_has_exited(session: QmpSession) -> None:
    with pytest.raises(HarnessError, match="failed QMP command 'quit'"):
        session.execute("quit", limit_s=_LONG_S)


def test_file_descriptor_is_sent_to_qemu_with_its_command(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    file = tmp_path_factory.mktemp("fd") / "file"
    with FakeQemu({"getfd": {"return": {}}}) as qemu, file.open("w") as opened:
        session = _session(qemu)

        session.execute("getfd", {"fdname": "fd-gpu0"}, fd=opened.fileno())

        session.close()
        assert qemu.commands[-1]["arguments"] == {"fdname": "fd-gpu0"}
        assert qemu.descriptors == [(file.stat().st_dev, file.stat().st_ino)]


def test_event_that_arrived_before_a_wait_ends_the_wait_at_once(
    qemu: FakeQemu, session: QmpSession
) -> None:
    qemu.send_event("SHUTDOWN", {"reason": "guest-shutdown"})
    session.execute("query-status", limit_s=_LONG_S)

    event = session.wait_for_event("its end", names("SHUTDOWN"), Deadline.after(_LONG_S))

    assert (event.name, event.data, event.at_s) == (
        "SHUTDOWN",
        {"reason": "guest-shutdown"},
        1700000000.5,
    )


def test_events_before_the_start_position_do_not_end_a_wait(
    qemu: FakeQemu, session: QmpSession
) -> None:
    qemu.send_event("RESET")
    session.wait_for_event("a reset", names("RESET"), Deadline.after(_LONG_S))

    with pytest.raises(
        HarnessError, match="did not report a reset in time; events seen: no event"
    ):
        session.wait_for_event("a reset", names("RESET"), Deadline.after(_SHORT_S), since=1)


def test_wait_ends_as_soon_as_qemu_has_exited(qemu: FakeQemu, session: QmpSession) -> None:
    going = threading.Timer(_SHORT_S, qemu.hang_up)
    going.start()

    expected = (
        "QEMU of machine 'node' ended during the wait for its power-off; events seen: no event. "
        "QEMU's stderr and the console show why."
    )
    with pytest.raises(HarnessError, match=f"^{re.escape(expected)}$"):
        session.wait_for_event("its power-off", names("SHUTDOWN"), Deadline.after(_LONG_S))

    going.join()


def test_all_events_that_qemu_sends_just_before_it_exits_are_kept(
    qemu: FakeQemu, session: QmpSession
) -> None:
    for number in range(20):
        qemu.send_event("SHUTDOWN" if number == 19 else "RESET", {"number": number})
    qemu.hang_up()

    session.wait_for_event("its end", names("SHUTDOWN"), Deadline.after(_LONG_S))

    assert [event.data for event in session.events] == [{"number": n} for n in range(20)]


def test_event_without_data_has_empty_data(qemu: FakeQemu, session: QmpSession) -> None:
    """The STOP event of QEMU has no data."""
    qemu.send_event("STOP")

    event = session.wait_for_event("a stop", names("STOP"), Deadline.after(_LONG_S))

    assert event.data == {}


def test_wait_for_the_greeting_of_qemu_ends_at_the_deadline() -> None:
    with FakeQemu(greets=False) as qemu:
        session = QmpSession("node", qemu.ours)

        with pytest.raises(HarnessError, match="did not answer the QMP greeting in time"):
            session.connect(Deadline.after(_SHORT_S))

        session.close()


def test_qemu_that_exits_before_its_greeting_ends_the_wait_early() -> None:
    with FakeQemu(greets=False) as qemu:
        qemu.hang_up()
        session = QmpSession("node", qemu.ours)

        with pytest.raises(HarnessError, match="failed the QMP greeting"):
            session.connect(Deadline.after(_LONG_S))

        session.close()


def test_closed_qmp_session_leaves_no_thread_or_socket_and_refuses_commands(
    qemu: FakeQemu,
) -> None:
    """The session's thread is a daemon, since an error may leave the session open."""
    before = set(threading.enumerate())
    session = _session(qemu)
    (loop,) = set(threading.enumerate()) - before

    session.close()

    assert loop.daemon
    assert not loop.is_alive()
    assert qemu.ours.fileno() == -1
    with pytest.raises(HarnessError, match="the machine has ended"):
        session.execute("query-status", limit_s=_LONG_S)
