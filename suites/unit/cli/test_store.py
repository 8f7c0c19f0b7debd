"""`harness store` pushes, pulls, lists and removes the images and checkpoints of a registry."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness.artifact_cache import DISK, DamagedError, FileFact, ParentPin
from harness.artifact_cache.manifest import ManifestFormat, facts_of
from harness.cli import main, store
from harness.errors import HarnessError
from harness.shared_store.source import StoredArtifact
from suites.unit.image.formats.small_qcow2 import qcow2_on

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.progress import Progress

URL = "--store=registry.example"
NOON = dt.datetime(2026, 8, 21, 12, tzinfo=dt.timezone.utc)


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    name: str
    key: str
    files: dict[str, FileFact]
    parent: ParentPin | None = None
    created: str = "2026-01-01"


FORMAT = ManifestFormat(noun="thing", manifest=_Manifest, damaged=DamagedError)


def a_folder(folder: Path, backing: str = "") -> Path:
    folder.mkdir(parents=True)
    qcow2_on(folder / DISK, backing)
    FORMAT.write(folder, _Manifest(name="x", key="k", files=facts_of(folder, [DISK])))
    return folder


@dataclass
class FakeShared:
    """Plays a cache in the store; records what is pushed to, pulled from and removed from the cache."""

    stored: list[StoredArtifact] = field(default_factory=list)
    refusal: str = ""
    pushed: list[str] = field(default_factory=list)
    pulled: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    is_damaged: bool = False
    is_gone: bool = False

    def push(self, folder: Path, *, progress: Progress) -> bool:
        del progress
        if folder.name == self.refusal:
            raise HarnessError("the disk of the store is full.")
        self.pushed.append(folder.name)
        return folder.name not in {each.tag for each in self.stored}

    def pull(self, name: str, into: Path, *, progress: Progress) -> bool:
        del progress
        self.pulled.append(name)
        if self.is_gone:
            return False
        into.rmdir()
        a_folder(into)
        if self.is_damaged:
            (into / DISK).write_bytes((into / DISK).read_bytes()[:-1] + b"!")
        return True

    def ls(self) -> Sequence[StoredArtifact]:
        return self.stored

    def remove(self, artifact: StoredArtifact) -> None:
        self.removed.append(artifact.tag)


@dataclass
class Caches:
    """The two local caches of a host, and a shared cache for each."""

    folder: Path
    images: FakeShared = field(default_factory=FakeShared)
    checkpoints: FakeShared = field(default_factory=FakeShared)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caches:
    caches = Caches(tmp_path)
    local = {kind: (tmp_path / kind, FORMAT) for kind in ("images", "checkpoints")}
    shared = {"images": caches.images, "checkpoints": caches.checkpoints}
    monkeypatch.setattr(store, "_local", lambda _settings: local)
    monkeypatch.setattr(store, "open_shared_caches", lambda _settings: shared)
    for name in ("debian-12-0123", "debian-12-4567", "ubuntu-24.04-0123"):
        a_folder(tmp_path / "images" / name)
    a_folder(tmp_path / "checkpoints" / "booted-0123")
    return caches


def stored(
    tag: str, pushed: dt.datetime | None = NOON, needs: str | None = None
) -> StoredArtifact:
    return StoredArtifact(
        repository="images",
        tag=tag,
        digest="sha256:1",
        pushed=pushed,
        packed_bytes=3 << 19,
        needs=needs,
    )


def test_push_selects_artifacts_by_the_start_of_their_name(caches: Caches) -> None:
    rows: list[tuple[list[str], list[str], list[str]]] = [
        ([], ["debian-12-0123", "debian-12-4567", "ubuntu-24.04-0123"], ["booted-0123"]),
        (["debian-12"], ["debian-12-0123", "debian-12-4567"], []),
        (["debian-12-4567", "boo"], ["debian-12-4567"], ["booted-0123"]),
    ]
    for names, images, checkpoints in rows:
        caches.images.pushed.clear()
        caches.checkpoints.pushed.clear()
        assert main(["store", "push", URL, *names]) == 0, names

        assert (caches.images.pushed, caches.checkpoints.pushed) == (images, checkpoints), names


def test_push_reports_artifacts_that_the_store_already_has(
    caches: Caches, capsys: pytest.CaptureFixture[str]
) -> None:
    caches.images.stored = [stored("debian-12-0123")]

    assert main(["store", "push", URL, "debian-12"]) == 0

    had, new = capsys.readouterr().out.splitlines()
    assert had.startswith("images/debian-12-0123: ")
    assert "pushed" not in had
    assert new == "images/debian-12-4567: pushed"


def test_push_command_fails_if_one_image_cannot_be_pushed_but_pushes_the_other_images(
    caches: Caches, capsys: pytest.CaptureFixture[str]
) -> None:
    caches.images.refusal = "debian-12-0123"
    (caches.folder / "images/debian-12-4567" / DISK).unlink()
    a_folder(caches.folder / "images/own", backing="/srv/mine.qcow2")

    assert main(["store", "push", URL]) == 2

    assert caches.images.pushed == ["ubuntu-24.04-0123"]
    assert caches.checkpoints.pushed == ["booted-0123"]
    out = capsys.readouterr().out
    refused = [line.partition(":")[0] for line in out.splitlines() if "not pushed" in line]
    assert refused == ["images/debian-12-0123", "images/debian-12-4567", "images/own"]
    assert "'/srv/mine.qcow2'" in out


def test_pull_selects_artifacts_by_the_start_of_their_name(caches: Caches) -> None:
    caches.images.stored = [stored("rhel-9-1"), stored("rhel-9-2"), stored("debian-13-1")]

    assert main(["store", "pull", URL, "rhel-9"]) == 0

    assert caches.images.pulled == ["rhel-9-1", "rhel-9-2"]
    assert FORMAT.read(caches.folder / "images/rhel-9-2").key == "k"


def test_pull_of_a_damaged_or_removed_artifact_adds_nothing_to_the_cache(
    caches: Caches, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_gone in (False, True):
        caches.images.stored, caches.images.is_damaged = [stored("rhel-9-1")], True
        caches.images.is_gone = is_gone

        assert main(["store", "pull", URL]) == 2

        assert not (caches.folder / "images/rhel-9-1").exists()
        assert ("removed from the store" in capsys.readouterr().err) == is_gone


def test_artifact_that_the_cache_has_is_pulled_again_only_if_it_is_damaged(caches: Caches) -> None:
    caches.images.stored = [stored("debian-12-0123")]
    assert main(["store", "pull", URL]) == 0
    assert caches.images.pulled == []
    disk = caches.folder / "images/debian-12-0123" / DISK
    whole = disk.read_bytes()
    disk.write_bytes(whole[:-1] + b"!")

    assert main(["store", "pull", URL]) == 0

    assert caches.images.pulled == ["debian-12-0123"]
    assert disk.read_bytes() == whole


def test_gc_removes_old_artifacts_and_keeps_artifacts_without_a_push_time(
    caches: Caches, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[tuple[str, list[str]]] = [
        ("7", ["old"]),
        ("6.5", ["old"]),
        ("0", ["old", "new"]),
        ("10", []),
    ]
    for days, removed in rows:
        caches.images.removed.clear()
        now = dt.datetime.now(tz=dt.timezone.utc)
        ages = {"old": dt.timedelta(days=7, minutes=1), "new": dt.timedelta(days=6)}
        caches.images.stored = [stored(tag, now - age) for tag, age in ages.items()]
        caches.checkpoints.stored = [stored("undated", pushed=None)]

        assert main(["store", "gc", URL, f"--older-than-days={days}"]) == 0, days

        assert (caches.images.removed, caches.checkpoints.removed) == (removed, []), days
        assert "Kept images/undated" in capsys.readouterr().out, days


def test_no_artifact_is_removed_if_the_age_is_invalid(caches: Caches) -> None:
    for days in ("nan", "-1", "36501"):
        caches.images.stored = [stored("a")]

        with pytest.raises(SystemExit) as exiting:
            main(["store", "gc", URL, f"--older-than-days={days}"])

        assert exiting.value.code == 2, days
        assert caches.images.removed == [], days


def test_pull_of_a_name_that_the_store_lacks_is_an_error(
    caches: Caches, capsys: pytest.CaptureFixture[str]
) -> None:
    for names in (["13"], ["debian-13", "13"], [""]):
        caches.images.stored = [stored("debian-13-1")]

        assert main(["store", "pull", URL, *names]) == 2, names

        assert caches.images.pulled == [], names
        error = capsys.readouterr().err
        assert "registry.example" in error, names
        assert f"'{names[-1]}'" in error, names


def test_push_of_a_name_that_the_cache_lacks_is_an_error(
    caches: Caches, capsys: pytest.CaptureFixture[str]
) -> None:
    for names in (["0123"], ["debian-12", "debian-21"], [""]):
        assert main(["store", "push", URL, *names]) == 2, names

        assert caches.images.pushed == [], names
        assert f"'{names[-1]}'" in capsys.readouterr().err, names


def test_store_ls_prints_each_artifact_as_text_or_json(
    caches: Caches, capsys: pytest.CaptureFixture[str]
) -> None:
    caches.images.stored = [stored("a"), stored("b", pushed=None, needs="a")]

    assert main(["store", "ls", URL]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["KIND", "NAME", "MIB", "PUSHED", "NEEDS"],
        ["images", "a", "1", "2026-08-21", "12:00", "-"],
        ["images", "b", "1", "-", "a"],
    ]
    assert main(["store", "ls", URL, "--json"]) == 0

    usual = {"kind": "images", "digest": "sha256:1", "mib": 1.5}
    assert json.loads(capsys.readouterr().out) == [
        {**usual, "name": "a", "pushed": "2026-08-21T12:00:00+00:00", "needs": None},
        {**usual, "name": "b", "pushed": None, "needs": "a"},
    ]
