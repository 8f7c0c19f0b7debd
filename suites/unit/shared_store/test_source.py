"""Which artifacts of a store are fetched, listed and pushed, and what is reported about them."""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.artifact_cache import KEY_DIGITS, MANIFEST, USED
from harness.limits import STORE_SECONDS
from harness.progress import Progress, ProgressEvent, Stage
from harness.provisioning.wait import Deadline
from harness.shared_store import StoreError
from harness.shared_store import source as source_module
from harness.shared_store.answers import (
    CREATED,
    FILE_TYPE,
    NEEDS,
    REST_TYPE,
    TITLE,
    next_page,
    read_moment,
)
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
#: The number of bytes of a blob that arrive in one step.
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
def test_artifacts_are_selected_by_the_start_of_their_name(
    names: list[str], chosen: tuple[str]
) -> None:
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
def test_push_time_without_a_zone_is_read_as_utc(
    text: str | None, moment: dt.datetime | None
) -> None:
    assert read_moment(text) == moment


@pytest.mark.parametrize(
    ("link", "page"),
    [
        ('</v2/t/tags/list?last=a>; rel="next"', "/v2/t/tags/list?last=a"),
        (" <https://r/x>", "https://r/x"),
        ('<?first>; rel="prev first", <?last=a>; title="a, <b>"; REL = next', "?last=a"),
        ('</style.css>; rel=preload; as=style, <?a>;rel="last NEXT"', "?a"),
        ('<?first>; rel="prev"', None),
        ("<" * 60_000, None),
        ("", None),
        ("/v2/x", None),
    ],
)
def test_next_page_url_is_read_from_the_link_header(link: str, page: str | None) -> None:
    assert next_page(link) == page


@dataclass
class FakeClient:
    """A fake registry: has the parts of each tag in memory, and the same files for each artifact."""

    work: Path
    parts: dict[str, dict[str, object]] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=lambda: {"sub/a": b"x" * 5000})
    blobs: dict[str, bytes] = field(default_factory=dict)
    kind: str = ARTIFACT_TYPE
    address: str = "registry"
    deadlines: list[float] = field(default_factory=list)
    breaks: Callable[[], None] = lambda: None
    rest: bytes = b""
    described: Mapping[str, bytes] | None = None
    pushed: dict[str, dict[str, Any]] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)

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
        if self.rest:
            digest = f"sha256:{hashlib.sha256(self.rest).hexdigest()}"
            self.blobs[digest] = self.rest
            layers.append(
                {
                    "mediaType": REST_TYPE,
                    "digest": digest,
                    "size": len(self.rest),
                    "annotations": {TITLE: "rest"},
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
            for title, content in (self.described or self.contents).items()
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

    def push_blob(self, _: str, path: Path, digest: str, what: str, *, deadline: Deadline) -> None:
        del what, deadline
        self.blobs[digest] = path.read_bytes()

    def push_manifest(self, _: str, tag: str, content: bytes, *, deadline: Deadline) -> None:
        del deadline
        self.pushed[tag] = json.loads(content)

    def delete(self, _: str, digest: str, what: str) -> None:
        del what
        self.deleted.append(digest)


@pytest.fixture
def events() -> list[ProgressEvent]:
    return []


@pytest.fixture
def client(tmp_path: Path) -> FakeClient:
    return FakeClient(tmp_path)


def a_cache(client: FakeClient, *, is_writable: bool = True) -> SharedCache:
    return SharedCache(
        client=client,  # type: ignore[arg-type]
        repository="checkpoints",
        partial=client.work / "parts",
        is_writable=is_writable,
    )


def fetch(
    client: FakeClient,
    events: list[ProgressEvent],
    *,
    name: str = "baked-01",
    inputs: Mapping[str, object] | None = None,
) -> bool:
    into = client.work / "into"
    into.mkdir()
    return a_cache(client).fetch(
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
            "has no 'baked-01'; this host makes 'baked-01'",
        ),
        ({"baked-02": {**ONE, "parent": "q"}}, "has no 'baked-01'; this host makes 'baked-01'"),
        (
            {"baked-02": {**ONE, "qemu": "8"}},
            "only 'baked-02', which was made with another QEMU or processor (needs of baked-02); this host",
        ),
        ({"baked-02": {**ONE, "image": "two", "own": 1}}, "with another image, another 'own' ("),
        ({"baked-02": {"qemu": "7.2"}}, "with another image ("),
        ({"baked-02": {**ONE, "\x1b[2J": 1}}, r"with another '\x1b[2J' ("),
        ({f"baked-{n:02}": {**ONE, "qemu": "8"} for n in range(2, 20)}, "only 'baked-15', which"),
    ],
)
def test_report_lists_inputs_that_differ_from_the_stored_artifact(
    client: FakeClient,
    events: list[ProgressEvent],
    stored: dict[str, dict[str, object]],
    said: str,
) -> None:
    """Only the key in the name differs; a differing parent key is not useful to people."""
    client.parts = stored

    assert not fetch(client, events, inputs=ONE)

    assert [event.stage for event in events] == [Stage.CHECK]
    assert said in events[0].message
    # Half of the time is left for making the artifact.
    assert max(client.deadlines) <= 50


def test_pull_deadline_is_within_the_registry_time_limit(
    client: FakeClient, events: list[ProgressEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE_SECONDS.variable, "20")

    fetch(client, events)

    assert max(client.deadlines) <= 20


def test_report_of_a_missing_artifact_names_no_artifact_of_another_program(
    client: FakeClient, events: list[ProgressEvent]
) -> None:
    client.parts, client.kind = {"baked-02": {**ONE, "qemu": "8"}}, "other/type"

    assert not fetch(client, events, inputs=ONE)

    assert events[0].message.endswith("has no 'baked-01'; this host makes 'baked-01'")


def test_pull_resumes_partial_downloads_and_reports_its_progress(
    client: FakeClient,
    events: list[ProgressEvent],
    fake_time: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes from an earlier pull count for the percentage, but not for the speed."""
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
    # An old folder is removed even if it was read a moment ago.
    os.utime(parts / "old", (time.time(), 1))
    # The 140th of some 150 steps comes after ten seconds.
    client.breaks = lambda: fake_time.sleep(10.0 / 139.5)

    assert fetch(client, events)

    for name, content in client.contents.items():
        assert (client.work / "into" / name).read_bytes() == content
        assert (client.work / "into" / name).stat().st_mode & 0o777 == 0o600
    assert (client.work / "into" / USED).exists()
    assert [path.name for path in parts.iterdir()] == ["new.0"]
    assert [event.message for event in events[1:]] == ["94 %, 0.0 MiB/s"]


def test_refused_pull_leaves_no_files(client: FakeClient, events: list[ProgressEvent]) -> None:
    """The function that makes the artifact gets an empty folder, as without a store."""
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
        "It is gone. This host makes 'baked-01'.",
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_pull_that_cannot_write_removes_only_its_own_partial_files(
    client: FakeClient, events: list[ProgressEvent], number: int
) -> None:
    parts = client.work / "parts"
    parts.mkdir(mode=0o700)
    for name in ("baked-01.0", "baked-02.0"):
        (parts / name).touch()

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    client.parts, client.breaks = {"baked-01": ONE}, fail

    assert not fetch(client, events)

    assert [path.name for path in parts.iterdir()] == ["baked-02.0"]
    assert events[-1].stage is Stage.REFUSED
    assert ("became full" in events[-1].message) is (number == errno.ENOSPC)


@pytest.mark.parametrize("is_rest", [False, True])
def test_partial_file_is_removed_if_the_blob_cannot_be_unpacked(
    client: FakeClient, events: list[ProgressEvent], *, is_rest: bool
) -> None:
    client.parts = {"baked-01": ONE}
    if is_rest:
        client.contents, client.rest = {}, b"no archive"
    else:
        client.contents, client.described = {"a": b"x"}, {"a": b"other"}

    assert not fetch(client, events)

    assert events[-1].stage is Stage.REFUSED
    assert list((client.work / "parts").iterdir()) == []


@pytest.mark.parametrize(
    ("facts", "needs"),
    [
        ({"qemu": "QEMU 7.2", "processor": "any processor"}, "QEMU 7.2, any processor"),
        ({"processor": "any processor"}, "any processor"),
        ({}, None),
    ],
)
def test_push_writes_the_config_layers_and_annotations_of_the_folder(
    client: FakeClient, events: list[ProgressEvent], facts: dict[str, str], needs: str | None
) -> None:
    folder = client.work / "baked-01"
    folder.mkdir()
    (folder / "disk").write_bytes(b"x")
    files = {"disk": {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}}
    own = json.dumps({"files": files, "facts": facts}).encode()
    (folder / MANIFEST).write_bytes(own)
    # A killed push left this folder.
    (client.work / "parts/push-0").mkdir(parents=True)
    (client.work / "parts").chmod(0o700)

    a_cache(client).offer(folder, progress=Progress("baked-01", events.append))

    assert [event.stage for event in events] == [Stage.PUBLISH]
    manifest = client.pushed["baked-01"]
    assert client.blobs[manifest["config"]["digest"]] == own
    assert [each["annotations"][TITLE] for each in manifest["layers"]] == ["disk"]
    assert manifest["annotations"].get(NEEDS) == needs
    pushed = dt.datetime.fromisoformat(manifest["annotations"][CREATED])
    assert abs(pushed - dt.datetime.now(tz=dt.timezone.utc)) < dt.timedelta(minutes=10)
    assert not list((client.work / "parts").glob("push-*"))


def test_artifact_that_is_already_in_the_store_is_not_pushed(client: FakeClient) -> None:
    client.parts = {"baked-01": {}}

    assert not a_cache(client).push(client.work / "baked-01", progress=Progress("baked-01"))

    assert client.pushed == {}


def test_artifact_is_removed_by_its_digest(client: FakeClient) -> None:
    client.parts = {"baked-01": {}, "baked-02": {}}
    cache = a_cache(client)
    first, second = cache.ls()

    cache.remove(second)

    assert client.deleted == [second.digest]
    assert first.digest != second.digest


@pytest.mark.parametrize("is_writable", [True, False])
@pytest.mark.parametrize("manifest", [None, "{", '{"files": {"a": {"size": 1, "sha256": "x"}}}'])
def test_offering_a_folder_that_cannot_be_packed_raises_no_error(
    client: FakeClient, events: list[ProgressEvent], manifest: str | None, *, is_writable: bool
) -> None:
    """The test that made the folder continues."""
    folder = client.work / "baked-01"
    folder.mkdir()
    if manifest is not None:
        (folder / MANIFEST).write_text(manifest)
    cache = a_cache(client, is_writable=is_writable)

    cache.offer(folder, progress=Progress("baked-01", events.append))

    refused = [event for event in events if event.stage is Stage.REFUSED]
    assert len(refused) == (1 if is_writable else 0)
