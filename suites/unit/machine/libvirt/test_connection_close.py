"""The close of a connection, and the log messages of a close that fails or hangs."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness.machine.libvirt import connection as connection_module
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.errors import Code
from harness.provisioning.wait import Deadline
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect, FakeLibvirtError
from suites.unit.machine.libvirt.impatient_watchdog import join_late

if TYPE_CHECKING:
    from suites.unit.machine.libvirt.conftest import Log
    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

_LONG_S = 20.0
_LOGGER = connection_module.__name__


def _open(libvirt: FakeLibvirt, raw: FakeConnect) -> Connection:
    libvirt.connects.append(raw)
    return Connection.open("qemu:///system", deadline=Deadline.after(_LONG_S))


def test_connection_that_is_not_closed_cleanly_is_logged(
    libvirt: FakeLibvirt, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    def refuse() -> NoReturn:
        raise FakeLibvirtError("not now", code=Code.OPERATION_FAILED)

    raw = FakeConnect()
    monkeypatch.setattr(raw, "unregisterCloseCallback", refuse)

    with _open(libvirt, raw):
        pass

    assert [(record.levelno, record.getMessage()) for record in log.records] == [
        (logging.WARNING, "The connection to 'qemu:///system' was not closed cleanly: not now")
    ]
    assert raw.calls[-1] == "close"


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("unregisterCloseCallback", "the removal of its close callback"),
        ("close", "the end of the connection"),
    ],
)
def test_hanging_close_is_abandoned_and_logged(
    libvirt: FakeLibvirt,
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
    call: str,
    what: str,
) -> None:
    release = threading.Event()

    def hang() -> int:
        release.wait(_LONG_S)
        return 0

    raw = FakeConnect()
    monkeypatch.setattr(connection_module, "_CLOSE_S", 0.05)
    monkeypatch.setattr(raw, call, hang)

    with _open(libvirt, raw):
        pass
    release.set()
    join_late(what, _LONG_S)

    start = (
        "The connection to 'qemu:///system' was not closed cleanly: libvirt did not answer "
        f"{what} to 'qemu:///system' within "
    )
    # On a busy host, the other call may also exceed its limit.
    assert any(record.getMessage().startswith(start) for record in log.records)
