"""What the key of a checkpoint covers, as the lab computes it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from harness.artifact_cache import DISK, FileFact
from harness.image.manifest import IMAGE_FORMAT
from harness.lab.cloud_images import CloudImageBoot, CloudImageSource
from harness.lab.saved_states import BuiltImageSource, SavedState, booted
from harness.machine.checkpoint.store import Checkpoint, CheckpointStore, key_of
from harness.payload import Payload
from suites.unit.lab.builders import a_cloud_image, an_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.lab import Lab


@dataclass
class FakeStore:
    """Has every checkpoint, and records of what each was asked for."""

    asked: dict[str, tuple[Mapping[str, object], Checkpoint | None]] = field(default_factory=dict)

    @contextlib.contextmanager
    def use(
        self,
        name: str,
        parts: Mapping[str, object],
        _make: object,
        *,
        parent: Checkpoint | None = None,
        **_: object,
    ) -> Iterator[Checkpoint]:
        self.asked[name] = (parts, parent)
        folder = Path("/checkpoints") / name
        yield Checkpoint(
            name=name,
            key=key_of(name, parts, parent),
            folder=folder,
            parent=parent,
            facts={},
            ram=folder / "ram",
            state=folder / "state",
            disk=folder / "disk",
        )


def checkpoint_of(
    lab: Lab, saved_state: SavedState, *, agent: str = "1" * 64, disk: str = "2" * 64
) -> tuple[Checkpoint, Mapping[str, object]]:
    """Return a checkpoint as a lab with this agent and a base disk of this digest asks for it."""
    store = FakeStore()
    lab = replace(lab, agent_program=Payload(content=b"", digest=agent))
    builder = replace(lab.checkpoint_builder, checkpoints=cast("CheckpointStore", store))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BuiltImageSource, "disk_sha256", lambda _: disk)
        checkpoint = builder.ensure_checkpoint(saved_state)
    builder.close()
    return checkpoint, store.asked[saved_state.name][0]


def derived() -> SavedState:
    return booted(an_image()).derive("ready", lambda _: None, {"files": "1"})


@pytest.mark.parametrize("saved_state", [booted(an_image()), derived()], ids=["first", "derived"])
@pytest.mark.parametrize(
    "change", [{"agent": "a" * 64}, {"disk": "a" * 64}], ids=["agent", "disk"]
)
def test_agent_and_base_disk_are_part_of_the_key(
    lab: Lab, saved_state: SavedState, change: dict[str, str]
) -> None:
    """An overlay on other blocks, or a machine with another agent, must not be continued."""
    key = checkpoint_of(lab, saved_state)[0].key

    assert checkpoint_of(lab, saved_state)[0].key == key
    assert checkpoint_of(lab, saved_state, **change)[0].key != key


def test_key_names_the_digests_of_agent_and_base_disk(lab: Lab) -> None:
    _, parts = checkpoint_of(lab, booted(an_image()))

    assert (parts["agent"], parts["image_disk_sha256"]) == ("1" * 64, "2" * 64)


def test_checkpoint_lies_on_that_of_its_parent(lab: Lab) -> None:
    checkpoint, _ = checkpoint_of(lab, derived())

    assert checkpoint.parent is not None
    assert checkpoint.parent.key == checkpoint_of(lab, booted(an_image()))[0].key


def test_checkpoint_is_asked_for_once(lab: Lab) -> None:
    store = FakeStore()
    builder = replace(lab.checkpoint_builder, checkpoints=cast("CheckpointStore", store))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BuiltImageSource, "disk_sha256", lambda _: "2" * 64)
        first = builder.ensure_checkpoint(booted(an_image()))
        store.asked.clear()
        again = builder.ensure_checkpoint(booted(an_image()))
        builder.close()
        asked_before_close = dict(store.asked)
        builder.ensure_checkpoint(booted(an_image()))
    builder.close()

    assert first is again
    assert asked_before_close == {}
    assert set(store.asked) == {first.name}


def test_digest_of_a_base_disk_is_that_of_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = {
        name: FileFact(size=1, sha256=digit * 64)
        for name, digit in (("initrd", "7"), (DISK, "8"), ("vmlinuz", "9"))
    }

    class Manifest:
        files = facts

    monkeypatch.setattr(type(IMAGE_FORMAT), "read", lambda _, __: Manifest())
    image = an_image()
    source = BuiltImageSource(image=image, kernel_image=image.newest_kernel)

    assert source.disk_sha256() == "8" * 64


def test_digest_of_a_cloud_image_is_that_of_its_disk() -> None:
    source = CloudImageSource(image=a_cloud_image(), boot=CloudImageBoot())

    assert source.disk_sha256() == "sha256:1234"
