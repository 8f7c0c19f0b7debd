"""Clones reuse the checkpoint of the last clone, unless a change requires a new lookup."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pytest
from typing_extensions import override

import harness
from harness import lease
from harness.artifact_cache import MANIFEST, STAMP, USED
from harness.gpu.transport import Transport
from harness.image import Image, Kernel, catalogue
from harness.lab import recent_clones
from harness.lab.recent_clones import recent_clone
from harness.lab.running_machines import Machines
from harness.lab.saved_states import booted
from harness.machine.checkpoint.store import CheckpointStore
from harness.payload import Payload
from harness.settings import TESTED_IMAGES
from suites.unit.image.cataloguefolder import write_catalogue
from suites.unit.lab.drivers import StuckDriver
from suites.unit.lab.stage import a_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from harness.lab import Lab
    from harness.lab.description import MachineDescription
    from harness.lab.saved_states import SavedState
    from harness.machine.checkpoint.store import Checkpoint
    from harness.machine.description.spec import MachineSpec
    from harness.provisioning.wait import Deadline


RECIPE = """\
schema: 1
kind: build
description: A node
release: bookworm
archives: [{url: http://deb.debian.org/debian, suites: [bookworm]}]
kernels: {pattern: linux-image-6, newest: 1}
packages: [systemd]
trees: [node/root]
"""


def files_in(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("content")
    return folder


@dataclass
class Clones:
    """A lab with a fake image and fake checkpoints, and the descriptions of its machines."""

    lab: Lab
    folder: Path
    described: list[MachineDescription] = field(default_factory=list)
    found: list[SavedState] = field(default_factory=list)
    is_held: bool = False

    def __post_init__(self) -> None:
        write_catalogue(self.folder / "catalogue", recipe=RECIPE)
        folder = files_in(
            self.lab.settings.image_store / "node-0",
            *(MANIFEST, STAMP, USED, "disk.qcow2", "vmlinuz", "initrd.img"),
        )
        self.image = Image(
            name="node",
            key="0" * 64,
            folder=folder,
            disk=folder / "disk.qcow2",
            kernels=(
                Kernel(version="6.1", vmlinuz=folder / "vmlinuz", initrd=folder / "initrd.img"),
            ),
            driver=None,
        )
        self.parent = self.a_checkpoint("booted", None)
        self.checkpoint = self.a_checkpoint("ready", self.parent)
        self.set(
            settings=replace(
                self.lab.settings, image="node", image_folders=(self.folder / "catalogue",)
            )
        )

    def a_checkpoint(self, name: str, parent: Checkpoint | None) -> Checkpoint:
        folder = files_in(
            self.lab.settings.checkpoint_store / name,
            *(MANIFEST, STAMP, USED, "ram", "state", "disk.qcow2"),
        )
        return a_checkpoint(folder, name=name, parent=parent)

    def set(self, **changes: Any) -> None:
        self.lab = replace(self.lab, **changes)
        self.lab.checkpoint_builder.ensure_checkpoint = self.ensure  # type: ignore[method-assign]

    def ensure(self, saved_state: SavedState) -> Checkpoint:
        assert saved_state == booted(self.image)
        return self.checkpoint

    def find(self) -> SavedState:
        self.found.append(booted(self.image))
        return self.found[-1]

    def clone(self) -> int:
        """Start a clone, and return how often the saved state has been looked up so far."""
        with (
            recent_clone(self.lab, "ready", self.find, name="shell"),
            lease.try_exclusive(self.checkpoint.folder / USED) as is_free,
        ):
            self.is_held = not is_free
        return len(self.found)

    @property
    def kept(self) -> Path:
        (file,) = (self.lab.settings.cache / "recent-clones").iterdir()
        return file


@pytest.fixture
def clones(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clones:
    clones = Clones(lab, tmp_path)

    @contextlib.contextmanager
    def running(_: Machines, description: MachineDescription) -> Iterator[object]:
        clones.described.append(description)
        yield object()

    monkeypatch.setattr(Machines, "running", running)
    return clones


def test_second_clone_starts_from_the_same_checkpoint_without_a_lookup(clones: Clones) -> None:
    assert [clones.clone() for _ in range(3)] == [1, 1, 1]

    first, second, _ = clones.described
    assert second.folder != first.folder
    assert (second.source, second.checkpoint) == (first.source, clones.checkpoint)
    assert (second.spec.name, second.spec.memory_mib) == ("shell", first.spec.memory_mib)


def test_image_remains_in_use_after_its_clone_ends_but_the_checkpoint_does_not(
    clones: Clones,
) -> None:
    clones.clone()
    clones.clone()

    assert clones.is_held
    for folder, expected in (
        (clones.checkpoint.folder, True),
        (clones.parent.folder, True),
        (clones.image.folder, False),
    ):
        with lease.try_exclusive(folder / USED) as is_free:
            assert is_free is expected


def test_saved_state_is_looked_up_again_if_its_checkpoint_changes_while_a_clone_waits_for_it(
    clones: Clones, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may replace the checkpoint while this run waits for it."""
    clones.clone()
    hold = CheckpointStore.hold

    def wait(store: CheckpointStore, checkpoint: Checkpoint, *, deadline: Deadline) -> Any:
        _append(checkpoint.ram)
        return hold(store, checkpoint, deadline=deadline)

    monkeypatch.setattr(CheckpointStore, "hold", wait)

    assert clones.clone() == 2


def test_saved_state_is_looked_up_again_if_a_file_of_the_harness_vanishes_meanwhile(
    clones: Clones, monkeypatch: pytest.MonkeyPatch
) -> None:
    clones.clone()

    def vanish(folder: str) -> Iterator[tuple[str, int]]:
        raise FileNotFoundError(folder)

    monkeypatch.setattr(recent_clones, "_files_below", vanish)

    assert clones.clone() == 2


def test_file_of_the_recent_clone_is_accessible_only_to_its_user(clones: Clones) -> None:
    clones.clone()

    assert clones.kept.stat().st_mode & 0o777 == 0o600
    assert clones.kept.parent.stat().st_mode & 0o777 == 0o700
    assert clones.kept.name == "ready-node"


@pytest.fixture(autouse=True)
def _small_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the harness's own files and recipes by a few, because each lookup checks all of them."""
    package = files_in(tmp_path / "small-harness", "__init__.py")
    monkeypatch.setattr(harness, "__file__", str(package / "__init__.py"))
    write_catalogue(tmp_path / "small-harness", recipe=RECIPE, name="shipped")
    monkeypatch.setattr(catalogue, "SHIPPED_IMAGES", package)


class OtherQemu(StuckDriver):
    """A driver with another version of QEMU."""

    @override
    def state_parts(self, spec: MachineSpec) -> Mapping[str, object]:
        return {**super().state_parts(spec), "qemu": "11.0"}


class OtherTransport(StuckDriver):
    """A driver that connects GPUs by another transport."""

    @override
    def transport(self, accelerator: object) -> Transport:
        del accelerator
        return Transport.VFIO_USER


def _append(path: Path) -> None:
    path.write_text(f"{path.read_text()}\n")


def _overwrite(path: Path) -> None:
    path.write_text(path.read_text().upper())


Change: TypeAlias = "Callable[[Clones], object]"

CHANGES: dict[str, dict[str, Change]] = {
    "recipes": {
        "recipe": lambda clones: _append(clones.folder / "catalogue/node.yaml"),
        "another recipe": lambda clones: (clones.folder / "catalogue/b.yaml").write_text(RECIPE),
        "tree": lambda clones: _append(clones.folder / "catalogue/node/root/etc/fstab"),
        "program bit of a tree's file": lambda clones: (
            clones.folder / "catalogue/node/root/etc/fstab"
        ).chmod(0o755),
        "file of a tree is gone": lambda clones: (
            clones.folder / "catalogue/node/root/usr/bin/tool"
        ).unlink(),
    },
    "lab": {
        "settings": lambda clones: clones.set(
            settings=replace(clones.lab.settings, timeout_multiplier=2.0)
        ),
        "agent": lambda clones: clones.set(agent_program=Payload(content=b"", digest="2" * 64)),
        "QEMU": lambda clones: clones.set(driver=OtherQemu()),
        "transport": lambda clones: clones.set(driver=OtherTransport()),
    },
    "image": {
        "disk": lambda clones: _append(clones.image.disk),
        "kernel": lambda clones: _append(clones.image.kernels[0].vmlinuz),
        "stamp": lambda clones: _append(clones.image.folder / STAMP),
        "manifest": lambda clones: _append(clones.image.folder / MANIFEST),
        "initrd is gone": lambda clones: clones.image.kernels[0].initrd.unlink(),
    },
    "checkpoint": {
        "memory": lambda clones: _append(clones.checkpoint.ram),
        "memory, of the same size": lambda clones: _overwrite(clones.checkpoint.ram),
        "devices": lambda clones: _append(clones.checkpoint.state),
        "disk": lambda clones: _append(clones.checkpoint.disk),
        "manifest": lambda clones: _append(clones.checkpoint.folder / MANIFEST),
        "stamp": lambda clones: _append(clones.checkpoint.folder / STAMP),
        "disk of the parent": lambda clones: _append(clones.parent.disk),
        "lock file is gone": lambda clones: (clones.parent.folder / USED).unlink(),
    },
    "parent is gone": {
        "folder": lambda clones: clones.parent.folder.rename(clones.folder / "gone"),
    },
    "what is kept": {
        "cut": lambda clones: clones.kept.write_bytes(clones.kept.read_bytes()[:-1]),
        "empty": lambda clones: clones.kept.write_bytes(b""),
        # Unpickling the file of another user would run that user's code.
        "writable by the group": lambda clones: clones.kept.chmod(0o620),
        "writable by everybody": lambda clones: clones.kept.chmod(0o602),
        "a link": lambda clones: clones.kept.symlink_to(
            clones.kept.rename(clones.folder / "kept")
        ),
    },
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_saved_state_is_looked_up_again_after_a_change_of_any_of_its_inputs(
    clones: Clones, changes: dict[str, Change]
) -> None:
    lookups = clones.clone()

    for lookups, (name, change) in enumerate(changes.items(), 2):
        # Before the last change, a clone needs no lookup, so the change alone causes the next lookup.
        if lookups == len(changes) + 1:
            assert clones.clone() == lookups - 1
        change(clones)
        assert clones.clone() == lookups, name
        assert clones.described[-1].checkpoint == clones.checkpoint


def test_saved_state_is_looked_up_again_after_a_reboot_or_package_installation_or_harness_edit(
    clones: Clones, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = clones.folder / "site-packages"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    package = files_in(clones.folder / "harness", "__init__.py", "lab.py")
    monkeypatch.setattr(harness, "__file__", str(package / "__init__.py"))
    clones.clone()
    # Byte code that Python writes is not a change of the harness.
    files_in(package / "__pycache__", "lab.cpython-311.pyc")
    assert clones.clone() == 1

    _append(package / "lab.py")
    assert [clones.clone(), clones.clone()] == [2, 2]
    (site / "package").mkdir()
    assert [clones.clone(), clones.clone()] == [3, 3]
    (clones.folder / "boot_id").write_text("another")
    monkeypatch.setattr(recent_clones, "BOOT_ID", clones.folder / "boot_id")
    assert clones.clone() == 4


def test_image_that_a_provisioner_made_is_looked_up_for_each_clone(clones: Clones) -> None:
    clones.image = replace(clones.image, parent=clones.image)

    assert [clones.clone(), clones.clone()] == [1, 2]


def test_recipe_that_extends_a_path_is_read_for_each_clone(clones: Clones) -> None:
    write_catalogue(clones.folder / "elsewhere", recipe=RECIPE, name="base")
    recipe = clones.folder / "catalogue/node.yaml"
    recipe.write_text(
        "schema: 1\nkind: build\ndescription: A node\nextends: ../elsewhere/base.yaml\n"
    )

    assert [clones.clone(), clones.clone()] == [1, 2]


def test_recipe_that_extends_a_catalogue_name_is_read_once(clones: Clones) -> None:
    write_catalogue(clones.folder / "catalogue", recipe=RECIPE, name="base")
    recipe = clones.folder / "catalogue/node.yaml"
    recipe.write_text("schema: 1\nkind: build\ndescription: A node\nextends: base\n")
    assert [clones.clone(), clones.clone()] == [1, 1]

    _append(clones.folder / "catalogue/base.yaml")

    assert clones.clone() == 2


def test_cloud_image_is_looked_up_for_each_clone(clones: Clones) -> None:
    (clones.folder / "disk.qcow2").write_bytes(b"QFI\xfb")
    clones.set(settings=replace(clones.lab.settings, image=str(clones.folder / "disk.qcow2")))

    assert [clones.clone(), clones.clone()] == [1, 2]


def test_recent_clone_is_reused_if_several_images_are_configured(clones: Clones) -> None:
    clones.set(settings=replace(clones.lab.settings, image=f"node,{TESTED_IMAGES}"))

    assert [clones.clone(), clones.clone()] == [1, 1]


def test_unwritable_folder_of_recent_clones_is_ignored(clones: Clones) -> None:
    (clones.lab.settings.cache / "recent-clones").write_text("a file")

    assert [clones.clone(), clones.clone()] == [1, 2]


def test_error_inside_the_clone_is_raised_to_the_caller_without_a_new_lookup(
    clones: Clones,
) -> None:
    clones.clone()

    with pytest.raises(KeyError), recent_clone(clones.lab, "ready", clones.find, name="shell"):
        raise KeyError

    assert cast("Any", clones.found) == [booted(clones.image)]
