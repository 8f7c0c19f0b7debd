"""The cache of images: an image is built once, published as a whole, and refused if damaged."""

from __future__ import annotations

import datetime as dt
import os
import threading
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from harness.errors import HarnessError, RequirementError
from harness.image import CloudImageKernel, ImageDamagedError
from harness.image.catalogue import LicenceError
from harness.image.store import BuildTime, ImageStore, Prepared
from harness.progress import Stage
from harness.provisioning.wait import Deadline
from harness.settings import LicenceId
from suites.fakes.clock import FakeClock
from suites.unit.image.cataloguefolder import LICENSED, a_recipe
from suites.unit.image.fake_store import KERNELS, Cache, FakeBuilder, FakeQemuImg

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.image import Image
    from harness.image.catalogue import Recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return a_recipe(tmp_path_factory.mktemp("catalogue"))


@pytest.fixture
def cache(tmp_path: Path, recipe: Recipe) -> Cache:
    return Cache(tmp_path, recipe=recipe)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    disk = tmp_path / "disk.qcow2"
    disk.write_bytes(b"QFI\xfb")
    return disk


def test_image_is_built_once(cache: Cache) -> None:
    image = cache.ensure()

    assert cache.ensure() == image
    assert cache.builder.builds == 1
    assert image.disk.read_bytes() == b"QFI\xfb build 1"
    # The kernels of an image are sorted from old to new.
    assert [kernel.version for kernel in image.kernels] == list(KERNELS)
    assert image.newest_kernel.vmlinuz.read_text() == "kernel 6.1.0-56-cloud-amd64"
    assert image.other_kernel.initrd.read_text() == "initrd 6.1.0-55-cloud-amd64"
    assert image.driver is not None
    assert image.driver.tag == "580.126.09-20260801000000"


def test_recipe_change_builds_a_new_image_and_keeps_the_old_image(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = cache.ensure()
    (tmp_path / "catalogue/node/root/etc/fstab").write_text("/dev/vdb / ext4\n")

    second = cache.ensure()

    assert first.folder != second.folder
    assert first.disk.exists()
    assert cache.builder.builds == 2


def test_only_the_image_and_its_log_remain_after_a_build(cache: Cache) -> None:
    image = cache.ensure()

    assert cache.builder.cleaned == [image.folder.name]
    assert list((cache.folder / ".work").iterdir()) == []
    assert not list((cache.folder / ".locks").glob("*.holder"))
    assert {path.name for path in (cache.folder / ".logs").iterdir()} == {
        f"{image.folder.name}.log"
    }


def _flip_a_byte(image: Image) -> None:
    content = image.disk.read_bytes()
    image.disk.write_bytes(content[:-1] + b"X")


def _cut_the_manifest(image: Image) -> None:
    os.truncate(image.folder / "manifest.json", 40)


@pytest.mark.parametrize("damage", [_flip_a_byte, _cut_the_manifest])
def test_damaged_image_is_refused_and_built_again(
    cache: Cache, damage: Callable[[Image], None]
) -> None:
    damage(cache.ensure())

    image = cache.ensure()

    assert image.disk.read_bytes() == b"QFI\xfb build 2"
    (sentence,) = cache.said(Stage.REFUSED)
    assert str(image.folder) in sentence
    assert sentence.endswith("The damaged image is made again.")


def test_failed_build_publishes_nothing_and_the_next_build_may_succeed(
    tmp_path: Path, recipe: Recipe
) -> None:
    def fail() -> None:
        raise RequirementError("No space.")

    broken = Cache(tmp_path, FakeBuilder(fail), recipe)
    with pytest.raises(RequirementError, match=r"No space\."):
        broken.ensure()
    assert not list(broken.folder.glob("node-*"))

    assert Cache(tmp_path, recipe=recipe).ensure().disk.exists()


def test_waiting_process_reports_the_building_process_and_gives_up_at_its_deadline(
    tmp_path: Path, recipe: Recipe
) -> None:
    waiting = Cache(tmp_path, recipe=recipe)

    def try_meanwhile() -> None:
        with pytest.raises(
            HarnessError, match=r"Waited \d+\.\d s for the image 'node'; last seen"
        ):
            waiting.ensure(Deadline.after(3, FakeClock()))

    Cache(tmp_path, FakeBuilder(try_meanwhile), recipe).ensure()

    assert waiting.builder.builds == 0
    (sentence,) = waiting.said(Stage.WAIT)
    assert sentence.startswith(f"waiting for process {os.getpid()} (since 2")


def test_waiting_process_uses_the_image_that_another_process_built(
    tmp_path: Path, recipe: Recipe
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert may_end.wait(10)

    building = Cache(tmp_path, FakeBuilder(hold), recipe)
    waiting = Cache(tmp_path, recipe=recipe)
    thread = threading.Thread(target=building.ensure)

    def let_the_other_end() -> None:
        may_end.set()
        thread.join(10)

    thread.start()
    assert begun.wait(10)
    image = waiting.ensure(Deadline.after(60, FakeClock(on_sleep=let_the_other_end)))

    assert image.disk.read_bytes() == b"QFI\xfb build 1"
    assert waiting.builder.builds == 0


def test_unwritable_cache_is_reported_with_a_remedy(tmp_path: Path, recipe: Recipe) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = ImageStore(tmp_path / "file" / "images", builder=FakeBuilder())

    with pytest.raises(RequirementError, match="set XDG_CACHE_HOME to a writable folder"):
        store.ensure(recipe, deadline=Deadline.after(60))


def test_overlay_refers_to_its_backing_file_by_the_real_path_and_may_be_larger(
    cache: Cache, disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(disk)

    cache.store.create_overlay(tmp_path / "link", tmp_path / "plain.qcow2")
    assert cache.qemu_img.backing == [str(disk)]

    cache.store.create_overlay(disk, tmp_path / "large.qcow2", size_gib=20)
    cache.store.create_overlay(disk, tmp_path / "plain again.qcow2")

    assert cache.qemu_img.backing == [str(disk)] * 2
    assert cache.qemu_img.sizes == ["20G"]


def test_later_run_copies_the_overlay_of_an_earlier_run(
    cache: Cache, disk: Path, tmp_path: Path
) -> None:
    cache.store.create_overlay(disk, tmp_path / "first.qcow2")
    later = ImageStore(cache.folder, builder=cache.builder, runner=FakeQemuImg("not called"))

    later.create_overlay(disk, tmp_path / "second.qcow2")

    assert (tmp_path / "second.qcow2").read_bytes() == (tmp_path / "first.qcow2").read_bytes()


def _make_longer(disk: Path) -> None:
    disk.write_bytes(disk.read_bytes() + b" of another size")


def _change_in_place(disk: Path) -> None:
    os.utime(disk, (1, 1))


def _put_another_in_its_place(disk: Path) -> None:
    new = disk.with_name("new.qcow2")
    new.write_bytes(disk.read_bytes())
    os.utime(new, ns=(1, disk.stat().st_mtime_ns))
    new.rename(disk)


def test_overlay_on_a_replaced_disk_is_made_again(
    cache: Cache, disk: Path, tmp_path: Path
) -> None:
    cache.store.create_overlay(disk, tmp_path / "first.qcow2")
    changes = (_make_longer, _change_in_place, _put_another_in_its_place)
    for times, replace in enumerate(changes, start=2):
        replace(disk)

        cache.store.create_overlay(disk, tmp_path / f"{times}.qcow2")

        assert cache.qemu_img.backing == [str(disk)] * times


def test_kept_overlays_are_removed_with_unused_images(cache: Cache, tmp_path: Path) -> None:
    image = cache.ensure()
    cache.store.create_overlay(image.disk, tmp_path / "overlay.qcow2")

    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=2)
    (cache.folder / ".work/other").mkdir()
    with FileLock(cache.folder / ".locks/other.lock"):
        # The process that makes another image may be about to use the overlays.
        assert cache.store.cache.collect_unused(dt.timedelta(days=1), at=later) == []
    (cache.folder / ".work/other").rmdir()
    removed = cache.store.cache.collect_unused(dt.timedelta(days=1), at=later)

    assert [removal.path.suffix for removal in removed] == [".qcow2"]
    assert cache.store.cache.ls() != []


def test_error_for_a_failed_overlay_has_the_output_of_qemu_img(
    cache: Cache, tmp_path: Path
) -> None:
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


def test_kernel_installed_in_a_derived_image_is_the_newest_kernel_of_the_image(
    cache: Cache,
) -> None:
    """The new kernel replaces the parent's kernel of the same version; the parent's others stay."""
    parent = cache.ensure()
    versions = [kernel.version for kernel in parent.kernels]

    def install(disk: Path, *versions: str) -> None:
        for version in versions:
            folder = disk.parent / "kernels" / version
            folder.mkdir(parents=True)
            (folder / "vmlinuz").write_text("own")
            (folder / "initrd.img").write_text("own")

    new = cache.derive(parent, lambda disk: install(disk, "9.9-own"), payload="new")
    same = cache.derive(parent, lambda disk: install(disk, versions[0]), payload="same")

    two = cache.derive(parent, lambda disk: install(disk, "9.9-9", "9.9-10"), payload="two")

    assert [kernel.version for kernel in new.kernels] == [*versions, "9.9-own"]
    assert two.newest_kernel.vmlinuz == two.folder / "kernels/9.9-10/vmlinuz"
    assert new.kernels[:-1] == parent.kernels
    assert [kernel.version for kernel in same.kernels] == [*versions[1:], versions[0]]
    assert same.newest_kernel.vmlinuz == same.folder / "kernels" / versions[0] / "vmlinuz"
    # The kernel's files are verified like all other files of an image.
    new.newest_kernel.initrd.unlink()
    again = cache.derive(parent, lambda disk: install(disk, "9.9-own"), payload="new")
    assert again.newest_kernel.initrd.read_text() == "own"


def test_image_can_be_derived_from_a_derived_image(cache: Cache) -> None:
    parent = cache.ensure()
    child = cache.derive(parent, lambda _disk: None)

    grandchild = cache.derive(child, lambda _disk: None)

    assert cache.qemu_img.backing == [str(parent.disk), str(child.disk)]
    assert grandchild.parent == child
    assert grandchild.kernels == parent.kernels


def test_image_is_not_derived_again_from_a_damaged_parent(cache: Cache) -> None:
    parent = cache.ensure()
    cache.derive(parent, lambda _disk: None)
    os.truncate(parent.disk, 5)

    with pytest.raises(HarnessError, match="has 5 bytes"):
        cache.derive(parent, lambda _disk: None)


def test_image_whose_parent_was_built_again_is_refused(cache: Cache) -> None:
    parent = cache.ensure()
    child = cache.derive(parent, lambda _disk: None)
    os.truncate(parent.disk, 5)
    rebuilt = cache.ensure()
    assert rebuilt.folder == parent.folder

    damages = {image.folder: image.damage for image in cache.store.cache.verify()}
    assert "was made again since" in (damages[child.folder] or "")
    assert damages[parent.folder] is None
    assert cache.derive(rebuilt, lambda _disk: None).folder != child.folder


def test_image_whose_licence_is_not_accepted_is_not_built(tmp_path: Path) -> None:
    cache = Cache(tmp_path, recipe=a_recipe(tmp_path / "licensed", recipe=LICENSED))

    with pytest.raises(LicenceError, match=r"https://example\.org/terms; .*=vendor-terms"):
        cache.ensure()

    assert cache.builder.builds == 0


def test_cached_image_whose_licence_is_not_accepted_is_refused(tmp_path: Path) -> None:
    """A user who finds the image in a shared cache has not accepted the licence yet."""
    recipe = a_recipe(tmp_path / "licensed", recipe=LICENSED)
    builder = FakeBuilder()
    accepting = ImageStore(
        tmp_path / "images", builder=builder, accepted_licences={LicenceId("vendor-terms")}
    )

    accepting.ensure(recipe, deadline=Deadline.after(60))

    assert builder.builds == 1
    with pytest.raises(LicenceError):
        ImageStore(
            tmp_path / "images", builder=builder, accepted_licences={LicenceId("other")}
        ).ensure(recipe, deadline=Deadline.after(60))


def _prepare(cache: Cache, digest: str, *, is_raw: bool = False) -> Image:
    kernels = []
    for version in ("6.8.0-31-generic", "6.8.0-40-generic"):
        folder = cache.folder.parent / version
        folder.mkdir(exist_ok=True)
        for name in ("vmlinuz", "initrd.img"):
            (folder / name).write_text(f"{name} {version}")
        kernels.append(
            CloudImageKernel(
                version=version,
                vmlinuz=folder / "vmlinuz",
                initrd=folder / "initrd.img",
                command_line=("root=LABEL=cloudimg-rootfs", f"of={version}"),
            )
        )

    def make(disk: Path) -> Prepared:
        disk.write_bytes(b"raw" if is_raw else b"QFI\xfb prepared")
        return Prepared(kernels=kernels, driver=None)

    return cache.store.ensure_prepared(
        "noble", {"cloud_image": digest}, make, deadline=Deadline.after(60)
    )


def test_node_image_of_a_cloud_image_has_the_kernels_and_command_lines_of_the_cloud_image(
    cache: Cache,
) -> None:
    image = _prepare(cache, "sha256:12")
    again, other = _prepare(cache, "sha256:12"), _prepare(cache, "sha256:34")

    assert again == image
    assert other.folder != image.folder
    for version, kernel in zip(
        ("6.8.0-31-generic", "6.8.0-40-generic"), image.kernels, strict=True
    ):
        assert isinstance(kernel, CloudImageKernel)
        assert kernel.version == version
        assert kernel.command_line == ("root=LABEL=cloudimg-rootfs", f"of={version}")
        for name, file in (("vmlinuz", kernel.vmlinuz), ("initrd.img", kernel.initrd)):
            assert file.read_text() == f"{name} {version}"
            assert file.is_relative_to(image.folder)
    # An image that is derived from this node image has the same kernels.
    assert cache.derive(image, lambda _disk: None).kernels == image.kernels


def test_prepared_disk_that_is_not_qcow2_is_refused_as_damaged(cache: Cache) -> None:
    with pytest.raises(ImageDamagedError, match="is not a qcow2"):
        _prepare(cache, "sha256:12", is_raw=True)


def test_build_times_are_read_from_the_logs_of_earlier_runs(cache: Cache) -> None:
    parent = cache.ensure()
    cache.derive(parent, lambda _disk: None)
    log = cache.folder / ".logs" / f"{parent.folder.name}.log"
    log.write_text("I: installing\nmade in 104 s\n")
    os.utime(log, (1000, 1000))
    (cache.folder / ".logs/failed-0123456789abcdef.log").write_text("made in 3 s\nE: no space\n")

    first, second = ImageStore(cache.folder, builder=cache.builder).build_times()

    assert first == BuildTime(name=parent.name, is_derived=False, seconds=104.0)
    assert (second.name, second.is_derived) == (parent.name, True)
