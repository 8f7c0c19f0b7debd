"""Reads a provisioner from its YAML file."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from harness.cloudinit import GuestFile
from harness.datafile import line_of, read_data_file
from harness.errors import BadInputError
from harness.provisioner import (
    BAKE,
    BOOT,
    TEARDOWN,
    ConfigurationFile,
    ConfigurationFormat,
    EvidenceDeclaration,
    NodeFact,
    Provisioner,
)
from harness.provisioner.outcome import FORBID, GuestPath, OutcomeDeclaration
from harness.provisioner.user_data import read_user_data

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The user-data contains all files of a provisioner, and cloud-init keeps user-data in memory.
_FILES_LIMIT_MIB = 64
_MODE = re.compile(r"0?[0-7]{3,4}")


def _words(value: object) -> object:
    if isinstance(value, str):
        # The error is a ValueError, since pydantic reports a ValueError but does not catch a
        # TypeError.
        message = "A command is a list of its words, such as [/opt/my/provision.sh, boot]"
        raise ValueError(message)  # noqa: TRY004
    return value


def _mode(value: object) -> object:
    if not isinstance(value, str) or not _MODE.fullmatch(value):
        raise ValueError('An octal mode in quotes, such as "0755", is expected here')
    return value


Text = Annotated[str, Field(min_length=1)]
Argv = Annotated[tuple[Text, ...], BeforeValidator(_words), Field(min_length=1)]
Mode = Annotated[str, BeforeValidator(_mode)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([-.][a-z0-9]+)*$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
#: The name of the file with a command's output; the exit code is in NAME.exit-code beside it.
OutputName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """A file or a folder of the project that is put into the machine."""

    __pydantic_config__ = FORBID

    source: Text
    """Path of a file, or of a folder with all its files, relative to the provisioner's file."""
    mode: Mode | None = None
    """Octal mode of the file, in quotes; by default 0755 if the source is executable, else 0644."""


@dataclass(frozen=True, kw_only=True)
class ConfigurationKeys:
    """A file that tells the provisioner what kind of node to make."""

    __pydantic_config__ = FORBID

    path: GuestPath
    """Path of the file in the machine."""
    format: ConfigurationFormat = ConfigurationFormat.JSON
    """`json`, `yaml`, or `env`: lines KEY=VALUE for a shell."""
    values: Mapping[str, object] = field(default_factory=dict)
    """Values of the file; `config` of a test's request is added to them."""
    node_values: Mapping[str, NodeFact] = field(default_factory=dict)
    """Values that depend on the node: `has_gpus`, `gpu_count`, `driver_version`, `driver_sha`,
    `time_limit_multiplier`."""
    bake_values: Mapping[str, object] = field(default_factory=dict)
    """Values that a bake adds."""
    mode: Mode = "0600"
    """Octal mode of the file, in quotes."""


@dataclass(frozen=True, kw_only=True)
class EvidenceKeys:
    """Additional evidence to collect from a node."""

    __pydantic_config__ = FORBID

    files: tuple[GuestPath, ...] = ()
    """Paths of files in the machine; `*` and `?` match within a name."""
    commands: Mapping[OutputName, Argv] = field(default_factory=dict)
    """Commands that only read from the node. A key is the name of the file for the command's output."""


@dataclass(frozen=True, kw_only=True)
class ProvisionerFile:
    """The YAML file that declares a provisioner."""

    __pydantic_config__ = FORBID

    schema: Literal[1]
    """Always 1."""
    name: Name
    """The provisioner's name, for messages."""
    run: Argv
    """The command at the first boot, as a list of words. Commands run as root."""
    files: Mapping[GuestPath, FileSource] = field(default_factory=dict)
    """Files and folders to put into the machine, by their paths there."""
    user_data: Text | None = None
    """Path of a `#cloud-config` that is merged with the harness's cloud-config."""
    bake: Argv | None = None
    """The command that bakes an image."""
    teardown: Argv | None = None
    """The command that removes what was provisioned or baked."""
    commands: Mapping[Name, Argv] = field(default_factory=dict)
    """Further commands by name, for `node.provision(NAME)`."""
    environment: Mapping[Variable, str] = field(default_factory=dict)
    """Environment variables of each command."""
    config: ConfigurationKeys | None = None
    outcome: OutcomeDeclaration = field(default_factory=OutcomeDeclaration)
    evidence: EvidenceKeys = field(default_factory=EvidenceKeys)
    metadata: GuestPath | None = None
    """Path in the machine of the JSON file with the tags and the size of a virtual machine."""
    timeout_s: Annotated[float, Field(gt=0, le=7200)] = 60.0
    """Seconds that a first boot may take under KVM; under TCG it may take ten times as long."""


def read_provisioner(path: Path) -> Provisioner:
    """Read the provisioner's YAML file `path`, and the files that this YAML file names.

    Raises BadInputError, which names the file and the key, if the YAML file or a file that it names
    is invalid.
    """
    given = read_data_file(path, ProvisionerFile)
    files: list[GuestFile] = []
    left = _FILES_LIMIT_MIB << 20
    for file in (file for target in given.files for file in _files_of(target, given, path)):
        files.append(file)
        left -= len(file.content)
        if left < 0:
            raise BadInputError(
                f"These files have more than {_FILES_LIMIT_MIB} MiB together, which is too much for cloud-init's "
                "user-data; put large files into the image.",
                source=str(path),
                key="files",
            )
    for name in given.commands:
        if name in {BOOT, BAKE, TEARDOWN}:
            raise BadInputError(
                f"The command '{name}' can't be in 'commands'; declare the command by the key "
                f"'{'run' if name == BOOT else name}' of the provisioner.",
                source=str(path),
                line=line_of(path, ("commands", name)),
                key=f"commands.{name}",
            )
    return Provisioner(
        name=given.name,
        source=str(path),
        run=given.run,
        files=files,
        folders=[
            target for target, each in given.files.items() if (path.parent / each.source).is_dir()
        ],
        user_data={} if given.user_data is None else read_user_data(path, given.user_data),
        user_data_source=str(path.parent / (given.user_data or "")),
        bake=given.bake,
        teardown=given.teardown,
        commands=given.commands,
        environment=given.environment,
        configuration=None if given.config is None else _configuration(given.config, path),
        outcome=given.outcome,
        evidence=EvidenceDeclaration(files=given.evidence.files, commands=given.evidence.commands),
        metadata_path=given.metadata,
        timeout_s=given.timeout_s,
    )


def _configuration(keys: ConfigurationKeys, file: Path) -> ConfigurationFile:
    configuration = ConfigurationFile(
        path=keys.path,
        format=keys.format,
        values=keys.values,
        node_values=keys.node_values,
        bake_values=keys.bake_values,
        mode=int(keys.mode, 8),
    )
    # A value that cannot be written is refused before a machine boots.
    configuration.guest_file({}, keys.bake_values, source=str(file))
    return configuration


def _files_of(target: str, given: ProvisionerFile, file: Path) -> Iterator[GuestFile]:
    """Yield the files of the key `target` in `files`; a folder stands for all files below it."""
    wanted = given.files[target]
    source = file.parent / wanted.source
    mode = None if wanted.mode is None else int(wanted.mode, 8)
    location = ("files", target, "source")
    try:
        if not source.is_dir():
            yield _guest_file(target, source, mode)
            return
        found = sorted(_paths_below(source))
        if mode is not None or not found:
            raise BadInputError(
                f"The folder '{source}' contains no file."
                if not found
                else f"'{source}' is a folder, whose files keep their own modes; remove 'mode'.",
                source=str(file),
                line=line_of(file, location),
                key=f"files.{target}",
            )
        for each in found:
            yield _guest_file(f"{target}/{each.relative_to(source).as_posix()}", each, None)
    except OSError as error:
        raise BadInputError(
            f"The file '{error.filename or source}' cannot be read ({error.strerror}).",
            source=str(file),
            line=line_of(file, location),
            key=".".join(location),
        ) from error


def _paths_below(folder: Path) -> Iterator[Path]:
    """Yield the files and links below a folder; raises OSError if a folder cannot be read."""

    def refuse(error: OSError) -> None:
        raise error

    for top, folders, names in os.walk(folder, onerror=refuse):
        # `walk` does not follow a link to a folder, so `_guest_file` refuses the link.
        links = (name for name in folders if Path(top, name).is_symlink())
        yield from (Path(top, name) for name in (*names, *links))


def _guest_file(target: str, source: Path, mode: int | None) -> GuestFile:
    found = source.stat().st_mode
    if not stat.S_ISREG(found):
        raise OSError(errno.EINVAL, "It is not a regular file", str(source))
    with source.open("rb") as file:
        content = file.read((_FILES_LIMIT_MIB << 20) + 1)
    if mode is None:
        mode = 0o755 if found & 0o100 else 0o644
    return GuestFile(path=target, content=content, mode=mode)
