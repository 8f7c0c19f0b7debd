"""The settings of a run, which are read from the options, the environment and the ini file."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NewType

from typing_extensions import Self, override

from harness.entry_points import Group, plugins
from harness.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

APPLICATION = "gpu-node-harness"
DRIVER_VARIABLE = "HARNESS_MACHINE_DRIVER"
URI_VARIABLE = "HARNESS_MACHINE_URI"
INVENTORY_VARIABLE = "HARNESS_GPU_INVENTORY"
STORE_VARIABLE = "HARNESS_STORE"
POOL_VARIABLE = "HARNESS_GPU_POOL_DIR"
TIMEOUT_VARIABLE = "HARNESS_TIMEOUT_MULTIPLIER"
#: The optional file in which an administrator lists the GPUs of the host that tests may use.
INVENTORY = Path("/etc/gpu-node-harness/gpus.yaml")
#: The folder of the leases of this host's GPUs. The folder is local, since file locks are not
#: reliable on network file systems; a reboot empties the folder.
POOL_FOLDER = Path("/run/lock/gpu-node-harness")
_LEAST_MULTIPLIER, _MOST_MULTIPLIER = 0.1, 1000.0
#: The longest time in hours for which a machine is kept: ten years. After a longer time, the end
#: could be later than the last date that Python supports.
MOST_KEEP_HOURS = 87_600
#: The default images for tests of nodes: one for each distribution from which nodes are made.
TESTED_IMAGES = "debian-12,debian-13"
#: The file of test durations in the root folder of a project, in the format of pytest-split.
DURATIONS_FILE = ".test_durations"
#: The provisioner that comes with the harness.
PROVISIONER = "gpu-node"
SHIPPED_IMAGES = Path(__file__).with_name("images")
"""The recipes that come with the harness, and the files that these recipes add to images."""
ACCEPT_OPTION = "--accept-licence"
#: The environment variable that accepts licences, as `--accept-licence` does; commas separate licences.
ACCEPT_VARIABLE = "HARNESS_ACCEPT_LICENCE"

LicenceId = NewType("LicenceId", str)
"""The name of a licence, as recipes and `--accept-licence` write it."""


class OptionValue(Enum):
    """The base class for enums of option values.

    A member's value is the member's word on the command line.
    """

    @classmethod
    def words(cls) -> list[str]:
        """Return the words that the option accepts."""
        return [member.value for member in cls]

    @classmethod
    def parse(cls, word: str, *, source: str) -> Self:
        """Return the member for `word`; for an unknown `word`, raises BadInputError, which names `source`."""
        try:
            return cls(word)
        except ValueError:
            raise BadInputError(
                f"'{word}' is not one of {', '.join(cls.words())}.", source=source
            ) from None

    @override
    def __str__(self) -> str:
        return str(self.value)


class AcceleratorOption(OptionValue):
    """How guests run; `AUTO` is KVM if a probe shows that KVM works, else TCG."""

    AUTO = "auto"
    KVM = "kvm"
    TCG = "tcg"


class MachineDriver(OptionValue):
    """The program that runs virtual machines.

    With `NODE`, no machine runs, and tests check an existing node.
    """

    QEMU = "qemu"
    LIBVIRT = "libvirt"
    NODE = "node"


@dataclass(frozen=True, kw_only=True)
class PluginDriver:
    """A VM driver of an installed package; `name` is the name of the driver's entry point."""

    name: str

    @property
    def value(self) -> str:
        return self.name

    @override
    def __str__(self) -> str:
        return self.name


class MachineStart(OptionValue):
    """How machines start: from a checkpoint, by booting, or both ways in turn for each test."""

    CLONE = "clone"
    COLD = "cold"
    BOTH = "both"


class GpuSource(OptionValue):
    """The source of machines' GPUs; `AUTO` is the host if the host has enough GPUs, else emulation."""

    EMULATED = "emulated"
    HOST = "host"
    AUTO = "auto"


class GpuEmulation(OptionValue):
    """How completely a GPU is emulated.

    `IDENTITY` emulates only what a guest finds on the PCI bus: NVIDIA's driver binds to the GPU,
    but can't open the GPU. `GSP` adds the GPU System Processor: the driver opens the GPU, and
    nvidia-smi shows the GPU.
    """

    IDENTITY = "identity"
    GSP = "gsp"


class EvidenceMode(OptionValue):
    """When the evidence of a test is kept."""

    ON_FAILURE = "on-failure"
    ALWAYS = "always"


class FailureCheckpoint(OptionValue):
    """Whether a test that fails saves its machines as checkpoints, for `harness resume`."""

    ON_FAILURE = "on-failure"
    NEVER = "never"


class MachineKeep(OptionValue):
    """The tests whose machines keep running after the test."""

    NONE = "none"
    FAILED = "failed"
    ALL = "all"


class MachineShell(OptionValue):
    """When a shell opens in the machine of a test."""

    BEFORE = "before"
    INSTEAD = "instead"
    AFTER = "after"
    FAILED = "failed"


def _expanded(text: str, *, source: str) -> Path:
    """Replace `~` in a path by the home folder; raises BadInputError if no home folder is known."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise BadInputError(
            f"The home folder in '{text}' is not known; set HOME, or give a path without '~'.",
            source=source,
        ) from error


def user_cache_folder(application: str) -> Path:
    """Return the cache folder of `application`, as the XDG Base Directory Specification defines it."""
    caches = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    # The path is absolute, since QEMU and ssh run in other working directories.
    return _expanded(caches, source="XDG_CACHE_HOME").absolute() / application


def _cache() -> Path:
    return user_cache_folder(APPLICATION)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a run; a `Settings` object never changes.

    `image` may name several images, separated by commas: suites run with each image. The image
    recipes of a run are the shipped recipes and the recipes in `image_folders`.

    `ci` is true if the environment variable CI has a true value. If `ci` is true, a test that lacks
    a requirement fails and is not skipped. When checkpoints take more than `checkpoint_limit_mib`
    MiB of disk, the least recently used checkpoints are removed, except checkpoints in use.
    `gpu_models` are folders with GPU models in addition to the shipped GPU models. An image with a
    licence is built or used only if the licence is in `accepted_licences`.

    `gpu_source` says where the GPUs of machines come from. `gpu_emulation` says how completely GPUs
    are emulated; if `gpu_emulation` is None, each GPU's model says how completely the GPU is
    emulated. With `is_gpu_required`, a test for which the host has no GPU fails and is not skipped.

    An image or checkpoint that this host lacks is pulled from the registry `store`, if the registry
    has the image or checkpoint. With `is_store_writable`, images and checkpoints that are made on
    this host are pushed to the registry `store`.

    `provisioner` is the name of the provisioner of nodes, or the path of the provisioner's file.

    Waits for guests may take `timeout_multiplier` times as long as usual.

    `machine_driver` runs the machines: QEMU itself, or libvirt at `machine_uri`. With
    `MachineDriver.NODE`, `machine_uri` names an existing node.

    `failure_checkpoint` says whether a failed test saves its machines in its evidence. If all saved
    machines together take more than `failure_checkpoint_limit_mib` MiB, the oldest saved machines
    are removed. A failed test's bundle of evidence is removed when the bundle is older than
    `bundle_limit_days` days. If all bundles of evidence together take more than `bundle_limit_mib`
    MiB, the oldest bundles are removed. `machine_keep` says which machines keep running after their
    test, for at most `machine_keep_hours` hours. `machine_shell` says when a shell opens in a
    machine.

    `gpu_inventory` is the file that lists the host's GPUs that tests may use. If `gpu_inventory` is
    None, the file INVENTORY is read, unless INVENTORY does not exist. The leases of the host's GPUs
    are files in `gpu_pool_folder`, which all users of the host share.
    """

    accelerator: AcceleratorOption = AcceleratorOption.AUTO
    timeout_multiplier: float = 1.0
    qemu: str = "qemu-system-x86_64"
    image: str = "debian-12"
    image_folders: tuple[Path, ...] = ()
    provisioner: str = PROVISIONER
    gpu_models: tuple[Path, ...] = ()
    gpu_source: GpuSource = GpuSource.EMULATED
    gpu_emulation: GpuEmulation | None = None
    gpu_inventory: Path | None = None
    gpu_pool_folder: Path = POOL_FOLDER
    is_gpu_required: bool = False
    cache: Path = field(default_factory=_cache)
    machine_driver: MachineDriver | PluginDriver = MachineDriver.QEMU
    machine_uri: str | None = None
    machine_start: MachineStart = MachineStart.CLONE
    evidence: EvidenceMode = EvidenceMode.ON_FAILURE
    evidence_folder: Path = Path("evidence")
    failure_checkpoint: FailureCheckpoint = FailureCheckpoint.ON_FAILURE
    failure_checkpoint_limit_mib: int = 4096
    bundle_limit_mib: int = 16384
    bundle_limit_days: float = 30.0
    machine_keep: MachineKeep = MachineKeep.NONE
    machine_keep_hours: float = 4.0
    machine_shell: MachineShell | None = None
    checkpoint_limit_mib: int = 24576
    store: str | None = None
    is_store_writable: bool = False
    accepted_licences: frozenset[LicenceId] = frozenset()
    ci: bool = False

    def __post_init__(self) -> None:
        if self.machine_uri is not None and self.machine_driver is MachineDriver.QEMU:
            raise BadInputError(
                f"'{self.machine_uri}' is the address of a libvirt daemon or a node, but "
                "--machine-driver=qemu runs QEMU on this host; add --machine-driver=libvirt or "
                "--machine-driver=node.",
                source="--machine-uri",
            )
        if not all(self.images) or len(set(self.images)) < len(self.images):
            raise BadInputError(
                f"'{self.image}' is not a list of images; give names separated by commas, each once.",
                source="--image",
            )
        for name in (
            "bundle_limit_mib",
            "bundle_limit_days",
            "checkpoint_limit_mib",
            "failure_checkpoint_limit_mib",
        ):
            limit = getattr(self, name)
            # This comparison refuses NaN too.
            if not limit >= 0:
                raise BadInputError(
                    f"{limit} was given, but 0 or more was expected.",
                    source=f"--{name.replace('_', '-')}",
                )
        require_keep_hours(self.machine_keep_hours, source="--machine-keep-hours")

    @property
    def images(self) -> tuple[str, ...]:
        """Return the names of the images, in the order in which they were given."""
        return tuple(self.image.split(","))

    @property
    def runs_folder(self) -> Path:
        """Return the folder that contains one folder, with a lease, for each running machine."""
        return self.cache / "runs"

    @property
    def image_store(self) -> Path:
        return self.cache / "images"

    @property
    def cloud_image_store(self) -> Path:
        return self.cache / "stock"

    @property
    def derived_store(self) -> Path:
        """Return the folder of data derived from cloud images: baked images and kernels."""
        return self.cache / "derived"

    @property
    def checkpoint_store(self) -> Path:
        return self.cache / "checkpoints"


def require_keep_hours(hours: float, *, source: str) -> None:
    """Raise BadInputError, which names `source`, if a machine can't be kept for `hours` hours."""
    # This comparison refuses NaN too.
    if not 0 <= hours <= MOST_KEEP_HOURS:
        raise BadInputError(
            f"{hours:g} was given, but a number of hours from 0 to {MOST_KEEP_HOURS} was expected.",
            source=source,
        )


def name_of_file(file: str) -> str:
    """Return a name for an image file, made of letters, digits and `-`."""
    stem = file.rpartition(".")[0] or file
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "image"


def image_ids(images: Iterable[str]) -> tuple[str, ...]:
    """Return a distinct name for each image, for test ids; an image may be a path or a URL."""
    ids: list[str] = []
    for image in images:
        path, _, _ = image.partition("#")
        one = name_of_file(path.rpartition("/")[2]) if "/" in path else image
        ids.append(one if one not in ids else f"{one}-{len(ids) + 1}")
    return tuple(ids)


def first_of(option: str | None, variable: str, ini: str = "") -> str | None:
    """Return the value from the option, else from the environment, else from the ini file."""
    return option or os.environ.get(variable) or ini or None


def timeout_multiplier(option: str | None) -> float:
    """Return the factor for waits on guests from the option, else from the environment, else 1.

    Raises BadInputError if the factor is not a number from 0.1 to 1000.
    """
    text = first_of(option, TIMEOUT_VARIABLE)
    if text is None:
        return 1.0
    with contextlib.suppress(ValueError):
        if _LEAST_MULTIPLIER <= float(text) <= _MOST_MULTIPLIER:
            return float(text)
    raise BadInputError(
        f"'{text}' is not a factor for the time limits of guests; give a number from "
        f"{_LEAST_MULTIPLIER:g} to {_MOST_MULTIPLIER:g}, such as 3 on a slow host.",
        source=f"--timeout-multiplier or {TIMEOUT_VARIABLE}",
    )


def first_path(
    option: str | None, variable: str, ini: str = "", *, root: Path | None = None
) -> Path | None:
    """Return the path from the option, else from the environment, else from the ini file.

    The returned path is absolute; a path in an option or the ini file may be relative to `root`.
    Raises BadInputError for a path in an unknown home folder.
    """
    text = first_of(option, variable, ini)
    return None if text is None else (root or Path.cwd()) / _expanded(text, source=variable)


def machine_driver(option: str | None, ini: str = "") -> MachineDriver | PluginDriver:
    """Return the driver from the option, else from the environment, else from the ini file.

    Raises BadInputError if neither the harness nor an installed package has a driver of that name.
    """
    word = first_of(option, DRIVER_VARIABLE, ini)
    if word is None:
        return MachineDriver.QEMU
    if word in MachineDriver.words():
        return MachineDriver(word)
    added = {plugin.name for plugin in plugins(Group.MACHINE_DRIVERS)}
    if word not in added:
        raise BadInputError(
            f"'{word}' is not one of {', '.join((*MachineDriver.words(), *sorted(added)))}.",
            source="--machine-driver",
        )
    return PluginDriver(name=word)


def accepted_licences(given: Iterable[str]) -> frozenset[LicenceId]:
    """Return the licences that options and the environment accept.

    Each option may name several licences, separated by commas or blanks.
    """
    words = (*given, os.environ.get(ACCEPT_VARIABLE, ""))
    return frozenset(LicenceId(name) for word in words for name in word.replace(",", " ").split())


def is_ci() -> bool:
    """Return whether the environment variable CI is set to a true value."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false", "no"}
