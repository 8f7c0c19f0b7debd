"""The capacity of the host that all reservations together may use."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

import pytest

from harness.machine.capacity.broker import HostCapacity, is_bindable
from suites.unit.machine.capacity.builders import FakeHost

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def test_some_memory_is_reserved_for_the_host(host: FakeHost) -> None:
    memory_mib = {32000: 28800, 32009: 28809, 4000: 2976, 1024: 0, 512: 0}
    found = {}
    for total_mib in memory_mib:
        host.has(available_mib=1, total_mib=total_mib)
        found[total_mib] = HostCapacity.from_proc(host.proc).memory_mib

    assert found == memory_mib


def test_capacity_has_four_vcpus_for_each_core_and_at_least_eight(host: FakeHost) -> None:
    cpus = {1: 8, 2: 8, 16: 64}

    assert {cores: HostCapacity.from_proc(host.proc, cores=cores).cpus for cores in cpus} == cpus


def test_ports_are_outside_the_kernels_range_of_ephemeral_ports(host: FakeHost) -> None:
    first = {
        "32768\t60999\n": 24000,
        "1024 60999": 61000,
        "15000 65535": 10000,
        "26000 60999": 24000,
        "25999 60999": 61000,
        "20000 61000": 10000,
        "1024 65535": 24000,
    }
    assert HostCapacity.from_proc(host.proc).ports[0] == 24000
    folder = host.proc / "sys" / "net" / "ipv4"
    folder.mkdir(parents=True)
    found = {}
    for text in first:
        (folder / "ip_local_port_range").write_text(text)
        found[text] = HostCapacity.from_proc(host.proc).ports[0]

    assert found == first


def test_number_of_vcpus_depends_on_the_number_of_cores_if_the_system_reports_that_number(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for cores in (16, None):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        found.append(HostCapacity.from_proc(host.proc).cpus)

    assert found == [64, 8]


class FakeSocket:
    """A TCP socket on a host where somebody listens on port 24001 of the loopback."""

    def __init__(self, family: int, kind: int) -> None:
        assert (family, kind) == (socket.AF_INET, socket.SOCK_STREAM)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace

    def bind(self, address: tuple[str, int]) -> None:
        if address == ("127.0.0.1", 24001):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        assert address == ("127.0.0.1", 24002)


def test_loopback_port_with_a_listener_is_not_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", FakeSocket)

    free = [is_bindable(24001), is_bindable(24002)]

    monkeypatch.undo()
    assert free == [False, True]
