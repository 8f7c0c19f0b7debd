"""Which artifacts of the store are meant, and what is said of them."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.artifact_cache import KEY_DIGITS, MANIFEST
from harness.progress import Progress, ProgressEvent, Stage
from harness.provisioning.wait import Deadline
from harness.shared_store import StoreError
from harness.shared_store import source as source_module
from harness.shared_store.answers import FILE_TYPE, NEEDS, TITLE, next_page, read_moment
from harness.shared_store.packing import _compress
from harness.shared_store.source import (
    ARTIFACT_TYPE,
    SharedCache,
    StoredArtifact,
    needed_artifacts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from suites.fakes.clock import FakeClock

TAGS = ("baked-0123", "booted-0123", "booted-4567")
#: What comes of a blob at once.
STEP = 3000
NOON = dt.datetime(2026, 8, 21, 12, tzinfo=dt.timezone.utc)


def an_artifact(tag: str) -> StoredArtifact:
    return StoredArtifact(
        repository="checkpoints", tag=tag, digest="x", pushed=None, packed_bytes=1, needs=None
    )


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ([], TAGS),
        (["booted"], TAGS[1:]),
        (["booted-4567"], TAGS[2:]),
        (["nothing", "baked"], TAGS[:1]),
        (["booted-4567", "baked-0123"], (TAGS[0], TAGS[2])),
        (["0123"], ()),
    ],
)
def test_artifacts_are_named_by_their_beginnings(names: list[str], chosen: tuple[str]) -> None:
    assert needed_artifacts([an_artifact(tag) for tag in TAGS], names) == [*chosen]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-08-21T12:00:00Z", NOON),
        ("2026-08-21T14:00:00+02:00", NOON),
        ("2026-08-21T12:00:00", NOON),
        ("noon", None),
        (None, None),
    ],
)
def test_time_of_a_push_has_its_zone(text: str | None, moment: dt.datetime | None) -> None:
    assert read_moment(text) == moment


@pytest.mark.parametrize(
    ("link", "page"),
    [
        ('</v2/t/tags/list?last=a>; rel="next"', "/v2/t/tags/list?last=a"),
        (" <https://r/x>", "https://r/x"),
        (None, None),
        ("/v2/x", None),
    ],
)
def test_next_page_is_in_angle_brackets(link: str | None, page: str | None) -> None:
    assert next_page(link) == page


@dataclass
class FakeClient:
    """A registry whose artifacts are files in memory: for each tag its parts; all have the same files."""

    work: Path
    parts: dict[str, dict[str, object]] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=lambda: {"sub/a": b"x" * 5000})
    blobs: dict[str, bytes] = field(default_factory=dict)
    kind: str = ARTIFACT_TYPE
    address: str = "registry"
    deadlines: list[float] = field(default_factory=list)
    breaks: Callable[[], None] = lambda: None

    def deadline(self) -> Deadline:
        return Deadline.after(60)

    def tags(self, _: str, *, deadline: Deadline) -> list[str]:
        self.deadlines.append(deadline.remaining_s())
        return sorted(self.parts)

    def manifest(
        self, _: str, tag: str, *, deadline: Deadline
    ) -> tuple[dict[str, Any], str] | None:
        self.deadlines.append(deadline.remaining_s())
        if tag not in self.parts:
            return None
        layers = []
        for title, content in self.contents.items():
            plain, packed = self.work / "plain", self.work / "packed"
            plain.write_bytes(content)
            _compress(plain, packed)
            blob = packed.read_bytes()
            digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
            self.blobs[digest] = blob
            layers.append(
                {
                    "mediaType": FILE_TYPE,
                    "digest": digest,
                    "size": len(blob),
                    "annotations": {TITLE: title},
                }
            )
        own = hashlib.sha256(tag.encode()).hexdigest()
        manifest = {
            "artifactType": self.kind,
            "config": {"digest": f"sha256:{own}"},
            "layers": layers,
            "annotations": {NEEDS: f"needs of {tag}"},
        }
        return manifest, f"sha256:{own}"

    def small_blob(self, _: str, digest: str, what: str, *, deadline: Deadline) -> bytes:
        del digest
        self.deadlines.append(deadline.remaining_s())
        tag = what.rpartition(" ")[2].strip("'")
        files = {
            title: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for title, content in self.contents.items()
        }
        return json.dumps({"parts": self.parts[tag], "files": files}).encode()

    def fetch_blob(
        self,
        _: str,
        digest: str,
        size: int,
        part: Path,
        *,
        what: str,
        progress: Callable[[int], None],
        deadline: Deadline,
    ) -> None:
        del what, deadline
        have = part.stat().st_size if part.exists() else 0
        with part.open("ab") as sink:
            for begin in range(have, size, STEP):
                chunk = self.blobs[digest][begin : min(size, begin + STEP)]
                sink.write(chunk)
                sink.flush()
                progress(len(chunk))
                self.breaks()


@pytest.fixture
def events() -> list[ProgressEvent]:
    return []


@pytest.fixture
def client(tmp_path: Path) -> FakeClient:
    return FakeClient(tmp_path)


def fetch(
    client: FakeClient,
    events: list[ProgressEvent],
    *,
    name: str = "baked-01",
    inputs: Mapping[str, object] | None = None,
) -> bool:
    into = client.work / "into"
    into.mkdir()
    cache = SharedCache(
        client=client,  # type: ignore[arg-type]
        repository="checkpoints",
        partial=client.work / "parts",
    )
    return cache.fetch(
        name,
        into,
        inputs=inputs or {},
        progress=Progress(name, events.append),
        deadline=Deadline.after(100),
    )


ONE: dict[str, object] = {"qemu": "7.2", "image": "one", "parent": "p"}


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (
            {"other-02": {}, "baked-too-02": {**ONE, "qemu": "8"}},
            "has no 'baked-01'; it is made here",
        ),
        ({"baked-02": {**ONE, "parent": "q"}}, "has no 'baked-01'; it is made here"),
        (
            {"baked-02": {**ONE, "qemu": "8"}},
            "only 'baked-02', which was made with another QEMU or processor (needs of baked-02); it is",
        ),
        ({"baked-02": {**ONE, "image": "two", "own": 1}}, "with another image, another 'own' ("),
        ({"baked-02": {"qemu": "7.2"}}, "with another image ("),
        ({f"baked-{n:02}": {**ONE, "qemu": "8"} for n in range(2, 20)}, "only 'baked-15', which"),
    ],
)
def test_artifact_of_other_inputs_is_named_with_the_differences(
    client: FakeClient,
    events: list[ProgressEvent],
    stored: dict[str, dict[str, object]],
    said: str,
) -> None:
    """It has the same name but for the key; another parent says nothing to people."""
    client.parts = stored

    assert not fetch(client, events, inputs=ONE)

    assert [event.stage for event in events] == [Stage.CHECK]
    assert said in events[0].message
    # Half of the time is left to make it.
    assert max(client.deadlines) <= 50


def test_artifacts_of_other_programs_are_left_out(
    client: FakeClient, events: list[ProgressEvent]
) -> None:
    client.parts, client.kind = {"baked-02": {**ONE, "qemu": "8"}}, "other/type"

    assert not fetch(client, events, inputs=ONE)

    assert events[0].message.endswith("has no 'baked-01'; it is made here")


def test_pull_continues_and_reports_its_progress(
    client: FakeClient,
    events: list[ProgressEvent],
    fake_time: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what an earlier pull left of the second file, the share counts, but not the speed."""
    times = SimpleNamespace(monotonic=fake_time.monotonic, time=time.time)
    monkeypatch.setattr(source_module, "time", times)
    client.contents = {name: os.urandom(100 * STEP) for name in ("sub/a", "b")}
    client.parts = {"baked-01": ONE}
    manifest, _ = client.manifest("", "baked-01", deadline=Deadline.after(9)) or ({}, "")
    digest = manifest["layers"][1]["digest"]
    digits = digest.rpartition(":")[2][:KEY_DIGITS]
    parts = client.work / "parts"
    parts.mkdir(mode=0o700)
    (parts / f"baked-01.{digits}").write_bytes(client.blobs[digest][: 50 * STEP])
    (parts / "old").mkdir()
    (parts / "new.0").touch()
    os.utime(parts / "old", (1, 1))
    # The 140th of some 150 steps comes after ten seconds.
    client.breaks = lambda: fake_time.sleep(10.0 / 139.5)

    assert fetch(client, events)

    for name, content in client.contents.items():
        assert (client.work / "into" / name).read_bytes() == content
        assert (client.work / "into" / name).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in parts.iterdir()] == ["new.0"]
    assert [event.message for event in events[1:]] == ["94 %, 0.0 MiB/s"]


def test_part_of_a_refused_pull_is_not_left(
    client: FakeClient, events: list[ProgressEvent]
) -> None:
    """The maker gets an empty folder, as it would without a store."""
    into = client.work / "into"

    def lose() -> None:
        (into / "sub").mkdir()
        (into / "sub/b").touch()
        (into / "c").touch()
        raise StoreError("It is gone.")

    client.parts, client.breaks = {"baked-01": ONE}, lose

    assert not fetch(client, events)

    assert list(into.iterdir()) == []
    assert (events[-1].stage, events[-1].message) == (
        Stage.REFUSED,
        "It is gone. It is made here.",
    )


@pytest.mark.parametrize("is_writable", [True, False])
@pytest.mark.parametrize("manifest", [None, "{", '{"files": {"a": {"size": 1, "sha256": "x"}}}'])
def test_folder_that_can_not_be_offered_fails_nothing(
    client: FakeClient, events: list[ProgressEvent], manifest: str | None, *, is_writable: bool
) -> None:
    """The test that made it goes on with it."""
    folder = client.work / "baked-01"
    folder.mkdir()
    if manifest is not None:
        (folder / MANIFEST).write_text(manifest)
    cache = SharedCache(
        client=client,  # type: ignore[arg-type]
        repository="checkpoints",
        partial=client.work / "parts",
        is_writable=is_writable,
    )

    cache.offer(folder, progress=Progress("baked-01", events.append))

    refused = [event for event in events if event.stage is Stage.REFUSED]
    assert len(refused) == (1 if is_writable else 0)
