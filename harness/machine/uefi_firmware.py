"""Finds this host's UEFI firmware by QEMU's firmware descriptors.

Packages, administrators and users describe firmware in JSON files. QEMU's docs/interop/firmware.json
defines the content and the folders of these files, and which of several files with the same name takes
effect.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pydantic

from harness.errors import BadInputError, RequirementError
from harness.foreign_json import parse_json

_SYSTEM_FOLDERS = (Path("/usr/share/qemu/firmware"), Path("/etc/qemu/firmware"))
_ARCHITECTURE = "x86_64"
#: A version of q35 that does not exist yet: a descriptor's glob has to match the newest q35 of
#: every QEMU.
_MACHINE = "pc-q35-99.0"
#: Features that machines do not support, each with a phrase for messages.
_UNSUPPORTED = {
    "requires-smm": "it requires SMM",
    "secure-boot": "it implements Secure Boot",
    "enrolled-keys": "it has Secure Boot keys enrolled",
}
_INSTALL = "install one with 'apt-get install --no-install-recommends ovmf'"


@dataclass(frozen=True, kw_only=True)
class UefiFirmware:
    """Firmware code, which machines share, and variables, of which each machine gets a copy."""

    code: Path
    variables: Path


class _FlashFile(pydantic.BaseModel):
    filename: Path
    format: str


class _Mapping(pydantic.BaseModel):
    """How QEMU maps the firmware into memory.

    `mode` exists since QEMU 7.0. Without `mode`, code and variables are two files.
    """

    device: str
    mode: str = "split"
    executable: _FlashFile | None = None
    nvram_template: Annotated[_FlashFile | None, pydantic.Field(alias="nvram-template")] = None


class _Target(pydantic.BaseModel):
    architecture: str
    machines: Sequence[str]


class _Descriptor(pydantic.BaseModel):
    interface_types: Annotated[Sequence[str], pydantic.Field(alias="interface-types")]
    mapping: _Mapping
    targets: Sequence[_Target]
    features: Sequence[str]


def find_uefi_firmware(folders: Sequence[Path] | None = None) -> UefiFirmware:
    """Return the firmware of the first descriptor that fits machines: UEFI, x86-64, q35.

    `folders` are in order from the general to the specific folder. A file replaces a file of the
    same name in a more general folder. An empty file hides that file. The first fitting descriptor
    in the order of file names is used. Raises RequirementError if no descriptor fits, and
    BadInputError for a descriptor that can't be parsed.
    """
    folders = descriptor_folders() if folders is None else folders
    files = {file.name: file for folder in folders for file in folder.glob("*.json")}
    refused: list[str] = []
    for _, file in sorted(files.items()):
        content = _read(file)
        if not content:
            continue
        found = _firmware_of(_parse(file, content))
        if isinstance(found, UefiFirmware):
            return found
        refused.append(f"'{file}' does not fit: {found}")
    searched = ", ".join(f"'{folder}'" for folder in folders)
    raise RequirementError(
        f"Booting by UEFI needs a firmware descriptor in {searched} for UEFI on q35, without SMM and "
        f"without Secure Boot; {'; '.join(refused) or 'there is none at all'}. On Debian and Ubuntu, "
        f"{_INSTALL}."
    )


def descriptor_folders() -> tuple[Path, ...]:
    """Return the folders of descriptors, from the distribution's to the user's."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        return (*_SYSTEM_FOLDERS, Path(config).expanduser() / "qemu/firmware")
    except RuntimeError:
        # The user has no home folder.
        return _SYSTEM_FOLDERS


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadInputError(
            f"The firmware descriptor can't be read ({error.strerror}).", source=str(file)
        ) from error


def _parse(file: Path, content: bytes) -> _Descriptor:
    try:
        parse_json(content)
        return _Descriptor.model_validate_json(content)
    except ValueError as error:
        said, key = str(error), None
        if isinstance(error, pydantic.ValidationError):
            first = error.errors(include_url=False)[0]
            said, key = first["msg"], ".".join(map(str, first["loc"])) or None
        raise BadInputError(
            f"The firmware descriptor is invalid: {said}. Correct this file, or hide it by an empty file "
            f"'{descriptor_folders()[-1] / file.name}'.",
            source=str(file),
            key=key,
        ) from error


def _firmware_of(descriptor: _Descriptor) -> UefiFirmware | str:
    """Return the described firmware, or why machines can't use it."""
    if "uefi" not in descriptor.interface_types:
        return "it is not UEFI"
    if not any(_fits(target) for target in descriptor.targets):
        return f"it is not for q35 of {_ARCHITECTURE}"
    for feature, reason in _UNSUPPORTED.items():
        if feature in descriptor.features:
            return reason
    return _files_of(descriptor.mapping)


def _files_of(mapping: _Mapping) -> UefiFirmware | str:
    """Return the files of a firmware, or why machines can't use them."""
    code, variables = mapping.executable, mapping.nvram_template
    if mapping.device != "flash" or mapping.mode != "split" or code is None or variables is None:
        return "its code and variables are not two flash files"
    for file in (code, variables):
        if file.format != "raw":
            return f"'{file.filename}' is not a raw image, but {file.format}"
        if not file.filename.is_file():
            return f"its file '{file.filename}' does not exist"
    return UefiFirmware(code=code.filename, variables=variables.filename)


def _fits(target: _Target) -> bool:
    return target.architecture == _ARCHITECTURE and any(
        fnmatch.fnmatchcase(_MACHINE, pattern) for pattern in target.machines
    )
