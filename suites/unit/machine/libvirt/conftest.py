"""Gives the tests a libvirt that is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.machine.libvirt import connection
from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

if TYPE_CHECKING:
    from collections.abc import Callable


class NoLoop:
    """An event loop that never turns."""

    def start(self, libvirt: object) -> None: ...


@pytest.fixture
def libvirt(monkeypatch: pytest.MonkeyPatch) -> FakeLibvirt:
    fake = FakeLibvirt()
    load: Callable[[], FakeLibvirt] = lambda: fake  # noqa: E731
    monkeypatch.setattr(connection, "load_libvirt", load)
    monkeypatch.setattr(connection, "EVENT_LOOP", NoLoop())
    return fake
