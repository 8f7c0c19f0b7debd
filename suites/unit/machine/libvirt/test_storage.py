"""Files on the host of a remote libvirt, whose pool is in memory here."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NoReturn, cast

import pytest

from harness.errors import HarnessError
from harness.machine.libvirt import storage as storages
from harness.machine.libvirt.errors import Code, LibvirtError
from harness.machine.libvirt.storage import (
    CHUNK,
    Content,
    Storage,
    Volume,
    open_storage,
    render_pool,
    render_volume,
)
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock
from suites.unit.machine.libvirt.fake_pool import (
    URI,
    FakePool,
    FakeStorageHost,
    a_content,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.machine.libvirt.connection import Connection

FOLDER = PurePosixPath("/srv/harness")
OWNER = "0a1b2c3d-far-11223344"
OTHER = "0a1b2c3d-far-99999999"
ELSEWHERE = "ffffffff-far-55555555"
MIB = 1 << 20


def soon() -> Deadline:
    return Deadline.after(30)


def too_late() -> Deadline:
    return Deadline.after(0, FakeClock())


@pytest.fixture
def host() -> FakeStorageHost:
    return FakeStorageHost()


@pytest.fixture
def pool(host: FakeStorageHost) -> FakePool:
    return host.pool


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def storage(host: FakeStorageHost, reports: list[str], tmp_path: Path) -> Storage:
    return Storage(
        cast("Connection", host), FOLDER, owner=OWNER, locks=tmp_path, report=reports.append
    )


# -- shared content -----------------------------------------------------------------------------------


def test_content_is_uploaded_and_marked_as_complete_afterwards(
    storage: Storage, pool: FakePool, tmp_path: Path
) -> None:
    content = a_content(tmp_path, b"disk")

    volume = storage.ensure(content, deadline=soon())

    assert volume.name.startswith(f"{content.key}.{OWNER}-")
    assert volume.path == FOLDER / volume.name
    assert list(pool.volumes) == [volume.name, f"{volume.name}.ready"]
    assert pool.volumes[volume.name].content == b"disk"
    assert pool.uploads == [(volume.name, 4)]
    assert {
        name: "<mode>0644</mode>" in each.xml for name, each in pool.volumes.items()
    } == dict.fromkeys(pool.volumes, True)
    assert len(pool.volumes[f"{volume.name}.ready"].content) == 1


def test_content_that_is_there_is_not_uploaded_again(
    storage: Storage, pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is another process waited for, which may upload it a second time."""

    def hold(*_: object, **__: object) -> NoReturn:
        raise AssertionError("it waited for the lock")

    monkeypatch.setattr(storages, "hold", hold)
    content = a_content(tmp_path, b"disk")
    name = f"{content.key}.{ELSEWHERE}-0001"
    pool.add(name, b"disk")
    pool.add(f"{name}.ready")

    volume = storage.ensure(content, deadline=soon())

    assert volume == Volume(name=name, path=FOLDER / name)
    assert pool.uploads == []


@pytest.mark.parametrize("case", ["unmarked", "other content", "cut short"])
def test_what_is_not_the_whole_content_is_not_used(
    storage: Storage,
    pool: FakePool,
    tmp_path: Path,
    case: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    content = a_content(tmp_path, b"disk")
    name = f"{'0' * 32 if case == 'other content' else content.key}.{ELSEWHERE}-0001"
    pool.add(name, b"dis" if case == "cut short" else b"disk")
    if case != "unmarked":
        pool.add(f"{name}.ready")

    with caplog.at_level(logging.WARNING):
        volume = storage.ensure(content, deadline=soon())

    assert volume.name != name
    warning = f"The volume '{name}' at '{URI}' has 3 bytes, but 4 were uploaded; it is not used"
    said = {record.getMessage() for record in caplog.records}
    assert said == ({warning} if case == "cut short" else set())


def test_marker_alone_is_no_content(storage: Storage, pool: FakePool, tmp_path: Path) -> None:
    """A volume of the same size as its marker's name must not be taken for the content."""
    content = a_content(tmp_path, b"x")
    pool.add(f"{content.key}.{ELSEWHERE}-0001.ready")

    volume = storage.ensure(content, deadline=soon())

    assert pool.uploads == [(volume.name, 1)]


def test_one_process_of_a_host_uploads_while_others_wait(
    storage: Storage, pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = a_content(tmp_path, b"disk")
    name = f"{content.key}.{OTHER}-0001"
    held: list[tuple[Path, int, str]] = []

    @contextlib.contextmanager
    def hold(lock: Path, *, timeout_s: float, what: str) -> Iterator[None]:
        held.append((lock, round(timeout_s), what))
        # Another process has uploaded it meanwhile.
        pool.add(name, b"disk")
        pool.add(f"{name}.ready")
        yield

    monkeypatch.setattr(storages, "hold", hold)

    volume = storage.ensure(content, deadline=soon())

    assert (volume.name, pool.uploads) == (name, [])
    assert held == [
        (tmp_path / f"{content.key}.lock", 30, f"the upload of the file 'disk' to '{URI}'")
    ]


def test_first_bytes_of_a_file_are_replaced(
    storage: Storage, pool: FakePool, tmp_path: Path
) -> None:
    content = a_content(tmp_path, b"abcdef" + b"x" * (2 * CHUNK), start=b"ABC")

    volume = storage.ensure(content, deadline=soon())

    assert pool.volumes[volume.name].content == b"ABCdef" + b"x" * (2 * CHUNK)


def test_file_is_sent_in_messages_of_a_stream(tmp_path: Path) -> None:
    content = a_content(tmp_path, b"y" * (2 * CHUNK), start=b"z" * (CHUNK + 1))

    assert [len(chunk) for chunk in content.chunks()] == [CHUNK, 1, CHUNK - 1]


def test_stream_that_takes_a_part_gets_the_rest(
    storage: Storage, host: FakeStorageHost, tmp_path: Path
) -> None:
    host.stream_part = 1000
    data = bytes(range(256)) * 20

    volume = storage.ensure(a_content(tmp_path, data), deadline=soon())

    assert host.pool.volumes[volume.name].content == data
    assert host.streams[0].ending == "finished"


# -- progress -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [(MIB - 1, []), (MIB, ["100 % of the file 'disk' (1 MiB)"])],
    ids=["small", "a MiB"],
)
def test_end_of_an_upload_is_reported(
    storage: Storage, reports: list[str], tmp_path: Path, size: int, expected: list[str]
) -> None:
    storage.ensure(a_content(tmp_path, b"d" * size), deadline=soon())

    assert reports == [f"uploaded {each} to '{URI}'" for each in expected]


def test_each_tenth_of_a_large_upload_is_reported_once(
    storage: Storage, reports: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "_LARGE", 40 * CHUNK)

    storage.ensure(a_content(tmp_path, b"d" * (40 * CHUNK)), deadline=soon())

    assert [report.split()[1] for report in reports] == [str(each) for each in range(10, 101, 10)]
    assert reports[0].endswith(f"of the file 'disk' (9 MiB) to '{URI}'")


def test_upload_that_is_just_not_large_is_reported_at_its_end(
    storage: Storage, reports: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "_LARGE", 40 * CHUNK + 1)

    storage.ensure(a_content(tmp_path, b"d" * (40 * CHUNK)), deadline=soon())

    assert [report.split()[1] for report in reports] == ["100"]


# -- uploads that fail ---------------------------------------------------------------------------------


def test_upload_beyond_the_deadline_leaves_nothing(
    storage: Storage, host: FakeStorageHost, tmp_path: Path
) -> None:
    content = a_content(tmp_path, b"d" * (3 * MIB))

    with pytest.raises(HarnessError) as failure:
        storage.put(content, deadline=too_late())

    assert str(failure.value) == (
        f"The upload of the file 'disk' was not complete in time at '{URI}'; 0 of 3 MiB were "
        "transferred. Allow more time, or use a faster network."
    )
    assert host.pool.volumes == {}
    assert host.streams[0].ending == "aborted"


def test_upload_that_breaks_leaves_nothing_and_says_why(
    storage: Storage, host: FakeStorageHost, tmp_path: Path
) -> None:
    host.fails_at = CHUNK

    with pytest.raises(LibvirtError, match="The connection broke"):
        storage.ensure(a_content(tmp_path, b"d" * (3 * CHUNK)), deadline=soon())

    assert host.pool.volumes == {}
    assert "the end of the upload of the file 'disk'" in host.noted


def test_upload_that_did_not_arrive_whole_is_refused(
    storage: Storage, pool: FakePool, tmp_path: Path
) -> None:
    pool.lost_bytes = 3
    content = a_content(tmp_path, b"disk")

    with pytest.raises(HarnessError) as failure:
        storage.put(content, deadline=soon())

    assert str(failure.value) == (
        f"the file 'disk' has 4 bytes here, but 'run.{OWNER}-{content.key}' at '{URI}' has 1; check "
        "whether its file system is full."
    )
    assert pool.volumes == {}


# -- files of one run ----------------------------------------------------------------------------------


def test_file_of_a_machine_is_private_and_of_this_run(
    storage: Storage, pool: FakePool, tmp_path: Path
) -> None:
    content = Content(title="a seed", path=a_content(tmp_path, b"seed").path, key="node-1")
    pool.add(f"run.{OTHER}-node-1")

    volume = storage.put(content, deadline=soon())

    assert volume == Volume(name=f"run.{OWNER}-node-1", path=FOLDER / f"run.{OWNER}-node-1")
    assert "<mode>0600</mode>" in pool.volumes[volume.name].xml
    assert storage.own_names() == [volume.name]
    storage.remove(volume)
    storage.remove(volume)
    assert storage.own_names() == []


def test_volume_that_is_in_use_is_not_removed_silently(storage: Storage, pool: FakePool) -> None:
    pool.add("busy")
    pool.in_use.add("busy")

    with pytest.raises(LibvirtError, match="'busy' is in use"):
        storage.remove(Volume(name="busy", path=FOLDER / "busy"))


def test_file_comes_back_whole(storage: Storage, host: FakeStorageHost, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4000
    host.pool.add("disk", data)

    storage.fetch(Volume(name="disk", path=FOLDER / "disk"), tmp_path / "back", deadline=soon())

    assert (tmp_path / "back").read_bytes() == data
    assert host.streams[0].ending == "finished"
    assert [path.name for path in tmp_path.iterdir()] == ["back"]


def test_download_that_breaks_leaves_no_file(
    storage: Storage, host: FakeStorageHost, tmp_path: Path
) -> None:
    host.pool.add("disk", b"d" * (2 * CHUNK))
    host.fails_at = CHUNK

    with pytest.raises(LibvirtError, match="The connection broke"):
        storage.fetch(Volume(name="disk", path=FOLDER), tmp_path / "back", deadline=soon())

    assert list(tmp_path.iterdir()) == []
    assert host.streams[0].ending == "aborted"


def test_download_beyond_the_deadline_leaves_no_file(
    storage: Storage, pool: FakePool, tmp_path: Path
) -> None:
    pool.add("disk", b"d" * (2 * MIB))

    with pytest.raises(HarnessError) as failure:
        storage.fetch(Volume(name="disk", path=FOLDER), tmp_path / "back", deadline=too_late())

    assert str(failure.value) == (
        f"The download of volume 'disk' was not complete in time at '{URI}'; 0 MiB were transferred. "
        "Allow more time, or use a faster network."
    )
    assert list(tmp_path.iterdir()) == []


# -- the pool ------------------------------------------------------------------------------------------


def test_pool_is_named_by_its_folder(storage: Storage, host: FakeStorageHost) -> None:
    storage.names()

    digest = hashlib.sha256(b"/srv/harness").hexdigest()[:8]
    assert host.asked_pools == {storage.pool_name} == {f"gpu-node-harness-{digest}"}


@pytest.mark.parametrize("made_by_another", [False, True])
def test_pool_that_libvirtd_lost_is_made_again(
    storage: Storage, host: FakeStorageHost, made_by_another: bool
) -> None:
    host.has_pool = False
    host.made_by_another = made_by_another
    host.pool.add("disk")

    assert storage.names() == ["disk"]

    assert host.created == [(render_pool(storage.pool_name, FOLDER), 1)]
    assert host.asked_pools == {storage.pool_name}
    assert set(host.noted) == {
        "the storage in '/srv/harness'",
        "the refresh of the storage",
        "the list of volumes",
    }


def test_pool_that_can_not_be_looked_up_is_not_made(
    storage: Storage, host: FakeStorageHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise LibvirtError("Not allowed.", code=Code.ACCESS_DENIED)

    monkeypatch.setattr(host, "storagePoolLookupByName", refuse)

    with pytest.raises(LibvirtError, match="Not allowed"):
        storage.names()

    assert host.created == []


@pytest.mark.parametrize("code", [Code.INTERNAL_ERROR, Code.OPERATION_INVALID])
def test_list_is_asked_for_again_while_another_process_changes_the_pool(
    storage: Storage, pool: FakePool, code: Code
) -> None:
    pool.add("b")
    pool.add("a")
    pool.refusals = [code]

    assert storage.names() == ["a", "b"]


def test_list_that_is_refused_for_another_reason_is_an_error(
    storage: Storage, pool: FakePool
) -> None:
    pool.refusals = [Code.ACCESS_DENIED]

    with pytest.raises(LibvirtError, match="It is being changed"):
        storage.names()


def test_list_that_never_comes_names_the_pool(
    storage: Storage, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "_LIST_S", 0.0)
    pool.refusals = [Code.INTERNAL_ERROR] * 1000

    with pytest.raises(
        HarnessError,
        match=(
            r"^Waited .* s for the list of volumes in '/srv/harness'; last seen: It is being changed\. "
            r"Check what else uses that pool\.$"
        ),
    ):
        storage.names()


def test_pool_is_a_folder_that_qemus_user_may_enter() -> None:
    assert render_pool("mine", FOLDER) == (
        '<pool type="dir"><name>mine</name><target><path>/srv/harness</path>'
        "<permissions><mode>0711</mode></permissions></target></pool>"
    )


def test_volume_is_unallocated_bytes() -> None:
    assert render_volume("disk", 4096, mode="0600") == (
        '<volume><name>disk</name><capacity unit="bytes">4096</capacity>'
        '<allocation unit="bytes">0</allocation><target><format type="raw" />'
        "<permissions><mode>0600</mode></permissions></target></volume>"
    )


# -- what killed runs left -----------------------------------------------------------------------------

HOST = "0a1b2c3d"


def test_sweep_removes_what_dead_runs_of_this_host_left(storage: Storage, pool: FakePool) -> None:
    shared = f"{'a' * 32}.{OTHER}-0001"
    half = f"{'b' * 32}.{OTHER}-0001"
    names = {
        "kept": [
            shared,
            f"{shared}.ready",
            f"run.{OWNER}-node-1",
            f"run.{ELSEWHERE}-node-1",
            f"{'c' * 32}.{ELSEWHERE}-0001",
            f"{'d' * 32}.{OWNER}-0001",
            "somebody's own",
        ],
        "swept": [f"run.{OTHER}-node-1", f"run.{OTHER}-node-1.ready", half],
    }
    for name in (*names["kept"], *names["swept"]):
        pool.add(name)

    swept = storage.sweep(HOST, lambda: {"far-11223344"})

    assert swept == sorted(names["swept"])
    assert set(pool.volumes) == set(names["kept"])


def test_run_that_began_after_the_list_is_not_swept(storage: Storage, pool: FakePool) -> None:
    """Those that live are asked for after the names, else a new run's volume would be removed."""
    pool.add(f"run.{OTHER}-node-1")

    def living() -> set[str]:
        pool.add("made meanwhile")
        return {"far-99999999"}

    assert storage.sweep(HOST, living) == []
    assert f"run.{OTHER}-node-1" in pool.volumes


def test_volume_that_libvirtd_still_uses_is_left_to_the_next_run(
    storage: Storage, pool: FakePool, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"run.{OTHER}-node-{number}" for number in (1, 2)]
    for name in names:
        pool.add(name)
    pool.in_use.add(names[0])

    with caplog.at_level(logging.INFO):
        assert storage.sweep(HOST, set) == [names[1]]

    assert [record.getMessage() for record in caplog.records] == [
        f"The volume '{names[0]}' was not removed: '{names[0]}' is in use."
    ]


# -- one run -------------------------------------------------------------------------------------------


def opened(host: FakeStorageHost, state: Path) -> contextlib.AbstractContextManager[Storage]:
    return open_storage(cast("Connection", host), FOLDER, state=state)


def test_run_removes_what_it_put_there_and_keeps_what_is_shared(
    host: FakeStorageHost, tmp_path: Path
) -> None:
    content = a_content(tmp_path, b"disk")

    with opened(host, tmp_path / "state") as storage:
        shared = storage.ensure(content, deadline=soon())
        own = storage.put(content, deadline=soon())
        assert own.name in host.pool.volumes

    assert set(host.pool.volumes) == {shared.name, f"{shared.name}.ready"}


def test_runs_of_a_host_have_one_name_and_sessions_of_their_own(
    host: FakeStorageHost, tmp_path: Path
) -> None:
    content = a_content(tmp_path, b"disk")
    names = []
    for _ in range(2):
        with opened(host, tmp_path / "state") as storage:
            names.append(storage.put(content, deadline=soon()).name)

    first, second = (name.removeprefix("run.").split("-") for name in names)
    assert first[0] == second[0] == (tmp_path / "state/host").read_text()
    assert len(first[0]) == 8
    assert first[1:3] != second[1:3]
    assert first[1] == "far"
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == [
        "host",
        "locks",
        "runs",
    ]


def test_next_run_removes_what_a_killed_one_left(host: FakeStorageHost, tmp_path: Path) -> None:
    with opened(host, tmp_path / "state"):
        pass
    name = (tmp_path / "state/host").read_text()
    host.pool.add(f"run.{name}-far-00000000-node-1")

    with opened(host, tmp_path / "state") as other, opened(host, tmp_path / "state"):
        assert host.pool.volumes == {}
        other.put(a_content(tmp_path, b"disk"), deadline=soon())
        with opened(host, tmp_path / "state"):
            assert len(host.pool.volumes) == 1


def test_connection_that_was_lost_is_asked_for_nothing_at_the_end(
    host: FakeStorageHost, tmp_path: Path
) -> None:
    with opened(host, tmp_path / "state") as storage:
        storage.put(a_content(tmp_path, b"disk"), deadline=soon())
        host.is_lost = True
        host.noted.clear()

    assert host.noted == []


def test_volume_that_stays_listed_is_named_with_its_pool(
    host: FakeStorageHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as run:
        storage = run.enter_context(opened(host, tmp_path / "state"))
        volume = storage.put(a_content(tmp_path, b"disk"), deadline=soon())
        monkeypatch.setattr(Storage, "remove", lambda *_: None)
        with pytest.raises(HarnessError) as failure:
            run.close()

    assert str(failure.value) == (
        f"The volumes ['{volume.name}'] were removed, but '{URI}' still lists them in pool "
        f"'{storage.pool_name}'; remove them by `virsh vol-delete`."
    )


def test_volume_that_is_not_removed_does_not_keep_the_others(
    host: FakeStorageHost, tmp_path: Path
) -> None:
    path = a_content(tmp_path, b"disk").path
    with contextlib.ExitStack() as run:
        storage = run.enter_context(opened(host, tmp_path / "state"))
        volumes = [
            storage.put(Content(title="a disk", path=path, key=key), deadline=soon())
            for key in ("node-1", "node-2")
        ]
        host.pool.in_use.add(volumes[0].name)
        with pytest.raises(LibvirtError, match="is in use"):
            run.close()

    assert list(host.pool.volumes) == [volumes[0].name]
