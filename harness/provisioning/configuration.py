"""Reads the configuration: a JSON file, whose fields environment variables may override."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from .cdi import Engine
from .nvidia import CANONICAL_REGISTRY, DriverImage
from .prebake import DEFAULT_RECORD_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PREBAKE_FLAG = "NVIDIA_CUDA_PREBAKE"
BOOT_RETRY_BUDGET_S = 780.0
BAKE_RETRY_BUDGET_S = 7200.0
"""This limit is longer than the limit of a boot: all attempts of a bake may take 1.5 hours, and no
node waits for a bake."""
WHOLE_LIMIT_MARGIN_S = 120.0
"""Seconds from the end of retries to the limit of the run; for a boot, from 780 s to AKS's 15 minutes."""


class ConfigurationError(Exception):
    """A field of the configuration is wrong; the message names the field and its source."""


class _InvalidValueError(Exception):
    """The value of a field is invalid; the message says which values are valid."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The fields of provisioning's configuration, which does not contain the machine's tags."""

    gpu_node: bool = False
    """The node has a GPU; a node without one gets no driver."""
    gpu_driver_type: str | None = None
    """`cuda-lts`, `cuda`, `grid`, …; by default the VM size's kind, else `cuda-lts`."""
    gpu_driver_version: str | None = None
    """The driver's version: the first half of the image's tag."""
    gpu_image_sha: str | None = None
    """The second half of the image's tag."""
    config_gpu_driver_if_needed: bool = False
    """Install the driver; otherwise use the present driver, unless this driver does not work."""
    gpu_needs_fabric_manager: bool = False
    """Start the fabric manager; otherwise stop a fabric manager that came with the image."""
    gpu_instance_profile: str | None = None
    """Partition the GPU: `MIG1g`, `MIG2g`, `MIG3g`, `MIG4g` or `MIG7g`."""
    mig_node: bool = False
    """True if a profile is set; a value that contradicts the profile is refused."""
    nvidia_mig_strategy: str | None = None
    """`Mixed`; any other value means single."""
    nvidia_mig_profile_layout: str | None = None
    """Passed to the unit `mig-partition`, which does not use it."""
    enable_managed_gpu: bool = False
    """Run the device plugin, DCGM and its exporter."""
    enable_managed_gpu_dra: bool = False
    """Run the DRA driver in place of the device plugin."""
    mcr_repository_base: str = CANONICAL_REGISTRY
    """The registry to pull from; the image is renamed to its canonical name."""
    precompiled_image: str | None = None
    """An image such as `nvcr.io/nvidia/driver`. Each tag of the image has the driver compiled for one
    kernel. A node that would otherwise build its driver uses this image."""
    precompiled_fallback: bool = True
    """Build the driver if that image has no tag for the node's kernel; otherwise the run fails."""
    container_runtime: Engine = Engine.CONTAINERD
    """The runtime of pods, `containerd` or `cri-o`; the driver image always runs in containerd."""
    cdi_enabled: bool = True
    """Give containers their GPU by CDI; otherwise by the nvidia runtime's automatic mode, or by a
    hook of CRI-O."""
    feature_flags: tuple[str, ...] = ()
    """Names separated by commas; `NVIDIA_CUDA_PREBAKE` makes `bake` build the driver."""
    gpu_dkms_marker_file: str = DEFAULT_RECORD_PATH
    """Path of the prebake record."""
    retry_budget_s: float | None = None
    """Seconds after the start when retries stop; None means the default of the command."""
    time_limit_multiplier: float = 1.0
    """Multiplies the time limit of each command and `retry_budget_s`. Raise it for a virtual machine on
    an overloaded host."""

    @property
    def has_prebake_flag(self) -> bool:
        return PREBAKE_FLAG in self.feature_flags

    def budget_s(self, *, is_bake: bool) -> float:
        """Return the number of seconds from the start of the run until retries stop."""
        budget_s = self.retry_budget_s
        if budget_s is None:
            budget_s = BAKE_RETRY_BUDGET_S if is_bake else BOOT_RETRY_BUDGET_S
        return budget_s * self.time_limit_multiplier

    def image(self, driver_type: str) -> DriverImage:
        """Return the driver image for a driver type.

        Raises ConfigurationError if the fields that name the image are not set.
        """
        if self.gpu_driver_version is None:
            raise ConfigurationError(_missing("gpu_driver_version"))
        if self.gpu_image_sha is None:
            raise ConfigurationError(_missing("gpu_image_sha"))
        return DriverImage(
            driver_type=driver_type,
            version=self.gpu_driver_version,
            sha=self.gpu_image_sha,
            registry=self.mcr_repository_base,
        )


def _missing(key: str) -> str:
    return f"The field '{key}' is not set, and a node that gets a driver needs it."


def load_configuration(path: Path | None, environment: Mapping[str, str]) -> Configuration:
    """Read a JSON file, override fields by environment variables, and validate the fields.

    The environment variable of a field has the field's name in upper case.

    Raises ConfigurationError, which names the invalid field, or names the file if the file is not a
    JSON object.
    """
    if path is None:
        return parse_configuration({}, environment)
    try:
        document = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(
            f"The configuration '{path}' cannot be read: {error.strerror}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The configuration '{path}' is not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"The configuration '{path}' is a JSON {type(document).__name__}, expected an object."
        )
    return parse_configuration(document, environment)


def parse_configuration(
    document: Mapping[str, object], environment: Mapping[str, str]
) -> Configuration:
    """Validate the fields of a JSON document, and environment variables that override fields.

    Raises ConfigurationError, which names the invalid field.
    """
    for key in document:
        if key not in _PARSERS:
            raise ConfigurationError(
                f"The field '{key}' is unknown; the known fields are: {', '.join(sorted(_PARSERS))}."
            )
    values: dict[str, object] = {}
    for key, parse in _PARSERS.items():
        name = key.upper()
        if name in environment:
            values[key] = _parse(parse, environment[name], f"environment variable '{name}'")
        elif key in document:
            values[key] = _parse(parse, document[key], f"field '{key}'")
    given = {key: value for key, value in values.items() if value is not None}
    profile = given.get("gpu_instance_profile")
    if given.setdefault("mig_node", profile is not None) != (profile is not None):
        raise ConfigurationError(
            "The field 'mig_node' contradicts 'gpu_instance_profile': 'mig_node' must be true if a "
            "profile is set, and false if no profile is set."
        )
    return Configuration(**given)  # type: ignore[arg-type]  # each parser gives its field's type


def _parse(parse: Callable[[object], object], value: object, where: str) -> object:
    if value is None or value == "":
        return None
    try:
        return parse(value)
    except _InvalidValueError as error:
        raise ConfigurationError(f"The {where} must be {error}, but is {value!r:.80}.") from error


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise _InvalidValueError("either true or false")


def _literal_true(value: object) -> bool:
    """Read a field that AKS compares with the literal `true`."""
    if not isinstance(value, (bool, str)):
        raise _InvalidValueError("a boolean or a string")
    return value in (True, "true")


def _text(value: object, *, pattern: str, must_be: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise _InvalidValueError(must_be)
    return value


def _registry(value: object) -> str:
    name = _text(
        value,
        pattern=r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[a-z0-9][a-z0-9._-]*)*/*",
        must_be="a registry such as mcr.microsoft.com or localhost:5000, without a scheme",
    )
    return name.rstrip("/")


def _image_name(value: object) -> str:
    return _text(
        value,
        pattern=r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[a-z0-9][a-z0-9._-]*)+",
        must_be="an image with its registry and without a tag, such as nvcr.io/nvidia/driver",
    )


def _flags(value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise _InvalidValueError("names with commas between them")
    return tuple(flag.strip() for flag in value.split(",") if flag.strip())


def _engine(value: object) -> Engine:
    try:
        return Engine(value)
    except ValueError:
        names = " or ".join(engine.value for engine in Engine)
        raise _InvalidValueError(names) from None


def _file_path(value: object) -> str:
    must_be = "an absolute path of a file"
    path = _text(value, pattern=r"/.*[^/]", must_be=must_be)
    if not path.isprintable() or path.endswith("/."):
        raise _InvalidValueError(must_be)
    if ".." in path.split("/"):
        raise _InvalidValueError("an absolute path without '..'")
    return path


def _number(value: object, must_be: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _InvalidValueError(must_be)
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise _InvalidValueError(must_be) from None


def _seconds(value: object) -> float:
    seconds = _number(value, "a number of seconds")
    if not 0 < seconds <= 86400:  # false for nan, too
        raise _InvalidValueError("a number of seconds above 0 and at most 86400")
    return seconds


def _multiplier(value: object) -> float:
    must_be = "a number from 1 to 1000"
    multiplier = _number(value, must_be)
    if not 1 <= multiplier <= 1000:  # false for nan, too
        raise _InvalidValueError(must_be)
    return multiplier


_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_PARSERS: dict[str, Callable[[object], object]] = {
    "gpu_node": _switch,
    "gpu_driver_type": partial(
        _text, pattern=r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", must_be="a type such as cuda-lts"
    ),
    "gpu_driver_version": partial(
        _text, pattern=r"[0-9]+(\.[0-9]+){1,3}", must_be="a version such as 580.126.09"
    ),
    "gpu_image_sha": partial(
        _text, pattern=_WORD, must_be="the part of an image tag after the driver's version"
    ),
    "config_gpu_driver_if_needed": _literal_true,
    "gpu_needs_fabric_manager": _switch,
    "gpu_instance_profile": partial(_text, pattern=_WORD, must_be="a profile such as MIG1g"),
    "mig_node": _switch,
    "nvidia_mig_strategy": partial(_text, pattern=r"[A-Za-z]+", must_be="None, Single or Mixed"),
    "nvidia_mig_profile_layout": partial(
        _text, pattern=r"[A-Za-z0-9.,:;+_-]+", must_be="a layout without spaces"
    ),
    "enable_managed_gpu": _switch,
    "enable_managed_gpu_dra": _switch,
    "mcr_repository_base": _registry,
    "precompiled_image": _image_name,
    "precompiled_fallback": _switch,
    "container_runtime": _engine,
    "cdi_enabled": _switch,
    "feature_flags": _flags,
    "gpu_dkms_marker_file": _file_path,
    "retry_budget_s": _seconds,
    "time_limit_multiplier": _multiplier,
}
assert set(_PARSERS) == {field.name for field in fields(Configuration)}  # noqa: S101  # at import
