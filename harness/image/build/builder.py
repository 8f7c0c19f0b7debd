"""Builds an image from a recipe by mmdebstrap, mke2fs and qemu-img."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from harness.artifact_cache import DISK
from harness.artifact_cache.disk_space import FULL, DiskSpace, free_bytes
from harness.debian_packages import KEYRING, KEYRING_PACKAGE
from harness.errors import RequirementError
from harness.host_programs import find_program
from harness.image import ImageBuildError
from harness.image.build.commands import (
    Privilege,
    builder_sources,
    input_entries,
    mke2fs_argv,
    mmdebstrap_argv,
)
from harness.image.build.logged_run import OutputDeadline, run_logged
from harness.image.formats import oci
from harness.image.formats.kernel_versions import version_key
from harness.progress import Progress, Stage
from harness.provisioning.wait import Deadline, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from harness.image.build.logged_run import LoggedRunner
    from harness.image.catalogue import Recipe
    from harness.progress import ProgressListener
    from harness.provisioning.command import Argv

VERSION = 1
"""Increase this number after a code change that changes the image of an unchanged recipe."""

SPACE_MIB = 4096
"""The disk space that a build needs for its root folder, raw disk and qcow2 at the same time."""

TOOLS = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "qemu-img": "qemu-utils"}
"""The programs that a build needs, and the Debian package that contains each program."""

LOG_TAIL_LINES = 25

_WHAT = "image"

NOISE = re.compile(
    r"running (special hook|--\S+-hook)|is now a symlink to|equal to the host's|signed-by"
)
"""Matches lines of mmdebstrap's output that do not show the progress of a build."""

SCRATCH = "scratch"
"""The folder in `work` for files whose owners are users of the build's namespace."""

CLEAN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class BuiltDisk:
    """The kernels and packages that a build installed."""

    kernels: tuple[str, ...]
    packages: Mapping[str, str]


class ImageBuilder(Protocol):
    """Builds a disk from a recipe."""

    @property
    def version(self) -> str:
        """Return the builder's name and version, which are part of the key of each image."""
        ...

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
        """Write `disk.qcow2` and `kernels/<version>/{vmlinuz,initrd.img}` to `into`.

        Write temporary files to `work`, which `clean` removes.
        """
        ...

    def clean(self, work: Path) -> None:
        """Remove the folder `work` and any files that a killed build left there."""
        ...


class MmdebstrapBuilder:
    """Builds Debian images, as root or as a user. Each command runs in its own namespaces."""

    def __init__(
        self,
        *,
        run: LoggedRunner = run_logged,
        privilege: Privilege | None = None,
        find_program: Callable[[str], str | None] = find_program,
        free_bytes: Callable[[Path], int] = free_bytes,
        keyring: Path = KEYRING,
    ) -> None:
        self._run = run
        self._privilege = Privilege.current() if privilege is None else privilege
        self._find_program = find_program
        self._free_bytes = free_bytes
        self._keyring = keyring

    @property
    def version(self) -> str:
        digest = hashlib.sha256()
        for source in builder_sources():
            digest.update(source.read_bytes())
        return f"mmdebstrap-{VERSION}-{digest.hexdigest()[:16]}"

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
        """Build a disk from a recipe; raises RequirementError or ImageBuildError."""
        self.require(work)
        self._require_namespace(recipe, log, deadline)
        scratch = work / SCRATCH
        scratch.mkdir()
        build = _Build(
            recipe=recipe,
            into=into,
            scratch=scratch,
            log=log,
            listener=listener,
            deadline=OutputDeadline.of(deadline),
            run=self._run,
            privilege=self._privilege,
        )
        with self._space(scratch).explain_full_disk(_WHAT, SPACE_MIB):
            return build.to_disk()

    def clean(self, work: Path) -> None:
        if self._privilege is Privilege.USER and work.exists():
            # Most files belong to subordinate ids, which only a process in a namespace can remove.
            self._run(
                self._privilege.wrap_in_namespaces(
                    ("find", str(work / SCRATCH), "-mindepth", "1", "-delete")
                ),
                log=work / "clean.log",
                deadline=Deadline.after(CLEAN_S),
                on_line=lambda _line: None,
            )
        shutil.rmtree(work, ignore_errors=True)

    def require(self, folder: Path) -> None:
        """Raise RequirementError if the host lacks a program, Debian's keys or space in `folder`."""
        missing = {
            tool: package for tool, package in TOOLS.items() if not self._find_program(tool)
        }
        if not self._keyring.exists():
            missing[str(self._keyring)] = KEYRING_PACKAGE
        if missing:
            raise RequirementError(
                f"Building an image needs {' and '.join(repr(tool) for tool in missing)}, not "
                "found on this host; install with 'apt-get install --no-install-recommends "
                f"{' '.join(missing.values())}'."
            )
        self._space(folder).require(_WHAT, SPACE_MIB)

    def _space(self, folder: Path) -> DiskSpace:
        return DiskSpace(
            folder,
            free=self._free_bytes,
            remedy="free some space, or set XDG_CACHE_HOME to a folder on a larger disk",
        )

    def _require_namespace(self, recipe: Recipe, log: Path, deadline: Deadline) -> None:
        code = self._run(
            self._privilege.wrap_in_namespaces(("true",)),
            log=log,
            deadline=deadline,
            on_line=lambda _: None,
        )
        if code != 0:
            raise RequirementError(
                f"The image '{recipe.name}' cannot be built by this user, who may not create "
                f"namespaces: '{log_tail(log).strip()}'. Build the image as root, or give the user "
                "subordinate ids: install the package 'uidmap' and util-linux 2.38 or newer, and add a "
                "line for the user to /etc/subuid and to /etc/subgid."
            )


@dataclass(frozen=True, kw_only=True)
class _Build:
    """One build of a recipe's image."""

    recipe: Recipe
    into: Path
    scratch: Path
    log: Path
    listener: ProgressListener
    deadline: OutputDeadline
    run: LoggedRunner
    privilege: Privilege

    def to_disk(self) -> BuiltDisk:
        root = self.scratch / "root"
        raw = self.scratch / "disk.raw"
        inputs = self.scratch / "inputs.tar"
        inputs.write_bytes(oci.tar_of(input_entries(self.recipe)))
        root.mkdir()
        self._report(f"building from '{self.recipe.file.archives[0].url}', log in '{self.log}'")
        self._do(
            "installing its packages",
            self.privilege.wrap_in_namespaces(
                (
                    "env",
                    f"TMPDIR={self.scratch}",
                    *mmdebstrap_argv(self.recipe, self.privilege, root=root, inputs=inputs),
                )
            ),
        )
        status = (root / "var/lib/dpkg/status").read_bytes()
        packages = read_dpkg_status(status.decode(errors="replace"))
        kernels = self._take_kernels(root / "boot")
        self._report(f"{len(packages)} packages, kernels {', '.join(kernels)}; writing the disk")
        self._do(
            "making its file system",
            self.privilege.wrap_in_namespaces(
                mke2fs_argv(root, raw, size_gib=self.recipe.file.disk_gib)
            ),
        )
        self._do(
            "removing its root folder", self.privilege.wrap_in_namespaces(("rm", "-rf", str(root)))
        )
        disk = self.into / DISK
        self._do(
            "converting its disk",
            ("qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(disk)),
        )
        self._do(
            "removing its raw disk", self.privilege.wrap_in_namespaces(("rm", "-f", str(raw)))
        )
        return BuiltDisk(kernels=kernels, packages=packages)

    def _take_kernels(self, boot: Path) -> tuple[str, ...]:
        kernels = tuple(
            sorted(
                (path.name.removeprefix("vmlinuz-") for path in boot.glob("vmlinuz-*")),
                key=version_key,
            )
        )
        if len(kernels) != self.recipe.file.kernels.newest:
            raise ImageBuildError(
                f"The image '{self.recipe.name}' has {len(kernels)} kernels, but its "
                f"recipe asks for {self.recipe.file.kernels.newest}; see '{self.log}'."
            )
        for version in kernels:
            folder = self.into / "kernels" / version
            folder.mkdir(parents=True)
            shutil.copyfile(boot / f"vmlinuz-{version}", folder / "vmlinuz")
            initrd = boot / f"initrd.img-{version}"
            if not initrd.is_file():
                raise ImageBuildError(
                    f"The image '{self.recipe.name}' has no '/boot/{initrd.name}' for its kernel {version}; "
                    f"add 'initramfs-tools' to the packages of its recipe, or see '{self.log}'."
                )
            shutil.copyfile(initrd, folder / "initrd.img")
        return kernels

    def _do(self, purpose: str, argv: Argv) -> None:
        try:
            code = self.run(argv, log=self.log, deadline=self.deadline, on_line=self._on_line)
        except WaitTimeoutError as error:
            raise ImageBuildError(
                f"Building the image '{self.recipe.name}' did not end in time while {purpose}: "
                f"{error} The whole log is in '{self.log}'."
            ) from error
        if code == 0:
            return
        tail = log_tail(self.log)
        for number in FULL:
            if os.strerror(number) in tail:
                raise OSError(number, os.strerror(number))
        raise ImageBuildError(
            f"Building the image '{self.recipe.name}' failed while {purpose}: "
            f"'{shlex.join(argv)}' ended with exit code {code}. The whole log is in "
            f"'{self.log}'; it ends with:\n{tail}"
        )

    def _on_line(self, line: str) -> None:
        """Report a line that mmdebstrap or a script of the harness has marked as information."""
        self.deadline.hear()
        if line.startswith("I: ") and not NOISE.search(line):
            self._report(line.removeprefix("I: "))

    def _report(self, message: str) -> None:
        Progress(self.recipe.name, self.listener).report(Stage.BUILD, message)


def read_dpkg_status(text: str) -> dict[str, str]:
    """Return the installed packages and their versions from dpkg's status file."""
    packages: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            packages[fields["Package"]] = fields["Version"]
    return dict(sorted(packages.items()))


def log_tail(log: Path) -> str:
    """Return the last lines of a log."""
    with log.open("rb") as source:
        source.seek(max(0, log.stat().st_size - (16 << 10)))
        return "\n".join(source.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])
