"""Builds of images: which commands run, and which error follows if a command fails."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from harness.debian_packages import KEYRING
from harness.errors import RequirementError
from harness.image import ImageBuildError
from harness.image.build.builder import SPACE_MIB, BuiltDisk, MmdebstrapBuilder
from harness.image.build.commands import Privilege, input_entries, mmdebstrap_argv
from harness.image.catalogue import Archive
from harness.image.formats.kernel_versions import version_key
from harness.image.formats.oci import tar_of
from harness.provisioning.wait import Deadline, WaitTimeoutError
from suites.fakes.clock import FakeClock
from suites.unit.image.cataloguefolder import a_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.image.catalogue import Recipe
    from harness.progress import ProgressEvent

STATUS = """\
Package: systemd
Status: install ok installed
Version: 252.38-1~deb12u1
Description: system and service manager
 Package: not a field

Package: mawk
Status: deinstall ok config-files
Version: 1.3.4

Package: gawk
Status: install ok half-installed
Version: 5.2.1

Package: original-awk
Status: purge ok not-installed
"""


class ScriptedBuildCommands:
    """Makes the files that the builder's commands make; the command `failing` fails."""

    def __init__(
        self,
        *,
        kernels: Sequence[str] = ("6.1.0-9", "6.1.0-10"),
        failing: str | None = None,
        says: str = "",
        times_out: bool = False,
    ) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._kernels = kernels
        self._failing = failing
        self._says = says
        self._times_out = times_out

    @property
    def programs(self) -> list[str]:
        return [_program(argv) for argv in self.calls]

    def __call__(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        deadline: Deadline,
        on_line: Callable[[str], None],
    ) -> int:
        assert not deadline.has_passed()
        self.calls.append(tuple(argv))
        program = _program(argv)
        if program == self._failing:
            with log.open("a") as output:
                output.write(f"first line\n{self._says}\n")
            if self._times_out:
                raise WaitTimeoutError("Waited 900.0 s for it; last seen: 'Unpacking gcc'.")
            return 100
        match program:
            case "mmdebstrap":
                on_line("I: extracting archives...")
                on_line("I: running --customize-hook in shell: sh -c 'chroot'")
                on_line("Unpacking systemd")
                self._fill(Path(argv[-3]))
            case "mke2fs":
                Path(argv[-2]).write_bytes(b"raw")
            case "qemu-img":
                Path(argv[-1]).write_bytes(b"QFI\xfb")
            case "true" | "rm" | "find":
                pass
            case _:
                raise AssertionError(f"No answer was scripted for {argv}.")
        return 0

    def _fill(self, root: Path) -> None:
        (root / "var/lib/dpkg").mkdir(parents=True)
        (root / "var/lib/dpkg/status").write_text(STATUS)
        (root / "boot").mkdir()
        for version in self._kernels:
            (root / f"boot/vmlinuz-{version}").write_text(f"kernel {version}")
            (root / f"boot/initrd.img-{version}").write_text(f"initrd {version}")


def _program(argv: Sequence[str]) -> str:
    inner = list(argv[argv.index("--") + 1 :]) if argv[0] == "unshare" else list(argv)
    return inner[2] if inner[0] == "env" else inner[0]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return a_recipe(tmp_path / "catalogue")


class Attempt:
    """One build in a temporary folder."""

    def __init__(self, recipe: Recipe, top: Path) -> None:
        self.recipe = recipe
        self.into = top / "into"
        self.work = top / "work"
        self.log = top / "build.log"
        self.events: list[ProgressEvent] = []
        self.into.mkdir()
        self.work.mkdir()
        self.log.touch()
        self.keyring = top / "keyring.gpg"
        self.keyring.touch()

    def build(
        self,
        commands: ScriptedBuildCommands,
        *,
        privilege: Privilege = Privilege.ROOT,
        lacking: Sequence[str] = (),
        free: int = SPACE_MIB << 20,
        deadline: Deadline | None = None,
    ) -> BuiltDisk:
        builder = MmdebstrapBuilder(
            run=commands,
            privilege=privilege,
            find_program=lambda name: None if name in lacking else f"/usr/bin/{name}",
            free_bytes=lambda _path: free,
            keyring=self.keyring,
        )
        return builder.build(
            self.recipe,
            into=self.into,
            work=self.work,
            log=self.log,
            listener=self.events.append,
            deadline=deadline or Deadline.after(900),
        )


@pytest.fixture
def attempt(recipe: Recipe, tmp_path: Path) -> Attempt:
    return Attempt(recipe, tmp_path)


def test_build_leaves_a_disk_and_kernels(attempt: Attempt) -> None:
    built = attempt.build(ScriptedBuildCommands())

    assert built == BuiltDisk(
        kernels=("6.1.0-9", "6.1.0-10"), packages={"systemd": "252.38-1~deb12u1"}
    )
    left = {str(path.relative_to(attempt.into)) for path in attempt.into.rglob("*")}
    assert left == {
        "disk.qcow2",
        "kernels",
        *(f"kernels/{kernel}" for kernel in built.kernels),
        *(f"kernels/{kernel}/vmlinuz" for kernel in built.kernels),
        *(f"kernels/{kernel}/initrd.img" for kernel in built.kernels),
    }
    assert (attempt.into / "kernels/6.1.0-9/initrd.img").read_text() == "initrd 6.1.0-9"


def test_build_reports_only_its_steps_and_not_the_output_of_programs(attempt: Attempt) -> None:
    attempt.build(ScriptedBuildCommands())

    assert [event.message for event in attempt.events] == [
        f"building from 'http://deb.debian.org/debian', log in '{attempt.log}'",
        "extracting archives...",
        "1 packages, kernels 6.1.0-9, 6.1.0-10; writing the disk",
    ]


@pytest.mark.parametrize("privilege", Privilege)
def test_programs_that_touch_the_root_folder_run_in_namespaces(
    attempt: Attempt, privilege: Privilege
) -> None:
    commands = ScriptedBuildCommands()

    attempt.build(commands, privilege=privilege)

    assert commands.programs == ["true", "mmdebstrap", "mke2fs", "rm", "qemu-img", "rm"]
    for argv, program in zip(commands.calls, commands.programs, strict=True):
        namespaces = argv[: argv.index("--")] if "--" in argv else ()
        assert ("--kill-child" in namespaces) == (program != "qemu-img")
        assert ("--map-auto" in namespaces) == (
            program != "qemu-img" and privilege is Privilege.USER
        )


def test_mmdebstrap_gets_the_packages_and_the_archives_and_the_hooks_in_order(
    recipe: Recipe,
) -> None:
    argv = mmdebstrap_argv(
        recipe, Privilege.ROOT, root=Path("/build/root"), inputs=Path("/bui ld/inputs.tar")
    )

    hooks = [word.partition("=")[2] for word in argv if word.startswith("--customize-hook=")]
    workshop = "/usr/src/image-build"
    pattern = r"linux-image-6\.1\.0-[0-9]+-cloud-amd64"
    driver = "GPU_DRIVER_REPOSITORY=mcr.microsoft.com/aks/aks-gpu-cuda-lts"
    version = "GPU_DRIVER_VERSION=580.126.09 GPU_IMAGE_SHA=20260801000000"
    assert hooks == [
        "tar-in '/bui ld/inputs.tar' /",
        f"chroot \"$1\" env sh {workshop}/install-kernels.sh '{pattern}' 2",
        f'chroot "$1" env {driver} {version} sh {workshop}/node/scripts/setup.sh',
        f'chroot "$1" env sh {workshop}/finish.sh',
    ]
    assert "--include=systemd,containerd" in argv
    # On Ubuntu without `gpg`, mmdebstrap does not find the keys by itself.
    assert f"--keyring={KEYRING}" in argv
    assert "--dpkgopt=path-exclude=/usr/share/man/*" in argv
    assert argv[-4:] == (
        "bookworm",
        "/build/root",
        "deb http://deb.debian.org/debian bookworm main",
        "deb http://deb.debian.org/debian bookworm-updates main",
    )


def test_mmdebstrap_excludes_paths_and_accepts_expired_release_files_only_of_snapshots(
    recipe: Recipe,
) -> None:
    snapshot = "http://snapshot.debian.org/archive/debian/20260801T000000Z"
    urls = (snapshot, f"{snapshot}/", "https://example.org/debian", "file:///srv/20260801/debian")
    archives = tuple(Archive(url=url, suites=("bookworm",)) for url in urls)
    exclude = ("/usr/share/doc/*", "/a")
    recipe = replace(recipe, file=replace(recipe.file, archives=archives, exclude=exclude))

    argv = mmdebstrap_argv(recipe, Privilege.USER, root=Path("/root"), inputs=Path("/inputs"))

    assert argv[-4:] == (
        f"deb [check-valid-until=no] {snapshot} bookworm main",
        f"deb [check-valid-until=no] {snapshot}/ bookworm main",
        "deb https://example.org/debian bookworm main",
        "deb file:///srv/20260801/debian bookworm main",
    )
    assert not any("Valid-Until" in word for word in argv)
    assert [word.rpartition("=")[2] for word in argv if "path-exclude" in word] == [*exclude]


def test_build_inputs_are_at_the_paths_that_the_node_and_the_build_scripts_expect(
    recipe: Recipe,
) -> None:
    with tarfile.open(fileobj=io.BytesIO(tar_of(input_entries(recipe)))) as archive:
        modes = {info.name: info.mode for info in archive}

    assert modes["etc/fstab"] == 0o644
    assert modes["usr/bin/tool"] == 0o755
    assert "usr/src/image-build/node/scripts/beside.txt" in modes
    assert "usr/src/image-build/install-kernels.sh" in modes
    assert "usr/src/image-build/oci.py" in modes


def test_error_for_missing_archive_keys_of_debian_has_the_remedy(attempt: Attempt) -> None:
    """Ubuntu installs mmdebstrap without these keys, and apt then refuses each archive."""
    attempt.keyring.unlink()
    commands = ScriptedBuildCommands()

    with pytest.raises(RequirementError, match=r"--no-install-recommends debian-archive-keyring'"):
        attempt.build(commands)

    assert commands.programs == []


def test_error_for_missing_programs_mentions_the_packages_to_install(attempt: Attempt) -> None:
    commands = ScriptedBuildCommands()

    with pytest.raises(RequirementError, match="--no-install-recommends mmdebstrap qemu-utils'"):
        attempt.build(commands, lacking=["mmdebstrap", "qemu-img"])

    assert commands.calls == []


def test_too_little_space_is_reported_before_the_build_starts(attempt: Attempt) -> None:
    commands = ScriptedBuildCommands()

    with pytest.raises(
        RequirementError, match=r"needs 4096 MiB of free space .* but 1024 MiB are free"
    ):
        attempt.build(commands, free=1 << 30)

    assert commands.calls == []


@pytest.mark.parametrize("says", ["No space left on device", "Disk quota exceeded"])
def test_disk_that_fills_up_during_the_build_is_reported(attempt: Attempt, says: str) -> None:
    commands = ScriptedBuildCommands(failing="mke2fs", says=f"write: {says}\nmke2fs: failed")

    with pytest.raises(RequirementError, match="free some space, or set XDG_CACHE_HOME"):
        attempt.build(commands)


def test_error_of_a_failed_build_has_the_end_and_the_path_of_its_log(attempt: Attempt) -> None:
    commands = ScriptedBuildCommands(failing="mmdebstrap", says="E: Unable to locate package x")

    with pytest.raises(ImageBuildError) as failure:
        attempt.build(commands)

    message = str(failure.value)
    assert message.startswith("Building the image 'node' failed while installing its packages: ")
    assert "ended with exit code 100" in message
    assert f"The whole log is in '{attempt.log}'" in message
    assert message.endswith("first line\nE: Unable to locate package x")


def test_error_of_a_build_beyond_its_deadline_mentions_the_current_step(attempt: Attempt) -> None:
    commands = ScriptedBuildCommands(failing="mmdebstrap", times_out=True)

    with pytest.raises(ImageBuildError, match=r"while installing its packages: .*Unpacking gcc"):
        attempt.build(commands)


def test_error_for_a_user_without_namespaces_has_a_remedy(attempt: Attempt) -> None:
    commands = ScriptedBuildCommands(failing="true", says="unshare: unshare failed: No such range")

    with pytest.raises(
        RequirementError, match=r"No such range'\. Build the image as root, or give"
    ):
        attempt.build(commands, privilege=Privilege.USER)


@pytest.mark.parametrize("kernels", [["6.1.0-9"], ["6.1.0-8", "6.1.0-9", "6.1.0-10"]])
def test_wrong_number_of_kernels_is_refused(attempt: Attempt, kernels: list[str]) -> None:
    with pytest.raises(
        ImageBuildError, match=f"has {len(kernels)} kernels, but its recipe asks for 2"
    ):
        attempt.build(ScriptedBuildCommands(kernels=kernels))


@pytest.mark.parametrize("privilege", Privilege)
def test_files_of_subordinate_ids_are_removed_in_a_namespace(
    attempt: Attempt, privilege: Privilege
) -> None:
    """A build by a user leaves files of subordinate ids; all other files belong to the user."""
    attempt.build(ScriptedBuildCommands(), privilege=privilege)
    commands = ScriptedBuildCommands()
    builder = MmdebstrapBuilder(run=commands, privilege=privilege)

    builder.clean(attempt.work)
    builder.clean(attempt.work)

    assert not attempt.work.exists()
    removals = [(argv[-4], "--map-auto" in argv) for argv in commands.calls]
    scratch = (str(attempt.work / "scratch"), True)
    assert removals == ([scratch] if privilege is Privilege.USER else [])


def test_build_that_goes_on_printing_may_take_longer_than_its_time_limit(attempt: Attempt) -> None:
    clock = FakeClock()

    class Slow(ScriptedBuildCommands):
        @override
        def __call__(self, argv: Sequence[str], **words: Any) -> int:
            if _program(argv) != "true":
                clock.sleep(500)
                words["on_line"]("Unpacking gcc")
            return super().__call__(argv, **words)

    attempt.build(Slow(), deadline=Deadline.after(900, clock))

    assert clock.elapsed_s == 2500


def test_version_of_the_builder_changes_with_each_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change of the builder, images that the earlier builder made are not used."""
    files = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr("harness.image.build.builder.builder_sources", lambda: files)
    versions: set[str] = set()
    for changed in (*files, *files):
        changed.write_text(f"{len(versions)}")
        if all(file.exists() for file in files):
            versions.add(MmdebstrapBuilder().version)

    assert len(versions) == 3


def test_error_for_a_kernel_without_an_initrd_has_the_remedy(attempt: Attempt) -> None:
    class WithoutInitrd(ScriptedBuildCommands):
        @override
        def _fill(self, root: Path) -> None:
            super()._fill(root)
            (root / "var/lib/dpkg/status").write_bytes(
                STATUS.encode() + b"Maintainer: M\xfcller\n"
            )
            (root / "boot/initrd.img-6.1.0-9").unlink()

    with pytest.raises(
        ImageBuildError, match=r"'/boot/initrd.img-6.1.0-9' .*; add 'initramfs-tools'"
    ):
        attempt.build(WithoutInitrd(kernels=["6.1.0-9", "6.1.0-10"]))


def test_kernel_is_newer_than_its_release_candidate() -> None:
    for flavour in ("", "-amd64"):
        kernels = [f"{version}{flavour}" for version in ("6.11.10", "6.12~rc6", "6.12")]

        assert sorted([kernels[2], *kernels[:2]], key=version_key) == kernels
    assert sorted(["6.12", "6²1"], key=version_key)
    mainline = ["6.5.0-060500rc5-generic", "6.5.0-060500-generic"]
    assert sorted(mainline, key=version_key) == mainline
