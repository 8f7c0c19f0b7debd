"""Room on the host is given once, waited for, and free again when its holder dies."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError, RequirementError
from harness.machine import ledger
from harness.machine.broker import Broker, Demand, HostRoom, host_folder
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.machine.broker import Claim

ROOM = HostRoom(memory_mib=4000, cpus=8, ports=range(24000, 24010))
PLENTY_MIB = 1 << 20


class ClockThat:
    """A clock on which only sleeping takes time; the n-th sleep begins with the n-th deed."""

    def __init__(self, *deeds: Callable[[], object]) -> None:
        self._elapsed_s = 0.0
        self._deeds = list(deeds)

    def monotonic(self) -> float:
        return self._elapsed_s

    def now(self) -> dt.datetime:
        return dt.datetime(2026, 8, 21, tzinfo=dt.timezone.utc)

    def sleep(self, seconds: float) -> None:
        self._elapsed_s += seconds
        if self._deeds:
            self._deeds.pop(0)()


class Host:
    """A folder in the place of '/proc', and brokers in the place of processes."""

    def __init__(self, top: Path) -> None:
        self.folder = top / "account"
        self.proc = top / "proc"
        self.proc.mkdir()
        self.busy_ports: set[int] = set()
        self.has(available_mib=PLENTY_MIB)

    def has(self, *, available_mib: int, total_mib: int = PLENTY_MIB) -> None:
        (self.proc / "meminfo").write_text(
            f"MemTotal:  {total_mib << 10} kB\nMemFree: 1 kB\n"
            f"MemAvailable:  {available_mib << 10} kB\n"
        )

    def touches(self, process: int, mib: int) -> None:
        """Let `process` have touched memory, some of it shared as a memfd is."""
        folder = self.proc / str(process)
        folder.mkdir(exist_ok=True)
        (folder / "status").write_text(
            f"Name: qemu\nVmRSS: 1 kB\nRssAnon:\t{100 << 10} kB\nRssFile:\t{900 << 10} kB\n"
            f"RssShmem:\t{(mib - 100) << 10} kB\n"
        )

    def broker(self, process: int = 1, room: HostRoom = ROOM) -> Broker:
        return Broker(
            self.folder,
            room=room,
            proc=self.proc,
            is_free=lambda port: port not in self.busy_ports,
            process=process,
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def mib(memory_mib: int, *, cpus: int = 1, ports: int = 0) -> Demand:
    return Demand(memory_mib=memory_mib, cpus=cpus, ports=ports)


def at_once(
    broker: Broker, who: str, demand: Demand, tell: Callable[[str], None] = lambda _: None
) -> contextlib.AbstractContextManager[Claim]:
    """Claim without patience."""
    return broker.claim(who, demand, deadline=Deadline.after(0, ClockThat()), tell=tell)


def whos(broker: Broker) -> list[str]:
    return [entry.who for entry in broker.claims()]


def test_claims_of_several_processes_share_the_room(host: Host) -> None:
    with (
        at_once(host.broker(1), "a", mib(2000)),
        at_once(host.broker(2), "b", mib(2000)),
    ):
        assert whos(host.broker(3)) == ["a", "b"]
        with (
            pytest.raises(HarnessError, match=r"0 of 4000 MiB are not claimed"),
            at_once(host.broker(3), "c", mib(1)),
        ):
            pass

    assert host.broker().claims() == []


def test_nothing_remains_of_what_was_released(host: Host) -> None:
    with contextlib.suppress(ZeroDivisionError), at_once(host.broker(), "a", mib(4000)):
        raise ZeroDivisionError

    assert list(host.folder.iterdir()) == []
    with at_once(host.broker(), "b", mib(4000)):
        pass


def test_wait_says_once_who_holds_the_room(host: Host) -> None:
    told: list[str] = []

    with (
        at_once(host.broker(7), "node-a", mib(3000)),
        pytest.raises(HarnessError, match=r"Waited 1.0 s for 2000 MiB on 1 vCPU .*'node-a'"),
        host.broker(8).claim(
            "node-b", mib(2000), deadline=Deadline.after(1, ClockThat()), tell=told.append
        ),
    ):
        pass

    (line,) = told
    assert line == (
        "'node-b' waits for 2000 MiB on 1 vCPU: 1000 of 4000 MiB are not claimed; held by "
        "'node-a' of process 7 (3000 MiB on 1 vCPU)."
    )


def test_wait_that_was_in_vain_leaves_nothing(host: Host) -> None:
    with at_once(host.broker(), "a", mib(3000)):
        with pytest.raises(HarnessError), at_once(host.broker(2), "b", mib(2000)):
            pass

        assert whos(host.broker()) == ["a"]


def test_wait_ends_when_the_room_is_not_wanted_any_more(host: Host) -> None:
    troubles: list[str] = []
    clock = ClockThat(lambda: troubles.append("Nobody wants it."))

    with at_once(host.broker(), "a", mib(3000)):
        with (
            pytest.raises(HarnessError, match=r"^Nobody wants it\.$"),
            host.broker(2).claim(
                "b",
                mib(2000),
                deadline=Deadline.after(900, clock),
                trouble=lambda: troubles[0] if troubles else None,
            ),
        ):
            pass

        assert whos(host.broker()) == ["a"]


def test_waiting_demand_gets_what_is_released(host: Host) -> None:
    told: list[str] = []
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(at_once(host.broker(1), "a", mib(2000)))
        second.enter_context(at_once(host.broker(2), "b", mib(2000)))
        deadline = Deadline.after(5, ClockThat(first.close, lambda: None, second.close))

        with host.broker(3).claim("c", mib(4000), deadline=deadline, tell=told.append):
            assert whos(host.broker()) == ["c"]

    holders = [line.partition("held by ")[2] for line in told]
    assert [line.count("process") for line in holders] == [2, 1]


@pytest.mark.parametrize("content", ["", "{half", "null", '{"who": 1}', "\x00\xff", None])
def test_file_of_a_dead_process_is_swept_whatever_it_holds(
    host: Host, content: str | None
) -> None:
    with at_once(host.broker(), "a", mib(4000)):
        (file,) = host.folder.iterdir()
        kept = file.read_text()
    file.write_text(kept if content is None else content, encoding="latin-1")

    with at_once(host.broker(), "b", mib(4000)):
        assert whos(host.broker()) == ["b"]
        assert not file.exists()


@pytest.mark.parametrize("content", ["", "{half", "null", '{"who": "x"}', "\x00\xff"])
def test_unreadable_claim_that_is_held_is_named(host: Host, content: str) -> None:
    """What it stands for can't be known, so nothing can be given away."""
    with at_once(host.broker(), "a", mib(1)):
        (file,) = host.folder.iterdir()
        file.write_text(content, encoding="latin-1")

        with (
            pytest.raises(HarnessError, match=rf"'{file}' can't be read .*fuser"),
            at_once(host.broker(), "b", mib(1)),
        ):
            pass


def test_foreign_files_in_the_folder_are_left_alone(host: Host) -> None:
    host.folder.mkdir(mode=0o700)
    (host.folder / "notes").write_text("x")

    with at_once(host.broker(), "a", mib(1)):
        pass

    assert [path.name for path in host.folder.iterdir()] == ["notes"]


def test_removed_file_of_one_who_waits_ends_the_wait(host: Host) -> None:
    def remove() -> None:
        for path in sorted(host.folder.iterdir())[1:]:
            path.unlink()

    with (
        at_once(host.broker(1), "a", mib(4000)),
        pytest.raises(HarnessError, match="Somebody removed"),
        host.broker(2).claim("b", mib(1), deadline=Deadline.after(9, ClockThat(remove))),
    ):
        pass


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        (mib(4001), "4001 MiB of memory are asked for, but this host has only 4000"),
        (mib(1, cpus=9), "9 vCPUs are asked for, but this host has only 8"),
        (mib(1, ports=11), "11 ports are asked for, but this host has only 10"),
    ],
)
def test_demand_beyond_the_whole_host_is_refused_at_once(
    host: Host, demand: Demand, words: str
) -> None:
    with (
        pytest.raises(RequirementError, match=rf"{words}.*ask for less"),
        host.broker().claim("a", demand, deadline=Deadline.after(1e9)),
    ):
        pass
    assert not host.folder.exists()


@pytest.mark.parametrize("field", ["memory_mib", "cpus", "ports"])
def test_negative_demand_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="can't be negative"):
        Demand(**{"memory_mib": 1, "cpus": 1, field: -1})


def test_memory_that_others_use_is_not_given_away(host: Host) -> None:
    host.has(available_mib=999)

    with (
        pytest.raises(HarnessError, match="the kernel has 999 MiB available"),
        at_once(host.broker(), "a", mib(1000)),
    ):
        pass

    host.has(available_mib=1000)
    with at_once(host.broker(), "a", mib(1000)):
        pass


def test_memory_that_was_promised_is_kept_though_it_looks_free(host: Host) -> None:
    host.has(available_mib=2500)

    with (
        at_once(host.broker(1), "a", mib(1500)),
        pytest.raises(HarnessError, match="of which 1500 MiB are kept for claims"),
        at_once(host.broker(2), "b", mib(1500)),
    ):
        pass


def test_memory_that_was_touched_counts_but_once(host: Host) -> None:
    host.has(available_mib=2500)
    with at_once(host.broker(1), "a", mib(1500)) as claim:
        claim.used_by(4711)
        host.touches(4711, 1200)
        host.has(available_mib=2500 - 1200)

        with at_once(host.broker(2), "b", mib(1000)):
            pass
        with (
            pytest.raises(HarnessError, match="of which 300 MiB are kept for claims"),
            at_once(host.broker(2), "b", mib(1001)),
        ):
            pass


def test_process_that_touched_more_than_its_claim_keeps_nothing_back(host: Host) -> None:
    host.touches(4711, 1600)
    host.has(available_mib=1000)
    with contextlib.ExitStack() as claims:
        claims.enter_context(at_once(host.broker(1), "a", mib(500))).used_by(4711)

        claims.enter_context(at_once(host.broker(2), "b", mib(1000)))


def test_user_that_is_gone_has_touched_nothing(host: Host) -> None:
    host.has(available_mib=1000)
    with contextlib.ExitStack() as claims:
        claims.enter_context(at_once(host.broker(1), "a", mib(500))).used_by(4711)

        with (
            pytest.raises(HarnessError, match="of which 500 MiB are kept"),
            at_once(host.broker(2), "b", mib(501)),
        ):
            pass


def test_user_of_a_claim_that_ended_is_nobodys_concern(host: Host, tmp_path: Path) -> None:
    with at_once(host.broker(), "a", mib(1)) as claim:
        pass
    with (tmp_path / "other").open("w+") as other:
        # Has the number of the descriptor that the claim had, most likely.
        other.write("precious")
        other.flush()

        claim.used_by(4711)

        assert (tmp_path / "other").read_text() == "precious"
    assert list(host.folder.iterdir()) == []


def test_full_disk_is_told_and_leaves_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.pwrite", fail)

    with (
        pytest.raises(HarnessError, match=r"'a' can't be written \(No space left"),
        at_once(host.broker(), "a", mib(1)),
    ):
        pass
    assert list(host.folder.iterdir()) == []


def test_full_disk_leaves_the_claim_as_it_was(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with at_once(host.broker(), "a", mib(1)) as claim:
        monkeypatch.setattr("os.pwrite", fail)
        with pytest.raises(HarnessError, match="can't be written"):
            claim.used_by(4711)

        assert whos(host.broker()) == ["a"]


def test_account_locked_by_a_stopped_process_is_named(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_GATE_S", 0.01)
    assert host.broker().claims() == []
    descriptor = os.open(host.folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(HarnessError, match=rf"stopped may hold it; `fuser '{host.folder}'`"):
            host.broker().claims()
    finally:
        os.close(descriptor)

    assert host.broker().claims() == []


def test_large_demand_is_not_starved_by_small_ones(host: Host) -> None:
    """Who came later waits, although there would be room for it."""
    told: list[str] = []

    def ask_later() -> None:
        with (
            pytest.raises(HarnessError, match=r"'large' of process 2 .* came first"),
            at_once(host.broker(3), "small", mib(1), told.append),
        ):
            pass

    with (
        at_once(host.broker(1), "a", mib(2000)),
        pytest.raises(HarnessError, match="2000 of 4000 MiB are not claimed"),
        host.broker(2).claim("large", mib(4000), deadline=Deadline.after(1, ClockThat(ask_later))),
    ):
        pass
    assert len(told) == 1


def test_process_that_holds_a_claim_goes_ahead(host: Host) -> None:
    """It would not release the first while it waits, so both would wait for each other."""
    given_out: list[Claim] = []

    def ask_for_a_second() -> None:
        with at_once(host.broker(1), "second", mib(1)) as claim:
            given_out.append(claim)

    with (
        at_once(host.broker(1), "first", mib(2000)),
        pytest.raises(HarnessError),
        host.broker(2).claim(
            "large", mib(4000), deadline=Deadline.after(1, ClockThat(ask_for_a_second))
        ),
    ):
        pass
    assert len(given_out) == 1


def test_vcpus_are_counted(host: Host) -> None:
    with (
        at_once(host.broker(1), "a", mib(1, cpus=6)),
        pytest.raises(HarnessError, match="2 of 8 vCPUs are not claimed"),
        at_once(host.broker(2), "b", mib(1, cpus=3)),
    ):
        pass


def test_ports_are_given_once_and_never_where_somebody_listens(host: Host) -> None:
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
    assert ports == set(ROOM.ports) - host.busy_ports


@pytest.mark.parametrize("who", ["../../etc/x", "a\nb\x1b[31m", "x" * 5000, "", "é"])
def test_name_of_a_claim_is_but_text(host: Host, who: str) -> None:
    with at_once(host.broker(), who, mib(1)):
        (file,) = host.folder.iterdir()
        (entry,) = host.broker().claims()

    assert file.parent == host.folder
    assert entry.who.isprintable()
    assert len(entry.who) <= 80


def test_folder_is_private(host: Host) -> None:
    with at_once(host.broker(), "a", mib(1)):
        (file,) = host.folder.iterdir()
        modes = [path.stat().st_mode & 0o777 for path in (host.folder, file)]

    assert modes == [0o700, 0o600]


@pytest.mark.parametrize("place", ["link", "dangling", "file", "below a file", "open", "other's"])
def test_folder_that_is_not_ours_alone_is_refused(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o700)
    if place in {"link", "dangling"}:
        host.folder.symlink_to(ours if place == "link" else tmp_path / "absent")
    elif place == "file":
        host.folder.touch()
    elif place == "below a file":
        (tmp_path / "file").touch()
        host.folder = tmp_path / "file" / "account"
    else:
        host.folder.mkdir(mode=0o700)
    if place == "open":
        host.folder.chmod(0o770)
    if place == "other's":
        monkeypatch.setattr("os.geteuid", lambda: 4711)

    with (
        pytest.raises(RequirementError, match=rf"'{host.folder}' is not a folder.*remove it"),
        at_once(host.broker(), "a", mib(1)),
    ):
        pass
    assert list(ours.iterdir()) == []


def test_folder_does_not_depend_on_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run by hand and a job of the same user would know nothing of each other."""
    for name in ("TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    assert host_folder() == Path("/tmp", f"gpu-node-harness-{os.geteuid()}")  # noqa: S108


@pytest.mark.parametrize(
    ("total_mib", "memory_mib"), [(32000, 28800), (4000, 2976), (1024, 0), (512, 0)]
)
def test_some_memory_is_reserved_for_the_host(host: Host, total_mib: int, memory_mib: int) -> None:
    host.has(available_mib=1, total_mib=total_mib)

    assert HostRoom.from_proc(host.proc).memory_mib == memory_mib


@pytest.mark.parametrize(("cores", "cpus"), [(1, 8), (2, 8), (16, 64)])
def test_cores_are_overcommitted(host: Host, cores: int, cpus: int) -> None:
    assert HostRoom.from_proc(host.proc, cores=cores).cpus == cpus


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("32768\t60999\n", 24000),
        ("1024 60999", 61000),
        ("15000 65535", 10000),
        ("1024 65535", 24000),
        (None, 24000),
    ],
)
def test_ports_lie_outside_the_kernels_own_range(host: Host, text: str | None, first: int) -> None:
    if text is not None:
        folder = host.proc / "sys" / "net" / "ipv4"
        folder.mkdir(parents=True)
        (folder / "ip_local_port_range").write_text(text)

    assert HostRoom.from_proc(host.proc).ports[0] == first


def test_room_is_read_when_it_is_first_needed(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "account", proc=tmp_path / "absent")

    with pytest.raises(FileNotFoundError):
        _ = broker.room


@given(
    st.lists(
        st.one_of(
            st.builds(mib, st.integers(0, 4000), cpus=st.integers(0, 8), ports=st.integers(0, 10)),
            st.integers(0, 5),
        ),
        max_size=25,
    )
)
def test_claims_never_exceed_the_room(steps: list[Demand | int]) -> None:
    """A step is a demand, or the number of the claim to release."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as everything:
        host = Host(Path(name))
        held: list[tuple[contextlib.ExitStack, Claim]] = []
        for number, step in enumerate(steps):
            if isinstance(step, Demand):
                leaving = everything.enter_context(contextlib.ExitStack())
                with contextlib.suppress(HarnessError):
                    claim = leaving.enter_context(at_once(host.broker(number), "x", step))
                    held.append((leaving, claim))
            elif step < len(held):
                held.pop(step)[0].close()

            demands = [claim.demand for _, claim in held]
            ports = [port for _, claim in held for port in claim.ports]
            assert [entry.demand for entry in host.broker().claims()] == demands
            assert sum(demand.memory_mib for demand in demands) <= ROOM.memory_mib
            assert sum(demand.cpus for demand in demands) <= ROOM.cpus
            assert len(set(ports)) == len(ports) == sum(demand.ports for demand in demands)
            assert set(ports) <= set(ROOM.ports)
