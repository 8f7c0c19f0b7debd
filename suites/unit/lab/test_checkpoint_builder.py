"""The key of a checkpoint, and the machine from which a lab makes a checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from harness.artifact_cache import DISK, FileFact
from harness.errors import BadInputError, HarnessError, RequirementError
from harness.image.manifest import IMAGE_FORMAT
from harness.image.store import ImageStore
from harness.lab import saved_states
from harness.lab.cloud_images import CloudImageBoot, CloudImageSource, cloud_image_booted
from harness.lab.machine_saving import NONCE_FACT
from harness.lab.running_machines import Machines
from harness.lab.saved_states import BuiltImageSource, SavedState, _reserve, booted
from harness.machine.checkpoint.store import CheckpointPlace, CheckpointStore, key_of
from harness.machine.description.spec import MemoryFile
from harness.payload import Payload
from harness.provisioning.command import CommandResult, LocalRunner
from suites.unit.lab.builders import a_cloud_image, an_image
from suites.unit.lab.stage import a_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness.lab import Lab
    from harness.lab.description import MachineDescription
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import CheckpointBuilder
    from harness.machine.checkpoint.store import Checkpoint
    from suites.unit.lab.stage import Stage


@dataclass
class FakeStore:
    """A fake store, which records requests and has each checkpoint, or makes it in `place` if set."""

    place: CheckpointPlace | None = None
    asked: dict[str, tuple[Mapping[str, object], Checkpoint | None]] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def use(
        self,
        name: str,
        parts: Mapping[str, object],
        make: Callable[[CheckpointPlace], Mapping[str, str]],
        *,
        parent: Checkpoint | None = None,
        **_: object,
    ) -> Iterator[Checkpoint]:
        self.asked[name] = (parts, parent)
        if self.place is not None:
            self.facts = make(self.place)
        key = key_of(name, parts, parent)
        yield a_checkpoint(Path("/checkpoints") / name, name=name, key=key, parent=parent)


def checkpoint_of(
    lab: Lab, saved_state: SavedState, *, agent: str = "1" * 64, disk: str = "2" * 64
) -> tuple[Checkpoint, Mapping[str, object]]:
    """Return the checkpoint that a lab requests for a saved state, and the parts of its key."""
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


def test_agent_and_base_disk_are_part_of_the_key_of_a_checkpoint(lab: Lab) -> None:
    """A checkpoint with another base disk or another agent must not be used."""
    for saved_state in (booted(an_image()), derived()):
        key = checkpoint_of(lab, saved_state)[0].key

        assert checkpoint_of(lab, saved_state)[0].key == key
        assert checkpoint_of(lab, saved_state, agent="a" * 64)[0].key != key
        assert checkpoint_of(lab, saved_state, disk="a" * 64)[0].key != key


def test_checkpoint_of_a_derived_state_refers_to_the_checkpoint_of_the_parent_state(
    lab: Lab,
) -> None:
    checkpoint, _ = checkpoint_of(lab, derived())

    assert checkpoint.parent is not None
    assert checkpoint.parent.key == checkpoint_of(lab, booted(an_image()))[0].key


def test_checkpoint_is_requested_from_the_store_only_once_until_the_builder_closes(
    lab: Lab,
) -> None:
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


def test_digest_of_a_base_disk_is_read_from_the_manifest_entry_of_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = {
        name: FileFact(size=1, sha256=digit * 64)
        for name, digit in (("initrd", "7"), (DISK, "8"), ("vmlinuz", "9"))
    }

    class Manifest:
        files = facts

    image = an_image()
    manifests = {image.folder: Manifest()}
    monkeypatch.setattr(type(IMAGE_FORMAT), "read", lambda _, folder: manifests[folder])
    source = BuiltImageSource(image=image, kernel_image=image.newest_kernel)

    assert source.disk_sha256() == "8" * 64


# -- making a checkpoint ---------------------------------------------------------------------------


def test_all_disk_blocks_of_a_checkpoint_memory_file_are_allocated(tmp_path: Path) -> None:
    """QEMU is killed by SIGBUS at a page without a block."""
    ram = tmp_path / "ram"
    ram.write_bytes(b"copied")

    _reserve(ram, 2)

    status = ram.stat()
    assert status.st_size == 2 << 20
    assert status.st_blocks * 512 >= 2 << 20
    assert ram.read_bytes().startswith(b"copied")


@pytest.fixture
def making(tmp_path: Path) -> FakeStore:
    folder = tmp_path / "making"
    folder.mkdir()
    return FakeStore(
        CheckpointPlace(
            ram=folder / "ram", state=folder / "state", disk=folder / "disk", folder=folder
        )
    )


@pytest.fixture
def builder(
    lab: Lab, making: FakeStore, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> CheckpointBuilder:
    """Return a builder whose machines run on the stage."""

    @contextlib.contextmanager
    def created(_: Machines, description: MachineDescription) -> Iterator[LabMachine]:
        spec = description.spec
        asked = {"disk": spec.disk, "memory_file": spec.memory_file, "seed": description.seed}
        stage.noted.append(("create", spec.name, asked))
        yield stage.machine()

    monkeypatch.setattr(Machines, "created", created)
    monkeypatch.setattr(saved_states, "_reserve", lambda ram, _: ram.touch())
    monkeypatch.setattr(BuiltImageSource, "disk_sha256", lambda _: "2" * 64)
    monkeypatch.setattr(BuiltImageSource, "wait_until_booted", lambda *_: None)
    return replace(
        lab.checkpoint_builder,
        checkpoints=cast("CheckpointStore", making),
        needs=lambda: {"qemu": "7.2"},
    )


def test_disk_and_memory_file_of_a_new_checkpoint_are_in_the_folder_of_the_checkpoint(
    builder: CheckpointBuilder, making: FakeStore, stage: Stage
) -> None:
    builder.ensure_checkpoint(booted(an_image()))

    assert making.place is not None
    created = next(each for each in stage.noted if each[0] == "create")
    assert created[1:] == (
        "debian-12-booted",
        {
            "disk": making.place.disk,
            "memory_file": MemoryFile(path=making.place.ram, is_private=False),
            "seed": None,
        },
    )
    assert ("save", making.place.state) in stage.noted
    (nonce,) = (each[1] for each in stage.noted if each[0] == "remember")
    assert making.facts == {
        NONCE_FACT: hashlib.sha256(nonce.encode()).hexdigest(),
        "qemu": "7.2",
    }
    # The nonce in a guest's memory proves that the memory is from this checkpoint, so the facts must not
    # contain the nonce.
    assert nonce not in making.facts.values()


def test_machine_of_a_derived_checkpoint_has_no_seed_and_no_enlarged_disk(
    builder: CheckpointBuilder, making: FakeStore, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlays: list[tuple[Path, int | None]] = []
    copied: list[Sequence[str]] = []

    def create(_: object, backing: Path, __: Path, *, size_gib: int | None = None) -> None:
        overlays.append((backing, size_gib))

    def run(_: LocalRunner, argv: Sequence[str], **__: object) -> CommandResult:
        copied.append(argv[-2:])
        return CommandResult(argv=tuple(argv), exit_code=0, stdout="", stderr="")

    monkeypatch.setattr(ImageStore, "create_overlay", create)
    monkeypatch.setattr(LocalRunner, "run", run)
    monkeypatch.setattr(CloudImageSource, "wait_until_booted", lambda *_: None)
    first = cloud_image_booted(a_cloud_image(), boot=CloudImageBoot(disk_gib=20))

    made = builder.ensure_checkpoint(first.derive("ready", lambda _: None, {"files": "1"}))

    parent, place = made.parent, making.place
    assert parent is not None
    assert place is not None
    seeds = [each[2]["seed"] for each in stage.noted if each[0] == "create"]
    assert seeds == [first.origin.first_seed, None]
    assert overlays == [(a_cloud_image().disk, 20), (parent.disk, None)]
    assert copied == [[str(parent.ram), str(place.ram)]]


def test_error_that_the_user_can_correct_is_shown_unchanged(
    builder: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[HarnessError] = [
        BadInputError("No such GPU.", source="t.py"),
        RequirementError("No QEMU."),
    ]
    for error in rows:

        def fail(*_: object, error: HarnessError = error) -> None:
            raise error

        monkeypatch.setattr(BuiltImageSource, "wait_until_booted", fail)

        with pytest.raises(HarnessError) as failure:
            builder.ensure_checkpoint(booted(an_image()))

        assert failure.value is error
