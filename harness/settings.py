"""Options, environment and ini become one frozen Settings."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import platformdirs

from harness.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

APPLICATION = "gpu-node-harness"
DRIVER_CHOICES = ("qemu", "libvirt", "node")
DRIVER_VARIABLE = "HARNESS_MACHINE_DRIVER"
URI_VARIABLE = "HARNESS_MACHINE_URI"
STORAGE_VARIABLE = "HARNESS_MACHINE_STORAGE"
START_CHOICES = ("clone", "cold", "both")
EVIDENCE_CHOICES = ("on-failure", "always")
#: What tests of nodes run with by default: each distribution of which nodes are made.
TESTED_IMAGES = "debian-12,debian-13"
ACCEPT_OPTION = "--accept-licence"
#: The environment variable that does the same; several licences are separated by commas.
ACCEPT_VARIABLE = "HARNESS_ACCEPT_LICENCE"


def _cache() -> Path:
    # QEMU and ssh run in folders of their own, where a relative path would lead astray.
    return Path(platformdirs.user_cache_dir(APPLICATION)).absolute()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run was asked to do; made once, handed down, never changed.

    `image` may name several images, with commas between them: suites run with each of them.

    `ci` is true where the variable CI says so: there, a machine that cannot be had is a failure
    and not a reason to skip. Beyond `checkpoint_limit_mib` of disk, the least recently used
    checkpoints that nobody uses are removed. `gpu_models` are folders of GPU models beside those
    that come with the harness. `accepted_licences` are the terms that a person said yes to:
    images that need others are neither built nor used.

    `machine_driver` runs the machines: QEMU itself, or libvirt at `machine_uri`; under "node" the
    URI names one that exists. Where that libvirt is another host's, disks lie in its folder
    `machine_storage`.
    """

    accelerator: str = "auto"
    qemu: str = "qemu-system-x86_64"
    image: str = "debian-12"
    images_folder: Path = Path("images")
    gpu_models: tuple[Path, ...] = ()
    cache: Path = field(default_factory=_cache)
    machine_driver: str = "qemu"
    machine_uri: str | None = None
    machine_storage: PurePosixPath | None = None
    machine_start: str = "clone"
    evidence: str = "on-failure"
    evidence_folder: Path = Path("evidence")
    checkpoint_limit_mib: int = 24576
    accepted_licences: frozenset[str] = frozenset()
    ci: bool = False

    def __post_init__(self) -> None:
        for value, choices, source in (
            (self.evidence, EVIDENCE_CHOICES, "--evidence"),
            (self.machine_start, START_CHOICES, "--machine-start"),
            (self.machine_driver, DRIVER_CHOICES, "--machine-driver"),
        ):
            if value not in choices:
                raise BadInputError(f"'{value}' is none of {', '.join(choices)}.", source=source)
        if self.machine_uri is not None and self.machine_driver == "qemu":
            raise BadInputError(
                f"'{self.machine_uri}' says where libvirt or a node is, but machines are QEMU's "
                "own processes of this host; add --machine-driver=libvirt or node.",
                source="--machine-uri",
            )
        if self.machine_storage is not None and not self.machine_storage.is_absolute():
            raise BadInputError(
                f"'{self.machine_storage}' is a folder of another host, where no folder is the "
                "current one; give its whole path.",
                source="--machine-storage",
            )
        if not all(self.images) or len(set(self.images)) < len(self.images):
            raise BadInputError(
                f"'{self.image}' is no list of images; give names with commas between them, each "
                "once.",
                source="--image",
            )
        if self.checkpoint_limit_mib < 0:
            raise BadInputError(
                f"{self.checkpoint_limit_mib} is too little; give 0 or more.",
                source="--checkpoint-limit-mib",
            )

    @property
    def images(self) -> tuple[str, ...]:
        """Return the names of the images, in the order in which they were given."""
        return tuple(self.image.split(","))

    @property
    def runs_folder(self) -> Path:
        """Return where the folders of running machines lie; leased, swept when abandoned."""
        return self.cache / "runs"

    @property
    def image_store(self) -> Path:
        return self.cache / "images"

    @property
    def stock_store(self) -> Path:
        return self.cache / "stock"

    @property
    def derived_store(self) -> Path:
        """Return where lies what was made of stock images."""
        return self.cache / "derived"

    @property
    def checkpoint_store(self) -> Path:
        return self.cache / "checkpoints"


def first_of(
    option: str | None,
    variable: str,
    ini: str = "",
    environment: Mapping[str, str] | None = None,
) -> str | None:
    """Return what the option says, or else the environment, or else the ini file."""
    return (
        option or (os.environ if environment is None else environment).get(variable) or ini or None
    )


def far_path(text: str | None) -> PurePosixPath | None:
    """Return what a path of another host says, where there is one."""
    return None if text is None else PurePosixPath(text)


def accepted_licences(
    given: Iterable[str], environment: Mapping[str, str] | None = None
) -> frozenset[str]:
    """Return what options and the environment accept; each word may name several licences."""
    variables = os.environ if environment is None else environment
    words = (*given, variables.get(ACCEPT_VARIABLE, ""))
    return frozenset(name for word in words for name in word.replace(",", " ").split())


def is_ci(environment: Mapping[str, str] | None = None) -> bool:
    """Tell whether the variable CI asks for strictness."""
    value = (os.environ if environment is None else environment).get("CI", "")
    return value.lower() not in {"", "0", "false", "no"}
