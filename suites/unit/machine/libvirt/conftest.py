"""Fixtures that replace libvirt by a fake."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.machine.libvirt import connection as connection_module
from harness.machine.libvirt.connection import Connection
from harness.provisioning.wait import Deadline
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect, FakeLibvirt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Log(logging.Handler):
    """Records log messages. pytest's `caplog` is missing in workers that run the whole suite."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    @property
    def warnings(self) -> list[str]:
        return [one.getMessage() for one in self.records if one.levelno >= logging.WARNING]


@pytest.fixture
def log() -> Iterator[Log]:
    logger = logging.getLogger("harness")
    handler, level = Log(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


class NoLoop:
    """An event loop that never runs."""

    def start(self, libvirt: object) -> None: ...


@pytest.fixture
def libvirt(monkeypatch: pytest.MonkeyPatch) -> FakeLibvirt:
    fake = FakeLibvirt()
    load: Callable[[], FakeLibvirt] = lambda: fake  # noqa: E731
    monkeypatch.setattr(connection_module, "load_libvirt", load)
    monkeypatch.setattr(connection_module, "EVENT_LOOP", NoLoop())
    return fake


@pytest.fixture
def raw() -> FakeConnect:
    return FakeConnect()


@pytest.fixture
def connection(libvirt: FakeLibvirt, raw: FakeConnect) -> Iterator[Connection]:
    libvirt.connects.append(raw)
    with Connection.open("qemu:///system", deadline=Deadline.after(20.0)) as opened:
        yield opened
