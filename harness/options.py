"""The table of all options that become settings: options of pytest, of `harness`, or of both.

pytest's options and ini keys, the commands' arguments and the reference pages are made from this
table.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.settings import (
    ACCEPT_OPTION,
    ACCEPT_VARIABLE,
    DRIVER_VARIABLE,
    INVENTORY,
    INVENTORY_VARIABLE,
    POOL_VARIABLE,
    STORE_VARIABLE,
    TESTED_IMAGES,
    TIMEOUT_VARIABLE,
    URI_VARIABLE,
    AcceleratorOption,
    EvidenceMode,
    FailureCheckpoint,
    GpuEmulation,
    GpuSource,
    MachineDriver,
    MachineKeep,
    MachineShell,
    MachineStart,
    OptionValue,
    Settings,
    accepted_licences,
    first_of,
    first_path,
    is_ci,
    machine_driver,
    timeout_multiplier,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

#: A function that returns the setting, or None for the default. Its arguments are the values from
#: the command line and from the ini file (None if not given), and the folder to which paths are
#: relative (None for the working directory).
_Read = Any


def _path_or(variable: str) -> _Read:
    return lambda given, ini, root: first_path(given, variable, ini or "", root=root)


def _folder(given: str | None, _ini: Any, root: Path | None) -> Path | None:
    return None if given is None else (root or Path()) / given


def _folders(given: Any, ini: Any, root: Path | None) -> tuple[Path, ...]:
    return (*(ini or ()), *((root or Path()) / folder for folder in given or ()))


@dataclass(frozen=True)
class Option:
    """An option, and the setting that it sets.

    The setting is the field `own_field` of Settings or, if `own_field` is empty, the field with the
    option's name. The default of the field is the default of the option. `tested` is the default of
    pytest's option, if this default differs from the default of the field. `variable` is the
    environment variable that is read if the option is not given, and `otherwise` describes the
    default in help texts. If the option has an ini key, `ini` is the key's type for pytest's
    `addini`.
    """

    name: str
    help: str
    _: KW_ONLY
    metavar: str | None = None
    choices: type[OptionValue] | None = None
    type: type[int] | type[float] | None = None
    is_flag: bool = False
    is_list: bool = False
    own_field: str = ""
    tested: str | None = None
    variable: str | None = None
    otherwise: str | None = None
    ini: str | None = None
    own_read: _Read = None

    @property
    def destination(self) -> str:
        """Return the option's name in the result of the parser, and in an ini file."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def field(self) -> str:
        return self.own_field or self.destination

    def read(self, given: Any, ini: Any, root: Path | None) -> Any:
        """Return the setting, or None for the default; raises BadInputError if the value is wrong."""
        if self.own_read is not None:
            return self.own_read(given, ini, root)
        if self.variable is not None:
            return first_of(given, self.variable, ini or "")
        return given if given is None or self.choices is None else self.choices(given)

    def arguments(self, default: str | None = None) -> dict[str, Any]:
        """Return the arguments of argparse's `add_argument`, which pytest's `addoption` accepts too."""
        if self.is_flag:
            return {"action": "store_true", "help": self.help}
        if self.is_list:
            return {"action": "append", "default": [], "metavar": self.metavar, "help": self.help}
        arguments: dict[str, Any] = {"metavar": self.metavar}
        if self.choices is not None:
            arguments = {"choices": self.choices.words()}
        if self.type is not None:
            arguments["type"] = self.type
        said = ", else ".join(filter(None, (self.variable, self.otherwise)))
        own = getattr(Settings, self.field)
        if not said and own is not None:
            arguments["default"] = default or (own if isinstance(own, (int, float)) else str(own))
            said = "%(default)s"
        return {**arguments, "help": f"{self.help} (default: {said})" if said else self.help}


_ROWS = (
    Option(
        "--accelerator",
        "how guests run; 'auto' uses KVM if KVM works on this host, else TCG",
        choices=AcceleratorOption,
    ),
    Option(
        "--timeout-multiplier",
        "factor for all waits on guests, such as 3 on a slow host",
        metavar="FACTOR",
        variable=TIMEOUT_VARIABLE,
        otherwise="1",
        own_read=lambda given, _ini, _root: timeout_multiplier(given),
    ),
    Option("--qemu", "QEMU program to use", metavar="PROGRAM"),
    Option(
        "--image",
        "node images: names that `harness image ls` lists, paths of qcow2 or raw files, or "
        "https://HOST/FILE#sha256=DIGEST; tests of nodes run with each image, commands use the first",
        metavar="IMAGE[,IMAGE...]",
        tested=TESTED_IMAGES,
    ),
    Option(
        "--images-dir",
        "folder with further image recipes; may be repeated",
        own_field="image_folders",
        metavar="DIR",
        is_list=True,
        ini="paths",
        own_read=_folders,
    ),
    Option(
        "--provisioner",
        "provisioner of nodes: its name, or the path of its YAML file",
        metavar="NAME|PATH",
    ),
    Option(
        "--gpu-models",
        "folder with further GPU models; may be repeated",
        metavar="DIR",
        is_list=True,
        ini="paths",
        own_read=_folders,
    ),
    Option(
        "--gpu-source",
        "where the GPUs of nodes come from: emulated GPUs, the host's GPUs by VFIO, or 'auto': the "
        "host's GPUs if the host has enough, else emulated GPUs",
        choices=GpuSource,
        otherwise="emulated; in suites/passthrough: host",
    ),
    Option(
        "--gpu-emulation",
        "the emulated parts of a GPU: only the parts that a guest finds on the PCI bus, or also the GPU "
        "System Processor (GSP), so that NVIDIA's driver opens the GPU",
        choices=GpuEmulation,
        otherwise="as the model says",
    ),
    Option(
        "--require-gpu",
        "fail a test, instead of skipping it, if the host lacks a free GPU or anything else that the test "
        "needs",
        own_field="is_gpu_required",
        is_flag=True,
    ),
    Option(
        "--gpu-inventory",
        "file that lists the GPUs of this host that tests may use",
        metavar="FILE",
        otherwise=f"{INVENTORY} if it exists",
        ini="string",
        variable=INVENTORY_VARIABLE,
        own_read=_path_or(INVENTORY_VARIABLE),
    ),
    Option(
        "--gpu-pool-dir",
        "folder of the leases on this host's GPUs; all users share this folder",
        own_field="gpu_pool_folder",
        metavar="DIR",
        otherwise=f"{Settings.gpu_pool_folder}",
        variable=POOL_VARIABLE,
        own_read=_path_or(POOL_VARIABLE),
    ),
    Option(
        "--machine-driver",
        f"what runs machines: {', '.join(MachineDriver.words())}, or the VM driver of an installed "
        "package; 'node' runs no machine, and needs the URI of an existing node",
        metavar="NAME",
        variable=DRIVER_VARIABLE,
        otherwise=f"{Settings.machine_driver}",
        ini="string",
        own_read=lambda given, ini, _root: machine_driver(given, ini or ""),
    ),
    Option(
        "--machine-uri",
        "URI of libvirt, such as qemu:///session, or of an existing node, such as ssh://root@HOST",
        metavar="URI",
        ini="string",
        variable=URI_VARIABLE,
    ),
    Option(
        "--machine-start",
        "boot each machine, restore it from a checkpoint, or run each test both ways",
        choices=MachineStart,
    ),
    Option("--evidence", "when to keep the evidence of a node", choices=EvidenceMode),
    Option(
        "--evidence-dir",
        "folder for evidence, with a folder for each test",
        own_field="evidence_folder",
        metavar="DIR",
        own_read=_folder,
    ),
    Option(
        "--failure-checkpoint",
        "when to save the machines of a test in the test's evidence, for `harness resume`; never with --pdb",
        choices=FailureCheckpoint,
    ),
    Option(
        "--failure-checkpoint-limit-mib",
        "limit in MiB of disk space for the saved machines of failed tests; beyond this limit, the oldest "
        "machines are removed",
        metavar="MIB",
        type=int,
    ),
    Option(
        "--bundle-limit-mib",
        "limit in MiB of disk space for the bundles of failed tests in --evidence-dir; beyond this limit, "
        "the oldest bundles are removed, except the bundle of the last failure",
        metavar="MIB",
        type=int,
    ),
    Option(
        "--bundle-limit-days",
        "days after which the bundle of a failed test is removed, at the next failure or by `harness gc`",
        metavar="DAYS",
        type=float,
    ),
    Option(
        "--machine-keep",
        "the tests whose machines keep running after the test; `harness shell --machine` enters them, "
        "`harness gc` ends them",
        choices=MachineKeep,
    ),
    Option(
        "--machine-keep-hours",
        "the longest time in hours for which a kept machine runs",
        metavar="HOURS",
        type=float,
    ),
    Option(
        "--machine-shell",
        "open a shell in the machine of each test: before the test uses the machine, instead of the test, "
        "after the test, or if the test failed; needs a run without xdist (-n 0)",
        choices=MachineShell,
    ),
    Option(
        "--checkpoint-limit-mib",
        "limit in MiB of disk space for checkpoints; beyond this limit, the least recently used checkpoints "
        "are removed",
        metavar="MIB",
        type=int,
    ),
    Option(
        "--store",
        "registry from which images and checkpoints are pulled, such as registry.example:5000/team; this "
        "host makes the images and checkpoints that the registry lacks",
        metavar="URL",
        ini="string",
        variable=STORE_VARIABLE,
    ),
    Option(
        "--store-push",
        "also push the images and checkpoints that this host makes to the registry of --store; by default, "
        "nothing is pushed",
        own_field="is_store_writable",
        is_flag=True,
    ),
    Option(
        ACCEPT_OPTION,
        f"licence that you accept, for images that need it; may be repeated (also: {ACCEPT_VARIABLE})",
        own_field="accepted_licences",
        metavar="LICENCE",
        is_list=True,
        ini="args",
        own_read=lambda given, ini, _root: accepted_licences([*(given or ()), *(ini or ())]),
    ),
)
OPTIONS: Mapping[str, Option] = {option.name: option for option in _ROWS}


def add_to_command(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options of the table to a command of `harness`."""
    for name in names:
        parser.add_argument(name, **OPTIONS[name].arguments())


def settings_from(
    given: Callable[[str], Any],
    ini: Callable[[str], Any] = lambda _name: None,
    root: Path | None = None,
    **decided: object,
) -> Settings:
    """Return the settings that options, the environment and an ini file specify.

    For the destination of an option, `given` returns the value from the command line, and `ini` the
    value from the ini file; both return None if there is no value. `decided` contains the settings
    that the caller has already chosen. Raises BadInputError if a value is wrong.
    """
    values: dict[str, Any] = {}
    for option in _ROWS:
        if option.field not in decided:
            key = option.destination
            value = option.read(given(key), ini(key) if option.ini else None, root)
            if value is not None:
                values[option.field] = value
    return Settings(**values, **decided, ci=is_ci())  # type: ignore[arg-type]
