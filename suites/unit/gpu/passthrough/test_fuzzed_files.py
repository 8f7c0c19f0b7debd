"""A pool file of any bytes gives valid values or an error, and no path outside the pool is accessed.

An audit hook (PEP 578) sees each path that Python opens, lists, renames or removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.gpu.passthrough import ADDRESS_PATTERN, DRIVER_PATTERN
from harness.gpu.passthrough.leases import GpuLease
from harness.gpu.passthrough.records import DeviceRecords
from harness.reservation_folder import ReservationFolder, Sharing

if TYPE_CHECKING:
    from collections.abc import Iterator

GPU = "0000:65:00.0"
BOOT = "b0071d00-0000-4000-8000-000000000001"

_WATCHED = ("open", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.listdir")
_MORE_WATCHED = ("os.scandir", "os.truncate", "os.link", "os.symlink", "os.chown")
_seen: list[str] | None = None


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if _seen is not None and event in (*_WATCHED, *_MORE_WATCHED):
        _seen.extend(os.fsdecode(each) for each in arguments[:1] if isinstance(each, (str, bytes)))


sys.addaudithook(_watch)


@contextlib.contextmanager
def only_below(folder: Path) -> Iterator[None]:
    """Assert that the block accesses only `folder` and its files."""
    global _seen  # noqa: PLW0603 - an audit hook can't be removed
    _seen = []
    try:
        yield
        paths = [Path(each) for each in _seen if "/" in each]
        # Python reads the module of a codec when the codec is first used.
        own = (folder, sys.prefix, sys.base_prefix)
        strange = [each for each in paths if not any(each.is_relative_to(one) for one in own)]
        strange += [each for each in map(Path, _seen) if ".." in each.parts]
        assert strange == []
    finally:
        _seen = None


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Accept a HarnessError from the block if the error names the file."""
    refusals: list[str] = []
    try:
        yield
    except HarnessError as error:
        refusals.append(str(error))
    assert all(str(path) in each for each in refusals)


_TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["..", "../../etc", "/etc/shadow", "\x1b[2J", "\ud800", "a\nb", "x" * 9000]),
)
_ADDRESSES = st.from_regex(ADDRESS_PATTERN, fullmatch=True) | _TEXTS
_DRIVERS = st.none() | st.from_regex(DRIVER_PATTERN, fullmatch=True) | _TEXTS
_NUMBERS = st.integers() | st.floats() | st.booleans() | st.none()
_ANYTHING = st.recursive(
    _NUMBERS | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_BOUND = st.fixed_dictionaries({"driver": _DRIVERS, "override": _DRIVERS}) | _ANYTHING
_RECORDS = st.fixed_dictionaries(
    {
        "boot_id": st.just(BOOT) | _ANYTHING,
        "functions": st.dictionaries(_ADDRESSES, _BOUND, max_size=3) | _ANYTHING,
    }
)
_QUARANTINES = st.fixed_dictionaries(
    {"reason": _ANYTHING, "since": _TEXTS | _ANYTHING, "user": _TEXTS | _ANYTHING}
)
_LISTS = st.lists(_ADDRESSES, max_size=3) | _ANYTHING
_LEASES = st.fixed_dictionaries(
    {
        "who": _TEXTS | _ANYTHING,
        "process": st.integers(1, 99) | _ANYTHING,
        "user": _TEXTS,
        "since": _TEXTS,
        "wanted": st.lists(_LISTS, max_size=2) | _ANYTHING,
        "taken": _LISTS,
    }
)


def _files(documents: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    whole = documents.map(lambda one: json.dumps(one).encode())
    cut = st.tuples(whole, st.integers(0, 200), st.binary(max_size=4)).map(
        lambda one: one[0][: one[1]] + one[2] + one[0][one[1] :]
    )
    deep = st.integers(1, 30_000).map(lambda depth: b"[" * depth)
    return st.one_of(st.binary(max_size=200), whole, cut, deep, _ANYTHING.map(_as_bytes))


def _as_bytes(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    folder = tmp_path / "pool"
    folder.mkdir()
    folder.chmod(0o2770)
    return folder


@given(content=_files(_RECORDS))
def test_driver_record_with_random_content_is_refused_or_has_only_valid_addresses_and_names(
    pool: Path, content: bytes
) -> None:
    (pool / f"drivers-{GPU}.json").write_bytes(content)

    with only_below(pool):
        records = DeviceRecords(pool, boot_id=BOOT)
        records.taken()
        found = None
        with _naming(pool):
            found = records.drivers(GPU)
    for address, bound in () if found is None else found.functions.items():
        assert re.fullmatch(ADDRESS_PATTERN, address)
        for name in (bound.driver, bound.override):
            assert name is None or re.fullmatch(DRIVER_PATTERN, name)
            assert name is None or not {"/", "\n", " "} & {*name}


@given(content=_files(_QUARANTINES))
def test_quarantine_file_with_random_content_is_refused_or_has_printable_text(
    pool: Path, content: bytes
) -> None:
    (pool / f"quarantine-{GPU}.json").write_bytes(content)

    with only_below(pool), contextlib.suppress(HarnessError):
        found = DeviceRecords(pool, boot_id=BOOT).quarantine(GPU)
        assert found is None or (found.reason + found.since + found.user).isprintable()


@given(content=_files(_LEASES))
def test_lease_file_with_random_content_is_refused_or_has_valid_addresses(
    pool: Path, content: bytes
) -> None:
    path = pool / "000000001-deadbeef"
    path.write_bytes(content)
    leases = ReservationFolder(pool, GpuLease.from_json, owner="GPU pool", sharing=Sharing.GROUP)

    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with only_below(pool), leases.open() as book:
            entries = []
            with _naming(path):
                entries = book.entries()
    for _, lease in entries:
        for address in (*lease.taken, *(each for wish in lease.wanted for each in wish)):
            assert re.fullmatch(ADDRESS_PATTERN, address)
        assert lease.process >= 1
        assert str(lease).isprintable()


_NAMES = st.one_of(
    st.text(min_size=1, max_size=60),
    st.from_regex(r"(drivers|quarantine)-.{0,20}\.json", fullmatch=True),
    st.from_regex(r"[0-9]{1,40}-[0-9a-f]{0,9}", fullmatch=True),
    st.just("9" * 200 + "-deadbeef"),
).filter(lambda name: "/" not in name and "\0" not in name and name not in {".", ".."})


@given(
    names=st.lists(_NAMES, max_size=5), kind=st.sampled_from(["file", "FIFO", "folder", "link"])
)
def test_only_files_with_valid_names_are_read_or_removed(
    pool: Path, names: list[str], kind: str
) -> None:
    for old in pool.iterdir():
        old.rmdir() if old.is_dir() and not old.is_symlink() else old.unlink()
    made: set[Path] = set()
    for name in names:
        path = pool / name
        with contextlib.suppress(OSError, ValueError):
            match kind:
                case "file":
                    path.write_bytes(b"{}")
                case "FIFO":
                    os.mkfifo(path)
                case "folder":
                    path.mkdir()
                case _:
                    path.symlink_to("/etc/passwd")
            made.add(path)
    leases = ReservationFolder(pool, GpuLease.from_json, owner="GPU pool", sharing=Sharing.GROUP)
    records = DeviceRecords(pool, boot_id=BOOT)
    note = GpuLease(who="x", process=1, user="x", since="x", wanted=((GPU,),))

    with only_below(pool), leases.enter(note) as mine, leases.open() as book:
        assert [name for name, _ in book.entries()] == [mine]
        book.strange_files()
        found = [*records.taken(), *records.quarantined()]
        records.strange_files()

    assert all(re.fullmatch(ADDRESS_PATTERN, each) for each in found)
    removed = made - {*pool.iterdir()}
    assert all(re.fullmatch(r"[0-9]{9,15}-[0-9a-f]{8}", each.name) for each in removed)
    assert kind == "file" or not removed
