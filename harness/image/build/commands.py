"""Renders the commands that make an image's root file system and disk. Runs no command."""

from __future__ import annotations

import os
import shlex
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from harness.debian_packages import KEYRING_OPTION
from harness.image.formats import oci

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.image.catalogue import Recipe
    from harness.provisioning.command import Argv

INSIDE = Path(__file__).parent / "inside"
"""The builder's own scripts that run inside the root file system."""

WORKSHOP = "usr/src/image-build"
"""The folder for all scripts in the root file system, which the build removes at its end."""


class Privilege(Enum):
    """The user who builds an image: root, or a user with subordinate ids."""

    ROOT = "root"
    USER = "user"

    @classmethod
    def current(cls) -> Privilege:
        return cls.ROOT if os.geteuid() == 0 else cls.USER

    def wrap_in_namespaces(self, argv: Argv) -> tuple[str, ...]:
        """Wrap a command so that its processes and mounts end when the command ends.

        When `unshare` is killed, `--kill-child` also kills the first process in the namespace, and
        the kernel then kills all other processes there. An ordinary user is root in the namespace,
        so files have the same owners as in a build by root. `--map-auto` needs util-linux 2.38.
        """
        user = ("--user", "--map-root-user", "--map-auto") if self is Privilege.USER else ()
        return (
            "unshare",
            *user,
            *("--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
            "--",
            *argv,
        )


def input_entries(recipe: Recipe) -> list[oci.Entry]:
    """Return the files that the root file system gets before the recipe's scripts run."""
    trees = [oci.entry_of(path, name) for name, path in recipe.tree_files().items()]
    scripts = [
        oci.entry_of(path, f"{WORKSHOP}/{name}") for name, path in recipe.script_files().items()
    ]
    sources = [oci.entry_of(path, f"{WORKSHOP}/{path.name}") for path in builder_sources()]
    return [*trees, *scripts, *sources]


def builder_sources() -> list[Path]:
    """Return the builder's own files that run inside the root file system."""
    return [*sorted(INSIDE.iterdir()), Path(oci.__file__)]


def mmdebstrap_argv(
    recipe: Recipe, privilege: Privilege, *, root: Path, inputs: Path
) -> tuple[str, ...]:
    """Return the mmdebstrap command that fills the folder `root`."""
    content = recipe.file
    kernels = content.kernels
    script_environment = (
        {}
        if content.driver is None
        else {
            "GPU_DRIVER_REPOSITORY": content.driver.repository,
            "GPU_DRIVER_VERSION": content.driver.version,
            "GPU_IMAGE_SHA": content.driver.sha,
        }
    )
    hooks = [
        f"tar-in {shlex.quote(str(inputs))} /",
        _chroot_hook(
            ("sh", f"/{WORKSHOP}/install-kernels.sh", kernels.pattern, str(kernels.newest))
        ),
        *(
            _chroot_hook(("sh", f"/{WORKSHOP}/{script}"), script_environment)
            for script in content.scripts
        ),
        _chroot_hook(("sh", f"/{WORKSHOP}/finish.sh")),
    ]
    return (
        "mmdebstrap",
        "--mode=root" if privilege is Privilege.ROOT else "--mode=unshare",
        "--variant=minbase",
        "--format=directory",
        KEYRING_OPTION,
        f"--include={','.join(content.packages)}",
        '--aptopt=Apt::Install-Recommends "false"',
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in content.exclude),
        *(f"--customize-hook={hook}" for hook in hooks),
        content.release,
        str(root),
        *(line for archive in content.archives for line in archive.sources()),
    )


def _chroot_hook(argv: Argv, environment: Mapping[str, str] | None = None) -> str:
    """Return a hook for mmdebstrap: a shell command that runs `argv` in the root file system."""
    assignments = [f"{name}={value}" for name, value in (environment or {}).items()]
    return f'chroot "$1" env {shlex.join([*assignments, *argv])}'


def mke2fs_argv(root: Path, raw: Path, *, size_gib: int) -> tuple[str, ...]:
    """Return the command that makes the root file system, with all tables initialised."""
    return (
        "mke2fs",
        "-q",
        "-F",
        *("-t", "ext4"),
        *("-L", "node-root"),
        *("-m", "0"),
        # Without these options, the kernel would initialise the tables at the first boot of every
        # overlay.
        *("-E", "lazy_itable_init=0,lazy_journal_init=0"),
        *("-d", str(root)),
        str(raw),
        f"{size_gib}G",
    )
