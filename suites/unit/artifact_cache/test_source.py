"""A cache that fetches missing folders from a source, such as a shared store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness.artifact_cache import DamagedError, StagingFolder
from harness.artifact_cache.store import ArtifactStore
from harness.progress import Progress, ProgressEvent, Stage
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass
class FakeSource:
    """A fake source that has `content` or nothing, and records offered folders in `offered`."""

    content: str | None = None
    asked: list[Mapping[str, object]] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)

    def fetch(
        self,
        name: str,
        into: Path,
        *,
        inputs: Mapping[str, object],
        progress: Progress,
        deadline: Deadline,
    ) -> bool:
        assert not deadline.has_passed()
        del name, progress
        self.asked.append(inputs)
        if self.content is None:
            return False
        (into / "file").write_text(self.content)
        return True

    def offer(self, folder: Path, *, progress: Progress) -> None:
        del progress
        self.offered.append((folder / "file").read_text())


@dataclass
class Cache:
    """A store with the fake source; a folder is damaged if its file contains 'bad'."""

    top: Path
    source: FakeSource
    events: list[ProgressEvent] = field(default_factory=list)

    def have(self) -> str:
        folder = self.top / "image-1"

        def opened() -> str:
            content = (folder / "file").read_text()
            if content == "bad":
                raise DamagedError("It lies on another disk.")
            return content

        def fill(staging: StagingFolder) -> None:
            (staging.content / "file").write_text("made here")

        return ArtifactStore(self.top, noun="image", source=self.source).ensure(
            folder,
            opened=opened,
            fill=fill,
            progress=Progress("image", self.events.append),
            deadline=Deadline.after(10),
            inputs={"qemu": "7.2"},
        )


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def cache(tmp_path: Path, source: FakeSource) -> Cache:
    return Cache(tmp_path, source)


def test_artifact_in_the_source_is_fetched_instead_of_made(
    cache: Cache, source: FakeSource
) -> None:
    source.content = "from another host"

    assert cache.have() == cache.have() == "from another host"
    assert source.asked == [{"qemu": "7.2"}], "The second time it is in the cache."
    assert source.offered == []


def test_artifact_that_the_source_lacks_is_made_and_offered_to_the_source(
    cache: Cache, source: FakeSource
) -> None:
    assert cache.have() == "made here"
    assert source.offered == ["made here"]


def test_artifact_is_made_locally_if_the_fetched_artifact_is_refused(
    cache: Cache, source: FakeSource
) -> None:
    source.content = "bad"

    assert cache.have() == "made here"
    assert [event.message for event in cache.events if event.stage is Stage.REFUSED] == [
        "It lies on another disk. The image is made on this host."
    ]
    assert [path.name for path in cache.top.iterdir() if not path.name.startswith(".")] == [
        "image-1"
    ]
