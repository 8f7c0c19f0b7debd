"""What is said of a transfer that fails, and what is left of it."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NoReturn, cast

import pytest

from harness.errors import HarnessError
from harness.machine.libvirt.errors import Code, LibvirtError
from harness.machine.libvirt.storage import CHUNK, Storage, Volume
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock
from suites.unit.machine.libvirt.fake_pool import (
    FakeStorageHost,
    FakeStream,
    FakeVolume,
    a_content,
)

if TYPE_CHECKING:
    from harness.machine.libvirt.connection import Connection

FOLDER = PurePosixPath("/srv/harness")
OWNER = "0a1b2c3d-far-11223344"
ELSEWHERE = "ffffffff-far-55555555"
MIB = 1 << 20


def soon() -> Deadline:
    return Deadline.after(30)


@pytest.fixture
def host() -> FakeStorageHost:
    return FakeStorageHost()


@pytest.fixture
def storage(host: FakeStorageHost, tmp_path: Path) -> Storage:
    return Storage(
        cast("Connection", host), FOLDER, owner=OWNER, locks=tmp_path, report=lambda _: None
    )


def test_transfer_beyond_the_deadline_says_how_far_it_came(
    storage: Storage, host: FakeStorageHost, tmp_path: Path
) -> None:
    # Each chunk is a quarter of a MiB, and takes a second.
    soon_over = partial(Deadline.after, 15, FakeClock(look_s=1))
    host.pool.add("disk", b"d" * (8 * MIB))

    with pytest.raises(HarnessError, match=r"; 3 of 8 MiB were transferred\."):
        storage.put(a_content(tmp_path, b"d" * (8 * MIB)), deadline=soon_over())
    with pytest.raises(HarnessError, match=r"; 3 MiB were transferred\."):
        storage.fetch(Volume(name="disk", path=FOLDER), tmp_path / "back", deadline=soon_over())


def test_reason_of_a_broken_transfer_is_not_hidden_by_what_fails_after_it(
    storage: Storage, host: FakeStorageHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise LibvirtError("This can't be undone either.", code=Code.RPC)

    monkeypatch.setattr(FakeStream, "abort", refuse)
    monkeypatch.setattr(FakeVolume, "delete", refuse)
    host.pool.add("disk", b"d" * (2 * CHUNK))
    host.fails_at = CHUNK

    with pytest.raises(LibvirtError, match="The connection broke"):
        storage.put(a_content(tmp_path, b"d" * (2 * CHUNK)), deadline=soon())
    with pytest.raises(LibvirtError, match="The connection broke"):
        storage.fetch(Volume(name="disk", path=FOLDER), tmp_path / "back", deadline=soon())

    assert [path.name for path in tmp_path.iterdir()] == ["disk"]


def test_download_into_a_folder_that_is_missing_ends_its_stream(
    storage: Storage, host: FakeStorageHost, tmp_path: Path
) -> None:
    host.pool.add("disk")

    with pytest.raises(FileNotFoundError):
        storage.fetch(Volume(name="disk", path=FOLDER), tmp_path / "missing/back", deadline=soon())

    assert host.streams[0].ending == "aborted"


# -- what a failure would say --------------------------------------------------------------------------

IN_FOLDER = "the storage in '/srv/harness'"


def test_each_call_of_an_upload_says_what_it_is_for(
    storage: Storage, host: FakeStorageHost, tmp_path: Path
) -> None:
    content = a_content(tmp_path, b"disk")
    name = f"run.{OWNER}-{content.key}"

    volume = storage.put(content, deadline=soon())
    assert set(host.noted) == {
        IN_FOLDER,
        f"the creation of volume '{name}'",
        "the upload of the file 'disk'",
        f"the lookup of volume '{name}'",
    }

    host.noted.clear()
    storage.remove(volume)
    assert set(host.noted) == {
        IN_FOLDER,
        f"the lookup of volume '{name}'",
        f"the removal of volume '{name}'",
    }


def test_each_call_of_a_search_says_what_it_is_for(
    storage: Storage, host: FakeStorageHost, tmp_path: Path
) -> None:
    content = a_content(tmp_path, b"disk")
    name = f"{content.key}.{ELSEWHERE}-0001"
    host.pool.add(name, b"disk")
    host.pool.add(f"{name}.ready")

    storage.ensure(content, deadline=soon())

    assert set(host.noted) == {
        IN_FOLDER,
        "the refresh of the storage",
        "the list of volumes",
        f"the lookup of volume '{name}'",
    }


@pytest.mark.parametrize("fails_at", [None, 0], ids=["complete", "broken"])
def test_each_call_of_a_download_says_what_it_is_for(
    storage: Storage, host: FakeStorageHost, tmp_path: Path, fails_at: int | None
) -> None:
    host.pool.add("disk")
    host.fails_at = fails_at

    with contextlib.suppress(LibvirtError):
        storage.fetch(Volume(name="disk", path=FOLDER), tmp_path / "back", deadline=soon())

    noted = {IN_FOLDER, "the lookup of volume 'disk'", "the download of volume 'disk'"}
    end = set() if fails_at is None else {"the end of the download of volume 'disk'"}
    assert set(host.noted) == noted | end
