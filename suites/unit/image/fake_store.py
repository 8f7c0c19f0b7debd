"""An image store with a fake builder and a fake qemu-img."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.image.build.builder import BuiltDisk
from harness.image.store import ImageStore
from harness.progress import ProgressEvent, Stage
from harness.provisioning.command import CommandResult
from harness.provisioning.wait import Deadline
from suites.unit.image.cataloguefolder import a_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.image import Image
    from harness.image.catalogue import Recipe
    from harness.progress import ProgressListener

KERNELS = ("6.1.0-55-cloud-amd64", "6.1.0-56-cloud-amd64")


class FakeBuilder:
    """Makes a disk and kernels; `meanwhile` is called in the middle of a build."""

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
        listener: ProgressListener,
        deadline: Deadline,
    ) -> BuiltDisk:
        assert not deadline.has_passed()
        assert work.is_dir()
        assert log.read_text() == ""
        self.builds += 1
        listener(ProgressEvent(subject=recipe.name, stage=Stage.BUILD, message="building"))
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


class Cache:
    """A store in a temporary folder, and the progress that it reported."""

    def __init__(
        self, top: Path, builder: FakeBuilder | None = None, recipe: Recipe | None = None
    ) -> None:
        self.folder = top / "images"
        self.recipe = recipe or a_recipe(top / "catalogue")
        self.builder = builder or FakeBuilder()
        self.qemu_img = FakeQemuImg()
        self.events: list[ProgressEvent] = []
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
