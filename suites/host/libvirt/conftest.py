"""Fixtures that start a private libvirtd for the tests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from harness.lease import leased_folder
from harness.machine.capacity.broker import host_folder
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.daemon_layout import DaemonKind
from harness.machine.libvirt.private_daemon import PrivateDaemon, private_daemon
from harness.plugin.select import requirements
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.settings import Settings

PATIENCE_S = 60.0


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a folder with a short path: in a worker, pytest's path is too long for a socket."""
    with leased_folder(host_folder() / "libvirt", prefix="t") as folder:
        yield folder / "d"


@pytest.fixture
def daemon_folder() -> Iterator[Path]:
    """Yield the folder for a second daemon, which the module does not share."""
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="module", params=list(DaemonKind), ids=lambda kind: kind.value)
def daemon(request: pytest.FixtureRequest, settings: Settings) -> Iterator[PrivateDaemon]:
    """Yield a running daemon, which all tests of a module share."""
    with contextlib.ExitStack() as stack:
        with requirements(settings):
            load_libvirt()
            running = stack.enter_context(
                private_daemon(
                    stack.enter_context(short_folder()),
                    kind=request.param,
                    deadline=Deadline.after(PATIENCE_S),
                )
            )
        yield running


@pytest.fixture
def connection(daemon: PrivateDaemon) -> Iterator[Connection]:
    """Yield a connection to the daemon that the module shares."""
    with Connection.open(daemon.uri, deadline=Deadline.after(PATIENCE_S)) as opened:
        yield opened
