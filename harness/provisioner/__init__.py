"""Provisioners: files and commands that set up a machine, and rules to read the result.

`Provisioner` declares a provisioner in Python. `harness.provisioner.yaml_file` reads a
`Provisioner` from a YAML file.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shlex
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from harness.argv import check_argv
from harness.cloudinit import GuestFile
from harness.errors import BadInputError, listed
from harness.provisioner.failed_command import noting_environment
from harness.provisioner.outcome import OutcomeDeclaration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.provisioning.command import Argv

#: The file in a machine that contains the exit code of the last provisioner command that ended in
#: this boot.
EXIT_CODE_PATH = "/run/gpu-node-exit-code"
#: The folder in a machine where `run-provisioner.sh` makes a numbered folder for each run.
RUNS_FOLDER = "/var/lib/cloud/instance/provisioner-runs"
#: The program that runs each command of a provisioner.
RUNNER_PATH = "/usr/local/lib/gpu-node-harness/run-provisioner.sh"
_RUNNER = Path(__file__).with_name("run-provisioner.sh")

#: The commands that have keys of their own in a provisioner's declaration.
BOOT, BAKE, TEARDOWN = "boot", "bake", "teardown"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ConfigurationFormat(Enum):
    """The format of a configuration file."""

    JSON = "json"
    YAML = "yaml"
    ENV = "env"


class NodeFact(Enum):
    """A fact about the requested node that a configuration file can contain."""

    HAS_GPUS = "has_gpus"
    GPU_COUNT = "gpu_count"
    DRIVER_VERSION = "driver_version"
    DRIVER_SHA = "driver_sha"
    TIME_LIMIT_MULTIPLIER = "time_limit_multiplier"
    """The factor for the provisioner's own time limits; left out if the node's host is not busy."""


@dataclass(frozen=True, kw_only=True)
class ConfigurationFile:
    """A file that tells the provisioner what kind of node to make.

    The file contains `values`, then one fact about the node for each key of `node_values`, then the
    values that the test requests. A later value replaces an earlier value of the same key. The file
    omits a fact that the node lacks, such as the driver's version on a node without a driver. In a
    bake, the file contains `bake_values` in place of values that a test requests.
    """

    path: str
    values: Mapping[str, object] = field(default_factory=dict)
    node_values: Mapping[str, NodeFact] = field(default_factory=dict)
    bake_values: Mapping[str, object] = field(default_factory=dict)
    format: ConfigurationFormat = ConfigurationFormat.JSON
    mode: int = 0o600

    def guest_file(
        self, facts: Mapping[NodeFact, object], requested: Mapping[str, object], *, source: str
    ) -> GuestFile:
        """Return the configuration file of one node; error messages name `source`.

        Raises BadInputError if a value can't be written in the file's format.
        """
        of_node = {
            key: facts[fact]
            for key, fact in self.node_values.items()
            if facts.get(fact) is not None
        }
        try:
            content = self._render({**self.values, **of_node, **requested}, source).encode()
        except (TypeError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise BadInputError(
                f"These values can't be written in the format '{self.format.value}' ({error}); use only "
                "texts, numbers, booleans, lists, and mappings whose keys are texts.",
                source=source,
                key="config.values",
            ) from error
        return GuestFile(path=self.path, content=content, mode=self.mode)

    def _render(self, values: Mapping[str, object], source: str) -> str:
        match self.format:
            case ConfigurationFormat.JSON:
                # JSON has no dates, so a date in YAML becomes a text.
                text = json.dumps(values, indent=2, sort_keys=True, default=str, allow_nan=False)
                return f"{text}\n"
            case ConfigurationFormat.YAML:
                return yaml.safe_dump(dict(values), allow_unicode=True)
            case ConfigurationFormat.ENV:
                return "".join(_variable(key, value, source) for key, value in values.items())


def _variable(key: str, value: object, source: str) -> str:
    """Return a line KEY=VALUE that a shell can source."""
    if not _VARIABLE.fullmatch(key) or not isinstance(value, (str, int, float)):
        raise BadInputError(
            "A file of the format 'env' maps names of shell variables to texts, numbers or "
            f"booleans, but '{key}' is {value!r}; use the format 'json'.",
            source=source,
            key=f"config.values.{key}",
        )
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{key}={shlex.quote(text)}\n"


@dataclass(frozen=True, kw_only=True)
class EvidenceDeclaration:
    """Additional evidence to collect: paths of files (with `*` and `?`), and named commands."""

    files: Sequence[str] = ()
    commands: Mapping[str, Argv] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Provisioner:
    """A project's declaration of a program that provisions nodes.

    Each command is a list of words and runs as root. At the first boot, cloud-init writes `files`
    and runs the command `run`, or the command `bake` if an image is baked. A test runs `teardown`
    or one of `commands` by `Node.provision`.
    """

    name: str
    """The provisioner's name, for messages and for `--provisioner`."""
    run: Argv
    """The command at boot."""
    source: str = ""
    """The file that declares the provisioner, for messages."""
    files: Sequence[GuestFile] = ()
    """Files that cloud-init writes into the machine."""
    folders: Sequence[str] = ()
    """Folders in the machine that contain nothing but `files`."""
    user_data: Mapping[str, object] = field(default_factory=dict)
    """The provisioner's own cloud-config, merged with the harness's cloud-config."""
    user_data_source: str = ""
    """The file that contains `user_data`, for messages."""
    bake: Argv | None = None
    """The command that bakes an image."""
    teardown: Argv | None = None
    """The command that removes what was provisioned or baked."""
    commands: Mapping[str, Argv] = field(default_factory=dict)
    """Further commands, by name."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of each command."""
    configuration: ConfigurationFile | None = None
    """A configuration file, written for each node."""
    outcome: OutcomeDeclaration = field(default_factory=OutcomeDeclaration)
    """How to read the result."""
    evidence: EvidenceDeclaration = field(default_factory=EvidenceDeclaration)
    """Additional evidence to collect."""
    metadata_path: str | None = None
    """The JSON file from which the provisioner reads the virtual machine's tags and size."""
    timeout_s: float = 60.0
    """Seconds that a first boot may take under KVM; TCG gets ten times as many."""
    bake_key: str | None = None
    """A key of everything on which the result of a bake depends; by default the digest of all inputs."""

    def __post_init__(self) -> None:
        for name, argv in self._commands().items():
            check_argv(argv, source=self.where, key="run" if name == BOOT else name)
        for key, value in self.environment.items():
            if not _VARIABLE.fullmatch(key) or "\0" in value:
                raise BadInputError(
                    "A variable needs a name such as 'MY_MODE', and a value that is a text without NUL, "
                    f"but '{key}' has the value {value!r}.",
                    source=self.where,
                    key=f"environment.{key}",
                )
        paths = [posixpath.normpath(file.path) for file in self.files]
        if self.configuration is not None:
            paths.append(posixpath.normpath(self.configuration.path))
        if twice := sorted({path for path in paths if paths.count(path) > 1}):
            raise BadInputError(
                f"Two files have the path {listed(twice)} in the machine; keep one of them.",
                source=self.where,
                key="files",
            )

    @property
    def where(self) -> str:
        """Return the provisioner's file, or the provisioner's name if there is no file, for messages."""
        return self.source or f"Provisioner '{self.name}'"

    def _commands(self) -> dict[str, Argv]:
        own = {BOOT: self.run, BAKE: self.bake, TEARDOWN: self.teardown}
        present = {name: argv for name, argv in own.items() if argv is not None}
        return {**self.commands, **present}

    def command(self, name: str) -> Argv:
        """Return the argv of the command `name`. Raises BadInputError if `name` is not declared."""
        commands = self._commands()
        if name not in commands:
            raise BadInputError(
                f"Provisioner '{self.name}' declares no command '{name}', only "
                f"{listed(commands)}; declare '{name}'.",
                source=self.where,
                key=name,
            )
        return commands[name]

    def guest_command(self, name: str, *, output: str = "") -> tuple[str, ...]:
        """Return the argv that runs the command `name` in a guest, as a run below RUNS_FOLDER.

        If `output` names a file, the command's output is both printed and appended to that file.
        The command's exit code is written to a file, since cloud-init reports a failure without the
        exit code. Raises BadInputError if the command is not declared.
        """
        declared = self.outcome
        paths = (
            None if declared.file is None else declared.file.path,
            None if declared.events is None else declared.events.path,
            None if declared.log is None else declared.log.path,
        )
        command = self.command(name)
        environment = {**noting_environment(command, self.files), **self.environment}
        variables = [f"{key}={value}" for key, value in environment.items()]
        return (
            *("sh", RUNNER_PATH, name),
            *(path or "" for path in paths),
            output,
            *(["env", *variables] if variables else []),
            *command,
        )

    def guest_files(
        self, facts: Mapping[NodeFact, object], requested: Mapping[str, object]
    ) -> tuple[GuestFile, ...]:
        """Return the provisioner's files for a node with the given facts and requested values.

        Raises BadInputError if values are requested but the provisioner declares no configuration
        file.
        """
        if self.configuration is None:
            if requested:
                raise BadInputError(
                    f"Provisioner '{self.name}' declares no configuration file, but a test asks for "
                    f"{listed(requested)}; declare a configuration "
                    "file, or leave 'config' of the request empty.",
                    source=self.where,
                    key="config",
                )
            return tuple(self.files)
        return (*self.files, self.configuration.guest_file(facts, requested, source=self.where))

    @property
    def bake_values(self) -> Mapping[str, object]:
        """Return the configuration values that a bake requests."""
        return {} if self.configuration is None else self.configuration.bake_values

    @property
    def digest(self) -> str:
        """Return a key that identifies all inputs of a bake, except `bake_values`."""
        if self.bake_key is not None:
            return self.bake_key
        configuration = self.configuration
        parts = {
            "files": [
                (file.path, file.mode, hashlib.sha256(file.content).hexdigest())
                for file in self.files
            ],
            "user_data": self.user_data,
            "environment": dict(self.environment),
            "bake": list(self.bake or ()),
            "configuration": None
            if configuration is None
            else (
                configuration.path,
                configuration.mode,
                configuration.format.value,
                dict(configuration.values),
                {key: fact.value for key, fact in configuration.node_values.items()},
            ),
        }
        canonical = json.dumps(parts, default=str)
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def configuration_paths(self) -> tuple[str, ...]:
        """Return the path of the configuration file, if one is declared."""
        return () if self.configuration is None else (self.configuration.path,)

    @property
    def outcome_paths(self) -> tuple[str, ...]:
        """Return the path of the outcome file, if one is declared."""
        return () if self.outcome.file is None else (self.outcome.file.path,)


def runner_file() -> GuestFile:
    """Return the program that runs a provisioner's commands in a guest."""
    return GuestFile(path=RUNNER_PATH, content=_RUNNER.read_bytes(), mode=0o755)
