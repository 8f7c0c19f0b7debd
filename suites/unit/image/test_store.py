"""The cache of images: built once, published whole, refused when damaged."""

from __future__ import annotations

import datetime as dt
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError, RequirementError
from harness.image import Image, ImageEvent, Stage
from harness.image.build import BuiltDisk
from harness.image.catalogue import LicenceError
from harness.image.store import ImageStore
from harness.provisioning.command import CommandResult
from harness.provisioning.wait import Deadline
from suites.unit.image.cataloguefolder import LICENSED, a_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.image import ImageListener
    from harness.image.catalogue import Recipe

KERNELS = ("6.1.0-55-cloud-amd64", "6.1.0-56-cloud-amd64")


class FakeBuilder:
    """Leaves a disk and kernels; `meanwhile` is what happens in the middle of a build."""

    version = "fake-1"

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.builds = 0
        self.cleaned: list[str] = []
        self._meanwhile = meanwhile

    def build(
        self,
        recipe: Recipe,
        *,
        into: Path,
        work: Path,
        log: Path,
        listener: ImageListener,
        deadline: Deadline,
    ) -> BuiltDisk:
        assert not deadline.has_passed()
        assert work.is_dir()
        assert log.read_text() == ""
        self.builds += 1
        listener(ImageEvent(image=recipe.name, stage=Stage.BUILD, message="building"))
        for kernel in KERNELS:
            (into / "kernels" / kernel).mkdir(parents=True)
            (into / "kernels" / kernel / "vmlinuz").write_text(f"kernel {kernel}")
            (into / "kernels" / kernel / "initrd.img").write_text(f"initrd {kernel}")
        (into / "disk.qcow2").write_bytes(b"QFI\xfb build %d" % self.builds)
        self._meanwhile()
        return BuiltDisk(kernels=KERNELS, packages={"systemd": "252.1"})

    def clean(self, work: Path) -> None:
        self.cleaned.append(work.name)
        for path in sorted(work.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        work.rmdir()


class FakeQemuImg:
    """Makes overlays, or fails with `error`."""

    def __init__(self, error: str | None = None) -> None:
        self.backing: list[str] = []
        self.sizes: list[str] = []
        self._error = error

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert argv[:3] == ["qemu-img", "create", "-q"]
        assert timeout_s > 0
        assert stdin is None
        assert env is None
        backing, path, *size = argv[argv.index("-b") + 1 :]
        at = Path(path)
        if self._error is None:
            self.backing.append(backing)
            self.sizes += size
            at.write_bytes(b"QFI\xfb overlay")
        return CommandResult(
            argv=tuple(argv),
            exit_code=0 if self._error is None else 1,
            stdout="",
            stderr=self._error or "",
        )


class ClockThat:
    """A clock on which nothing takes time but sleeping, during which `happens` happens."""

    def __init__(self, happens: Callable[[], None] = lambda: None) -> None:
        self._elapsed_s = 0.0
        self._happens = happens

    def monotonic(self) -> float:
        return self._elapsed_s

    def now(self) -> dt.datetime:
        return dt.datetime(2026, 8, 21, tzinfo=dt.timezone.utc)

    def sleep(self, seconds: float) -> None:
        self._elapsed_s += seconds
        self._happens()


class Cache:
    """A store in a temporary folder, and what it said."""

    def __init__(self, top: Path, builder: FakeBuilder | None = None) -> None:
        self.folder = top / "images"
        self.recipe = a_recipe(top / "catalogue")
        self.builder = builder or FakeBuilder()
        self.qemu_img = FakeQemuImg()
        self.events: list[ImageEvent] = []
        self.store = ImageStore(self.folder, builder=self.builder, runner=self.qemu_img)

    def ensure(self, deadline: Deadline | None = None) -> Image:
        return self.store.ensure(
            self.recipe, deadline=deadline or Deadline.after(60), listener=self.events.append
        )

    def derive(
        self, parent: Image, make: Callable[[Path], None], *, payload: str = "one"
    ) -> Image:
        return self.store.ensure_derived(
            parent,
            {"payload": payload},
            make,
            deadline=Deadline.after(60),
            listener=self.events.append,
        )

    def said(self, stage: Stage) -> list[str]:
        return [event.message for event in self.events if event.stage is stage]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_image_is_built_once(cache: Cache) -> None:
    first = cache.ensure()
    second = cache.ensure()

    assert first == second
    assert cache.builder.builds == 1
    assert first.disk.read_bytes() == b"QFI\xfb build 1"


def test_image_names_its_kernels_from_old_to_new(cache: Cache) -> None:
    image = cache.ensure()

    assert [kernel.version for kernel in image.kernels] == list(KERNELS)
    assert image.newest_kernel.vmlinuz.read_text() == "kernel 6.1.0-56-cloud-amd64"
    assert image.other_kernel.initrd.read_text() == "initrd 6.1.0-55-cloud-amd64"
    assert image.driver is not None
    assert image.driver.tag == "580.126.09-20260801000000"


def test_changed_recipe_gets_its_own_image(cache: Cache, tmp_path: Path) -> None:
    first = cache.ensure()
    (tmp_path / "catalogue/node/root/etc/fstab").write_text("/dev/vdb / ext4\n")

    second = cache.ensure()

    assert first.folder != second.folder
    assert first.disk.exists()
    assert cache.builder.builds == 2


def test_nothing_but_the_image_and_the_log_remains(cache: Cache) -> None:
    image = cache.ensure()

    assert cache.builder.cleaned == [image.folder.name]
    assert list((cache.folder / ".work").iterdir()) == []
    assert not list((cache.folder / ".locks").glob("*.holder"))
    assert {path.name for path in (cache.folder / ".logs").iterdir()} == {
        f"{image.folder.name}.log"
    }


def _truncate(image: Image) -> None:
    os.truncate(image.disk, 5)


def _flip_a_byte(image: Image) -> None:
    content = image.disk.read_bytes()
    image.disk.write_bytes(content[:-1] + b"X")


def _lose_an_initrd(image: Image) -> None:
    image.newest_kernel.initrd.unlink()


def _lose_the_manifest(image: Image) -> None:
    (image.folder / "manifest.json").unlink()


def _cut_the_manifest(image: Image) -> None:
    os.truncate(image.folder / "manifest.json", 40)


@pytest.mark.parametrize(
    "damage",
    [_truncate, _flip_a_byte, _lose_an_initrd, _lose_the_manifest, _cut_the_manifest],
)
def test_damaged_image_is_refused_and_built_again(
    cache: Cache, damage: Callable[[Image], None]
) -> None:
    damage(cache.ensure())

    image = cache.ensure()

    assert image.disk.read_bytes() == b"QFI\xfb build 2"
    (sentence,) = cache.said(Stage.REFUSED)
    assert str(image.folder) in sentence
    assert sentence.endswith("It is made again.")


def test_image_under_a_foreign_name_is_refused(cache: Cache) -> None:
    image = cache.ensure()
    manifest = image.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(image.key, "f" * 64))

    cache.ensure()

    assert cache.builder.builds == 2
    assert "says that its key is 'ffffffffffffffff'" in cache.said(Stage.REFUSED)[0]


def test_verification_refuses_what_changed_after_publication(cache: Cache) -> None:
    image = cache.ensure()
    cache.store.verify(image)

    _flip_a_byte(image)

    with pytest.raises(HarnessError, match="has the digest"):
        cache.store.verify(image)


def test_failed_build_publishes_nothing_and_the_next_one_may_succeed(tmp_path: Path) -> None:
    def fail() -> None:
        raise RequirementError("No space.")

    broken = Cache(tmp_path, FakeBuilder(fail))
    with pytest.raises(RequirementError, match=r"No space\."):
        broken.ensure()
    assert not list(broken.folder.glob("node-*"))

    assert Cache(tmp_path).ensure().disk.exists()


def test_leavings_of_a_killed_build_are_cleaned_first(cache: Cache) -> None:
    image = cache.ensure()
    killed = cache.folder / ".work" / image.folder.name / "content"
    killed.mkdir(parents=True)
    (killed / "disk.qcow2").write_bytes(b"half")
    _truncate(image)

    cache.ensure()

    name = image.folder.name
    assert cache.builder.cleaned == [name, name, name]


def test_waiting_process_says_for_whom_and_gives_up_at_its_deadline(tmp_path: Path) -> None:
    waiting = Cache(tmp_path)

    def try_meanwhile() -> None:
        with pytest.raises(
            HarnessError, match=r"Waited \d+\.\d s for the image 'node'; last seen"
        ):
            waiting.ensure(Deadline.after(3, ClockThat()))

    Cache(tmp_path, FakeBuilder(try_meanwhile)).ensure()

    assert waiting.builder.builds == 0
    (sentence,) = waiting.said(Stage.WAIT)
    assert sentence.startswith(f"waiting for process {os.getpid()} (since 2")


def test_waiting_process_takes_what_the_other_one_built(tmp_path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert may_end.wait(10)

    building = Cache(tmp_path, FakeBuilder(hold))
    waiting = Cache(tmp_path)
    thread = threading.Thread(target=building.ensure)

    def let_the_other_end() -> None:
        may_end.set()
        thread.join(10)

    thread.start()
    assert begun.wait(10)
    image = waiting.ensure(Deadline.after(60, ClockThat(let_the_other_end)))

    assert image.disk.read_bytes() == b"QFI\xfb build 1"
    assert waiting.builder.builds == 0


def test_cache_that_cannot_be_written_is_told_with_the_remedy(tmp_path: Path) -> None:
    recipe = a_recipe(tmp_path / "catalogue")
    (tmp_path / "file").write_text("not a folder")
    store = ImageStore(tmp_path / "file" / "images", builder=FakeBuilder())

    with pytest.raises(RequirementError, match="choose a folder of your own"):
        store.ensure(recipe, deadline=Deadline.after(60))


def test_overlay_lies_on_the_real_path_of_its_backing_file(cache: Cache, tmp_path: Path) -> None:
    image = cache.ensure()
    (tmp_path / "link").symlink_to(image.disk)

    cache.store.create_overlay(tmp_path / "link", tmp_path / "overlay.qcow2")

    assert cache.qemu_img.backing == [str(image.disk)]


def test_overlay_may_be_larger_than_its_backing_file(cache: Cache, tmp_path: Path) -> None:
    image = cache.ensure()
    cache.store.create_overlay(image.disk, tmp_path / "plain.qcow2")

    cache.store.create_overlay(image.disk, tmp_path / "large.qcow2", size_gib=20)
    cache.store.create_overlay(image.disk, tmp_path / "plain again.qcow2")

    assert cache.qemu_img.backing == [str(image.disk)] * 2
    assert cache.qemu_img.sizes == ["20G"]


def test_failed_overlay_shows_the_command(cache: Cache, tmp_path: Path) -> None:
    store = ImageStore(cache.folder, builder=cache.builder, runner=FakeQemuImg("no such file"))

    with pytest.raises(HarnessError, match=r"(?s)Could not make an overlay.*no such file"):
        store.create_overlay(tmp_path / "disk.qcow2", tmp_path / "overlay.qcow2")


def test_derived_image_is_made_once_from_an_overlay_on_its_parent(cache: Cache) -> None:
    parent = cache.ensure()
    made: list[Path] = []

    def bake(disk: Path) -> None:
        made.append(disk)
        disk.write_bytes(disk.read_bytes() + b" baked")

    derived = cache.derive(parent, bake)
    again = cache.derive(parent, bake)

    assert derived == again
    assert len(made) == 1
    assert cache.qemu_img.backing == [str(parent.disk)]
    assert derived.disk.read_bytes() == b"QFI\xfb overlay baked"
    assert derived.parent == parent
    assert derived.kernels == parent.kernels
    assert derived.driver == parent.driver


def test_derived_image_is_made_again_for_another_payload(cache: Cache) -> None:
    parent = cache.ensure()

    first = cache.derive(parent, lambda _disk: None, payload="one")
    second = cache.derive(parent, lambda _disk: None, payload="two")

    assert first.key != second.key


def test_image_can_be_derived_from_a_derived_one(cache: Cache) -> None:
    parent = cache.ensure()
    child = cache.derive(parent, lambda _disk: None)

    grandchild = cache.derive(child, lambda _disk: None)

    assert cache.qemu_img.backing == [str(parent.disk), str(child.disk)]
    assert grandchild.parent == child
    assert grandchild.kernels == parent.kernels


def test_failed_bake_publishes_nothing(cache: Cache) -> None:
    parent = cache.ensure()

    def fail(_disk: Path) -> None:
        raise HarnessError("The bake failed.")

    with pytest.raises(HarnessError, match=r"The bake failed\."):
        cache.derive(parent, fail)

    assert list(cache.folder.glob("node-*")) == [parent.folder]


def test_damaged_parent_is_never_booted_through_its_child(cache: Cache) -> None:
    parent = cache.ensure()
    child = cache.derive(parent, lambda _disk: None)
    _truncate(parent)

    with pytest.raises(HarnessError, match="has 5 bytes"):
        cache.store.verify(child)


def test_child_of_a_parent_that_was_built_again_is_refused(cache: Cache) -> None:
    parent = cache.ensure()
    child = cache.derive(parent, lambda _disk: None)
    _truncate(parent)
    rebuilt = cache.ensure()
    assert rebuilt.folder == parent.folder

    with pytest.raises(HarnessError, match="that image was built again"):
        cache.store.verify(child)
    assert cache.derive(rebuilt, lambda _disk: None).folder != child.folder


def test_licence_that_nobody_accepted_stops_the_build(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.recipe = a_recipe(tmp_path / "licensed", recipe=LICENSED)

    with pytest.raises(LicenceError) as refusal:
        cache.ensure()

    assert cache.builder.builds == 0
    assert str(refusal.value) == (
        "The image 'node' holds software under the licence 'vendor-terms', which was not accepted. "
        "Read it at https://example.org/terms; whoever accepts it passes "
        "'--accept-licence=vendor-terms', or sets HARNESS_ACCEPT_LICENCE=vendor-terms in the "
        "environment."
    )


def test_licence_is_asked_for_at_a_cached_image_too(tmp_path: Path) -> None:
    """Who finds the image in a shared cache has accepted nothing yet."""
    recipe = a_recipe(tmp_path / "licensed", recipe=LICENSED)
    builder = FakeBuilder()
    accepting = ImageStore(
        tmp_path / "images", builder=builder, accepted_licences={"vendor-terms"}
    )

    accepting.ensure(recipe, deadline=Deadline.after(60))

    assert builder.builds == 1
    with pytest.raises(LicenceError):
        ImageStore(tmp_path / "images", builder=builder, accepted_licences={"other"}).ensure(
            recipe, deadline=Deadline.after(60)
        )
