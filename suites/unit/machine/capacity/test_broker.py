"""Capacity of the host is reserved once, and is free again when its process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import reservation_folder
from harness.errors import HarnessError, RequirementError
from harness.machine.capacity import broker as broker_module
from harness.machine.capacity.broker import Demand, host_folder
from harness.provisioning.wait import Deadline
from suites.unit.machine.capacity.builders import CAPACITY, FakeHost, at_once, mib, whos

if TYPE_CHECKING:
    from harness.machine.capacity.broker import Reservation


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def test_reservations_of_several_processes_share_the_capacity(host: FakeHost) -> None:
    with (
        at_once(host.broker(1), "a", mib(2000)),
        at_once(host.broker(2), "b", mib(2000)),
    ):
        assert whos(host.broker(3)) == ["a", "b"]
        with (
            pytest.raises(HarnessError, match=r"0 of 4000 MiB are not reserved"),
            at_once(host.broker(3), "c", mib(1)),
        ):
            pass

    assert host.broker().entries() == []


def test_released_reservation_leaves_no_file_and_frees_its_capacity(host: FakeHost) -> None:
    with contextlib.suppress(ZeroDivisionError), at_once(host.broker(), "a", mib(4000)):
        raise ZeroDivisionError

    assert list(host.folder.iterdir()) == []
    with at_once(host.broker(), "b", mib(4000)):
        pass


def test_reservation_file_of_a_dead_process_is_removed_whatever_it_contains(
    host: FakeHost,
) -> None:
    with at_once(host.broker(), "a", mib(4000)):
        (file,) = host.folder.iterdir()
        kept = file.read_text()
    for content in ('{"who": 1}', kept):
        file.write_text(content, encoding="latin-1")

        with at_once(host.broker(), "b", mib(4000)):
            assert whos(host.broker()) == ["b"]
            assert not file.exists()


def test_error_has_the_path_of_an_active_reservation_that_cannot_be_parsed(host: FakeHost) -> None:
    """The demand of that reservation is unknown, so the broker can grant no other demand."""
    with at_once(host.broker(), "a", mib(1)):
        (file,) = host.folder.iterdir()
        for content in ("{half", "null", '{"who": "x"}'):
            file.write_text(content, encoding="latin-1")

            with (
                pytest.raises(HarnessError, match=rf"'{file}' can't be parsed .*fuser"),
                at_once(host.broker(), "b", mib(1)),
            ):
                pass


def test_demand_beyond_the_whole_host_is_refused_at_once(host: FakeHost) -> None:
    for demand, words in (
        (mib(4001), "4001 MiB of memory are requested, but this host has only 4000"),
        (mib(1, cpus=9), "9 vCPUs are requested, but this host has only 8"),
        (mib(1, ports=11), "11 ports are requested, but this host has only 10"),
    ):
        with (
            pytest.raises(RequirementError, match=f"^{words} .*; request less"),
            host.broker().reserve("a", demand, deadline=Deadline.after(1e9)),
        ):
            pass
    assert not host.folder.exists()


def test_negative_demand_is_refused() -> None:
    accepted = []
    for field in ("memory_mib", "cpus", "ports"):
        with contextlib.suppress(ValueError):
            accepted.append(Demand(**{"memory_mib": 1, "cpus": 1, field: -1}))

    assert accepted == []


def test_reservation_beyond_the_available_memory_is_refused(host: FakeHost) -> None:
    host.has(available_mib=999)

    with (
        pytest.raises(
            HarnessError,
            match=r"999 MiB available, of which 0 MiB are kept.*held by nobody.*`-n 1`",
        ),
        at_once(host.broker(), "a", mib(1000)),
    ):
        pass

    host.has(available_mib=1000)
    with at_once(host.broker(), "a", mib(1000)):
        pass


def test_memory_that_is_reserved_but_not_yet_used_is_not_reserved_again(host: FakeHost) -> None:
    host.has(available_mib=2500)

    with (
        at_once(host.broker(1), "a", mib(1500)),
        pytest.raises(HarnessError, match="of which 1500 MiB are kept for reservations"),
        at_once(host.broker(2), "b", mib(1500)),
    ):
        pass


def test_memory_that_a_reservation_already_uses_is_not_subtracted_twice(
    host: FakeHost,
) -> None:
    host.has(available_mib=2500)
    with at_once(host.broker(1), "a", mib(1500)) as reservation:
        reservation.used_by(4711)
        host.touches(4711, 1200)
        host.has(available_mib=2500 - 1200)

        with at_once(host.broker(2), "b", mib(1000)):
            pass
        with (
            pytest.raises(HarnessError, match="of which 300 MiB are kept for reservations"),
            at_once(host.broker(2), "b", mib(1001)),
        ):
            pass


def test_memory_use_of_one_process_does_not_reduce_the_reservation_of_another_process(
    host: FakeHost,
) -> None:
    """The first process touched more than it reserved. The second process touched nothing."""
    host.touches(4711, 1600)
    host.has(available_mib=1000)
    with contextlib.ExitStack() as reservations:
        reservations.enter_context(at_once(host.broker(1), "a", mib(500))).used_by(4711)
        reservations.enter_context(at_once(host.broker(2), "b", mib(600)))

        with (
            pytest.raises(HarnessError, match="of which 600 MiB are kept for reservations"),
            at_once(host.broker(3), "c", mib(401)),
        ):
            pass
        reservations.enter_context(at_once(host.broker(3), "c", mib(400)))


def test_process_that_has_ended_or_has_no_memory_figures_is_assumed_to_use_no_memory(
    host: FakeHost,
) -> None:
    (host.proc / "4712").mkdir()
    (host.proc / "4712" / "status").write_text("Name: kthread\n")
    host.has(available_mib=1000)
    for process in (4711, 4712):
        with at_once(host.broker(1), "a", mib(500)) as reservation:
            reservation.used_by(process)

            with (
                pytest.raises(HarnessError, match="of which 500 MiB are kept"),
                at_once(host.broker(2), "b", mib(501)),
            ):
                pass


def test_setting_the_process_of_an_ended_reservation_writes_nothing(
    host: FakeHost, tmp_path: Path
) -> None:
    with at_once(host.broker(), "a", mib(1)) as reservation:
        pass
    with (tmp_path / "other").open("w+") as other:
        # This file most likely gets the descriptor number that the reservation had.
        other.write("precious")
        other.flush()

        reservation.used_by(4711)

        assert (tmp_path / "other").read_text() == "precious"
    assert list(host.folder.iterdir()) == []


def test_reservation_is_kept_and_an_error_is_raised_if_the_disk_is_full(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with at_once(host.broker(), "a", mib(1)) as reservation:
        monkeypatch.setattr("os.pwrite", fail)
        with pytest.raises(HarnessError, match=r"'a' can't be written \(No space left"):
            reservation.used_by(4711)

        assert whos(host.broker()) == ["a"]


@pytest.mark.usefixtures("fake_time")
def test_error_for_a_locked_reservation_folder_has_the_path_of_the_folder(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservation_folder, "_LOCK_S", 0.01)
    assert host.broker().entries() == []
    descriptor = os.open(host.folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(
            HarnessError, match=rf"A suspended process may hold the lock; `fuser '{host.folder}'`"
        ):
            host.broker().entries()
    finally:
        os.close(descriptor)

    assert host.broker().entries() == []


def test_reserved_vcpus_are_not_reserved_again(host: FakeHost) -> None:
    with (
        at_once(host.broker(1), "a", mib(1, cpus=6)),
        pytest.raises(HarnessError, match="2 of 8 vCPUs are not reserved"),
        at_once(host.broker(2), "b", mib(1, cpus=3)),
    ):
        pass

    with (
        at_once(host.broker(1), "a", mib(1, cpus=6)),
        at_once(host.broker(2), "b", mib(1, cpus=2)),
    ):
        assert whos(host.broker()) == ["a", "b"]


def test_ports_are_reserved_once_and_only_if_nobody_listens_on_them(host: FakeHost) -> None:
    host.busy_ports = {24003, 24007}

    with (
        at_once(host.broker(1), "a", mib(1, ports=5)) as first,
        at_once(host.broker(2), "b", mib(1, ports=3)) as second,
    ):
        ports = {*first.ports, *second.ports}
        with (
            pytest.raises(HarnessError, match="0 of the ports 24000 to 24009 are free"),
            at_once(host.broker(3), "c", mib(1, ports=1)),
        ):
            pass

    assert (len(first.ports), len(second.ports)) == (5, 3)
    assert ports == set(CAPACITY.ports) - host.busy_ports


def test_search_for_ports_starts_at_a_random_port_and_wraps_around(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that was just released may still be in use."""
    monkeypatch.setattr(secrets, "randbelow", lambda count: count - 2)

    with at_once(host.broker(), "a", mib(1, ports=3)) as reservation:
        assert reservation.ports == (24008, 24009, 24000)


def test_host_without_free_ports_accepts_machines_that_need_no_port(host: FakeHost) -> None:
    broker = host.broker(capacity=replace(CAPACITY, ports=range(0)))

    with at_once(broker, "a", mib(1)) as reservation:
        assert reservation.ports == ()


def test_control_characters_are_removed_from_the_name_of_a_reservation(host: FakeHost) -> None:
    for who in ("../../etc/x", "a\nb\x1b[31m", "x" * 5000, "é"):
        with at_once(host.broker(), who, mib(1)):
            (file,) = host.folder.iterdir()
            (entry,) = host.broker().entries()

        assert file.parent == host.folder
        assert entry.who.isprintable()
        assert len(entry.who) <= 80


def test_reservation_folder_and_files_are_private(host: FakeHost) -> None:
    with at_once(host.broker(), "a", mib(1)):
        (file,) = host.folder.iterdir()
        modes = [path.stat().st_mode & 0o777 for path in (host.folder, file)]

    assert modes == [0o700, 0o600]


def test_reservation_folder_that_is_not_private_to_this_user_is_refused(
    host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(ours)
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)

    for name in ("link", "dangling", "file", "file/reservations", "open", "ours"):
        if name == "ours":
            monkeypatch.setattr("os.geteuid", lambda: 4711)
        host.folder = tmp_path / name
        with (
            pytest.raises(
                RequirementError,
                match=rf"^The broker's folder '{host.folder}' must be private to user .*remove it",
            ),
            at_once(host.broker(), "a", mib(1)),
        ):
            pass
    assert list(ours.iterdir()) == []


def test_reservation_folder_does_not_depend_on_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a manual run and a CI job of the same user would not share reservations."""
    for name in ("TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    assert str(broker_module._SHARED) == "/tmp"  # noqa: S108 - nothing is made there
    monkeypatch.setattr(broker_module, "_SHARED", tmp_path)
    assert host_folder() == tmp_path / f"gpu-node-harness-{os.geteuid()}"


@given(
    st.lists(
        st.one_of(
            st.builds(mib, st.integers(0, 4000), cpus=st.integers(0, 8), ports=st.integers(0, 10)),
            st.integers(0, 5),
        ),
        max_size=12,
    )
)
def test_reservations_never_exceed_the_capacity(steps: list[Demand | int]) -> None:
    """Each step is a new demand, or the index of a reservation to release."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as everything:
        host = FakeHost(Path(name))
        held: list[tuple[contextlib.ExitStack, Reservation]] = []
        for number, step in enumerate(steps):
            if isinstance(step, Demand):
                leaving = everything.enter_context(contextlib.ExitStack())
                with contextlib.suppress(HarnessError):
                    reservation = leaving.enter_context(at_once(host.broker(number), "x", step))
                    held.append((leaving, reservation))
            elif step < len(held):
                held.pop(step)[0].close()

            demands = [reservation.demand for _, reservation in held]
            ports = [port for _, reservation in held for port in reservation.ports]
            assert [entry.demand for entry in host.broker().entries()] == demands
            assert sum(demand.memory_mib for demand in demands) <= CAPACITY.memory_mib
            assert sum(demand.cpus for demand in demands) <= CAPACITY.cpus
            assert len(set(ports)) == len(ports) == sum(demand.ports for demand in demands)
            assert set(ports) <= set(CAPACITY.ports)
