"""Saves a failed machine in a folder, so that another process, checkout or host can continue the machine.

The folder has three parts: the compressed memory and devices, the disk as the difference from its
base image, and the description of the machine. The description names the base image by its digest.
The GPUs are unplugged first, since the state of an emulated GPU can't be saved. New GPUs of the
same models are plugged in when the machine is resumed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import glob
import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.artifact_cache import allocated_bytes
from harness.errors import BadInputError, HarnessError
from harness.evidence.archive import machine_folders
from harness.foreign_files import read_plain
from harness.foreign_json import parse_json_object
from harness.gpu.transport import parse_qemu_version
from harness.lab.base_images import BaseImage
from harness.lease import make_private_folder
from harness.limits import JSON
from harness.machine.description.spec import (
    Accelerator,
    DirectKernel,
    Firmware,
    Flash,
    MachineSpec,
)
from harness.machine.device_state import SUFFIXES, suffix
from harness.provisioning.command import LocalRunner
from harness.settings import MachineDriver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.machine import Machine, SavableMachine

#: The folder of a machine's checkpoint in the machine's evidence.
CHECKPOINT = "checkpoint"
_DESCRIPTION = "machine.json"
_DISK = "disk.qcow2"
_MEMORY = "memory"
_AGENT = "agent.pyz"
_SEED = "seed.iso"
_KERNEL = "kernel-header"
_VARIABLES = "variables.fd"
SCHEMA = 1
_KERNEL_BYTES = 64 << 10
_CONVERT_S = 300.0
_QUERY_S = 20.0
#: Limits that no host and no QEMU reaches: 16 TiB of memory, and a PCI bus for each port.
_MOST_MIB = 16 << 20
_MOST_CPUS = 4096
_MOST_PORTS = 256
_MOST_CHARACTERS = 4096


@dataclass(frozen=True, kw_only=True)
class MachineBundle:
    """A saved machine in `folder`. `spec` names only files of the bundle, and no disk.

    `driver` is the name of the VM driver that ran the machine. Under another driver, the machine
    would have other devices.
    """

    folder: Path
    name: str
    made: str
    purpose: str
    driver: str
    qemu_version: str
    spec: MachineSpec
    base: BaseImage
    gpus: tuple[str, ...]
    memory: Path

    @property
    def disk(self) -> Path:
        return self.folder / _DISK

    @property
    def agent_program(self) -> bytes:
        return read_plain(self.folder / _AGENT)

    @property
    def size_mib(self) -> float:
        return sum(path.stat().st_size for path in self.folder.iterdir()) / (1 << 20)


@dataclass(frozen=True, kw_only=True)
class ResumedSource:
    """The base image of a saved machine. The bundle has the overlay on that image."""

    bundle: MachineBundle
    disk: Path

    @property
    def name(self) -> str:
        return self.bundle.base.name

    def disk_sha256(self) -> str:
        return self.bundle.base.digest

    def prepare(self, folder: Path) -> None:
        """Create the files that the resumed machine writes: its disk and its UEFI variables."""
        saved, disk = self.bundle.folder, folder / _DISK
        _copy(self.bundle.disk, disk)
        _qemu_img("rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", str(self.disk), str(disk))
        if (saved / _VARIABLES).exists():
            _copy(saved / _VARIABLES, folder / _VARIABLES)


def save_machine(
    vm: Machine,
    savable: SavableMachine,
    folder: Path,
    *,
    base: Path,
    base_image: BaseImage,
    gpus: Sequence[str],
    seed: Path | None,
    agent_program: bytes,
    driver: str,
    purpose: str,
) -> MachineBundle:
    """Save a running machine without GPUs into the new private `folder`. The guest continues.

    `seed` is the seed volume that is plugged in. `gpus` are the models to plug in when the machine
    is resumed. `driver` is the name of the VM driver.

    Raises HarnessError if QEMU can't save the machine, or if the disk is not on this host.
    """
    spec = vm.spec
    if not spec.disk.exists():
        raise HarnessError(f"The disk of machine '{vm.spec.name}' is not on this host.")
    make_private_folder(folder)
    memory = f"{_MEMORY}{suffix()}"
    with savable.saved_whole(folder / memory):
        _qemu_img(
            *("convert", "-U", "-q", "-c", "-O", "qcow2", "-o", "compression_type=zstd"),
            *("-B", str(base), "-F", "qcow2", str(spec.disk), str(folder / _DISK)),
        )
    # Removes the path of the backing file, which is valid only on this host.
    _qemu_img("rebase", "-u", "-f", "qcow2", "-b", "", str(folder / _DISK))
    (folder / _AGENT).write_bytes(agent_program)
    if seed is not None:
        shutil.copyfile(seed, folder / _SEED)
    description = {
        "schema": SCHEMA,
        "name": spec.name,
        "made": dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds"),
        "purpose": purpose,
        "driver": driver,
        "qemu": qemu_version(spec.qemu),
        "memory": memory,
        "gpus": list(gpus),
        "base": asdict(base_image),
        "spec": {
            "accelerator": spec.accelerator.name,
            "kernel": _save_kernel(spec, folder),
            "has_seed": seed is not None,
            "memory_mib": spec.memory_mib,
            "cpus": spec.cpus,
            "root_ports": spec.root_ports,
            "root_port_window_mib": spec.root_port_window_mib,
            "root_port_aperture_mib": spec.root_port_aperture_mib,
            "has_iommu": spec.has_iommu,
        },
    }
    part = folder / f"{_DESCRIPTION}.part"
    part.write_text(json.dumps(description, indent=2) + "\n")
    part.rename(folder / _DESCRIPTION)
    return read_bundle(folder)


def _save_kernel(spec: MachineSpec, folder: Path) -> Mapping[str, object]:
    kernel = spec.kernel
    if isinstance(kernel, DirectKernel):
        # The guest has its kernel in memory; QEMU reads only the header, to place the option ROM.
        with kernel.vmlinuz.open("rb") as file:
            (folder / _KERNEL).write_bytes(file.read(_KERNEL_BYTES))
        return {"version": kernel.version, "may_reboot": kernel.may_reboot}
    if kernel.flash is None:
        return {}
    shutil.copyfile(kernel.flash.variables, folder / _VARIABLES)
    return {"flash": str(kernel.flash.code)}


def read_bundle(folder: Path) -> MachineBundle:
    """Return the machine saved in `folder` or `folder`/checkpoint, or the only machine saved below `folder`.

    Raises BadInputError unless exactly one saved machine is found, and for a bundle of another
    schema.
    """
    folder = _folder_of(folder)
    path = folder / _DESCRIPTION
    try:
        fields = parse_json_object(read_plain(path, limit=JSON))
        if fields["schema"] != SCHEMA:
            raise BadInputError(
                f"Schema {fields['schema']!r} was found, but this harness reads {SCHEMA}; use the "
                "version of the harness that made the bundle.",
                source=str(path),
                key="schema",
            )
        return MachineBundle(
            folder=folder,
            name=_text(fields, "name"),
            made=_text(fields, "made"),
            purpose=_text(fields, "purpose"),
            # Bundles of the first releases lack the driver.
            driver=_read_driver(fields.get("driver", MachineDriver.QEMU.value)),
            qemu_version=_text(fields, "qemu"),
            spec=_read_spec(_text(fields, "name"), fields["spec"], folder),
            base=_read_base(fields["base"]),
            gpus=_texts(fields["gpus"], "gpus"),
            memory=folder / _own_file(_text(fields, "memory")),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadInputError(
            f"The file does not describe a saved machine: {error!r}.", source=str(path)
        ) from error


def _text(fields: Mapping[str, Any], key: str) -> str:
    """Return the string of a key. Raises KeyError without the key, and ValueError for any other value."""
    value = fields[key]
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        raise ValueError(f"'{key}' is not a string of at most {_MOST_CHARACTERS} characters")
    return value


def _texts(values: object, key: str) -> tuple[str, ...]:
    """Return a list of strings. Raises ValueError for any other value."""
    if not isinstance(values, list) or len(values) > _MOST_PORTS:
        raise ValueError(f"'{key}' is not a list of at most {_MOST_PORTS} names")
    return tuple(_text({key: value}, key) for value in values)


def _number(fields: Mapping[str, Any], key: str, most: int) -> int:
    """Return the whole number of a key.

    Raises KeyError without the key, and ValueError if the value is not a whole number up to `most`.
    """
    value = fields[key]
    # Python counts JSON's true as the whole number 1.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"'{key}' is not a whole number of at most {most}")
    return value


def _truth(fields: Mapping[str, Any], key: str) -> bool:
    """Return the boolean of a key. Raises KeyError without the key, and ValueError for any other value."""
    value = fields[key]
    if not isinstance(value, bool):
        raise ValueError(f"'{key}' is neither true nor false")  # noqa: TRY004 - like other bad values
    return value


def _read_driver(name: object) -> str:
    if name == MachineDriver.NODE.value:
        raise ValueError(f"the VM driver '{name}' can't save machines")
    return _text({"driver": name}, "driver")


def _read_base(fields: Mapping[str, Any]) -> BaseImage:
    return BaseImage(
        name=_text(fields, "name"),
        digest=_text(fields, "digest"),
        folder=_text(fields, "folder"),
        # Bundles of the first releases lack the parents.
        parents=_texts(fields.get("parents", []), "parents"),
    )


def _own_file(name: str) -> str:
    """Return the name of the file with the memory. Raises ValueError for any other name or path."""
    if name not in {f"{_MEMORY}{each}" for each in SUFFIXES}:
        raise ValueError(f"'{name}' is not a file of a saved machine")
    return name


def _read_spec(name: str, fields: Mapping[str, Any], folder: Path) -> MachineSpec:
    kernel: DirectKernel | Firmware
    described = fields["kernel"]
    if not isinstance(described, dict):
        raise ValueError("'kernel' is not an object")  # noqa: TRY004 - like other bad values
    if "version" in described:
        kernel = DirectKernel(
            version=_text(described, "version"),
            vmlinuz=folder / _KERNEL,
            initrd=folder / _KERNEL,
            may_reboot=_truth(described, "may_reboot"),
        )
    elif "flash" in described:
        kernel = Firmware(
            flash=Flash(code=Path(_text(described, "flash")), variables=folder / _VARIABLES)
        )
    else:
        kernel = Firmware()
    return MachineSpec(
        name=name,
        accelerator=Accelerator[fields["accelerator"]],
        kernel=kernel,
        disk=folder / _DISK,
        seed=folder / _SEED if _truth(fields, "has_seed") else None,
        has_iommu=_truth(fields, "has_iommu"),
        is_restored=True,
        memory_mib=_number(fields, "memory_mib", _MOST_MIB),
        cpus=_number(fields, "cpus", _MOST_CPUS),
        root_ports=_number(fields, "root_ports", _MOST_PORTS),
        root_port_window_mib=_number(fields, "root_port_window_mib", _MOST_MIB),
        root_port_aperture_mib=_number(fields, "root_port_aperture_mib", _MOST_MIB),
    )


def _folder_of(folder: Path) -> Path:
    if (folder / _DESCRIPTION).is_file():
        return folder
    saved = [machine / CHECKPOINT for machine in machine_folders(folder)]
    found = [each for each in saved if (each / _DESCRIPTION).is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadInputError(
            f"There are {len(found)} saved machines; name the folder of one of these machines (if this is "
            "an archive, unpack the archive first): "
            + ", ".join(f"'{path.relative_to(folder)}'" for path in found),
            source=str(folder),
        )
    raise BadInputError(
        "There is no saved machine. A failed test leaves a saved machine in its evidence, unless "
        "the guest could not be saved; 'checkpoint/not-saved.txt' then has the reason.",
        source=str(folder),
    )


def prune(evidence: Path, *, limit_mib: int, newest: Path) -> None:
    """Remove the oldest saved machines below an evidence folder until the rest fit in `limit_mib`.

    All other evidence and the saved machine in `newest` stay.
    """
    # Unlike Path.glob, glob.glob ignores a folder that another worker removes meanwhile.
    pattern = f"*/*/{CHECKPOINT}/{_DESCRIPTION}"
    found = [
        (evidence / name).parent
        for name in glob.glob(pattern, root_dir=evidence)  # noqa: PTH207
    ]
    left = limit_mib * (1 << 20)
    for folder in sorted(found, key=lambda each: (each == newest, _changed(each)), reverse=True):
        left -= allocated_bytes(folder)
        if left < 0 and folder != newest:
            shutil.rmtree(folder, ignore_errors=True)


def _changed(folder: Path) -> float:
    # Another worker may be removing the folder.
    with contextlib.suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def qemu_version(qemu: str) -> str:
    """Return the version of a QEMU program. Raises HarnessError if the program prints no version."""
    answer = LocalRunner().run([qemu, "--version"], timeout_s=_QUERY_S)
    if not answer.ok:
        raise HarnessError(f"'{qemu}' printed no version.\n{answer.render()}")
    return str(parse_qemu_version(answer.stdout))


def with_own_variables(spec: MachineSpec, folder: Path) -> MachineSpec:
    """Return `spec` with the firmware's writable variables in `folder`. This function is pure."""
    kernel = spec.kernel
    if not isinstance(kernel, Firmware) or kernel.flash is None:
        return spec
    flash = Flash(code=kernel.flash.code, variables=folder / _VARIABLES)
    return replace(spec, kernel=Firmware(flash=flash))


def _copy(file: Path, to: Path) -> None:
    """Copy a file of a bundle. The file may be sparse, and may come from somebody else."""
    result = LocalRunner().run(
        ["cp", "--reflink=auto", "--sparse=always", "--", str(file), str(to)], timeout_s=_CONVERT_S
    )
    if not result.ok:
        raise HarnessError(f"A file of the saved machine could not be copied.\n{result.render()}")


def _qemu_img(*words: str) -> None:
    result = LocalRunner().run(["qemu-img", *words], timeout_s=_CONVERT_S)
    if not result.ok:
        raise HarnessError(f"The disk of the machine could not be saved.\n{result.render()}")
