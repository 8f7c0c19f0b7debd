"""A missing Python binding of libvirt, and forks of a process that uses the binding."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError, RequirementError
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.connection import EventLoop

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def not_loaded() -> Iterator[None]:
    load_libvirt.cache_clear()
    yield
    load_libvirt.cache_clear()


@pytest.mark.usefixtures("not_loaded")
def test_error_for_a_missing_binding_mentions_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)

    with pytest.raises(RequirementError, match=r"pip install 'gpu-node-harness\[libvirt\]'"):
        load_libvirt()


def test_fork_of_a_process_with_an_event_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = EventLoop()
    loop._owner = 7
    monkeypatch.setattr("os.getpid", lambda: 8)

    expected = (
        "libvirt was started in process 7, and this process is a fork of that process. libvirt can't "
        "be used in both; open the connection in the process that uses it."
    )
    with pytest.raises(HarnessError, match=f"^{re.escape(expected)}$"):
        loop.start(object())
