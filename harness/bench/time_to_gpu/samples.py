"""Defines the measurements of a run, and converts measurements to and from JSON for comparisons."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping  # noqa: TC003 - pydantic reads it at run time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import pydantic

from harness.datafile import read_data_file
from harness.errors import BadInputError

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1


class Experiment(str, enum.Enum):
    """The experiment in which a sample was measured."""

    SCALE_UP = "scale-up"
    """A fresh node."""
    POLICY_RESET = "policy-reset"
    """A node whose GPU capacity was cleared, and whose driver was then set up again."""
    TRIM = "trim"
    """A fresh prebaked node, with all trims of the boot path on, or one trim switched off."""


class Mode(str, enum.Enum):
    """The way in which the driver is installed on the node."""

    BUILD = "build-at-boot"
    PREBAKED = "prebaked"
    NEAR = "precompiled-near"
    FAR = "precompiled-far"
    OTHER_KERNEL = "prebaked-other-kernel"
    OWN = "own-provisioner"
    OWN_PREBAKED = "own-provisioner-prebaked"


class Payload(str, enum.Enum):
    """The driver that is measured."""

    STAND_IN = "stand-in"
    """A small module; its device nodes can be opened."""
    NVIDIA = "nvidia"
    """NVIDIA's own driver, which refuses to open a GPU that has no engine."""


class Trim(str, enum.Enum):
    """The variants of the trim experiment: all trims of the boot path are on, or one trim is off."""

    NONE_OFF = "all-trims"
    LOCAL_IMAGE = "without-local-image-check"
    ASYNC_REMOVAL = "without-async-removal"
    DEFERRED = "without-deferred-monitoring"


#: The name of each payload in reports.
PAYLOADS: Mapping[Payload, str] = {
    Payload.STAND_IN: "the stand-in driver",
    Payload.NVIDIA: "NVIDIA's own driver",
}

#: The effect of each trim, as clauses for the report.
TRIMS: Mapping[Trim, str] = {
    Trim.LOCAL_IMAGE: "a driver image that the node has is not pulled again",
    Trim.ASYNC_REMOVAL: "the removal of the driver image does not wait for containerd's collector",
    Trim.DEFERRED: "systemctl does not wait for the start of DCGM and its exporter",
}


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of the wait for a GPU, in seconds of the guest's clock since the node was ready."""

    name: str
    start_s: float
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class UnitTimes:
    """When a systemd unit last started and last became ready, in seconds since the node was ready."""

    name: str
    started_s: float
    ready_s: float


#: A time from which ratios are computed; reading a file refuses a time that is not above 0.
Seconds = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The wait of a ready node until its GPU capacity is last advertised, by the guest's clock."""

    experiment: Experiment
    variant: str
    wait_s: Seconds
    """The time from the moment the node is ready, or its policy is applied, until the GPU capacity is advertised."""
    allocated_s: Seconds | None
    """From the start of `wait_s` until the kubelet has allocated a GPU and opened its device node.

    None if NVIDIA's own driver refused to open an emulated GPU.
    """
    segments: tuple[Segment, ...] = ()
    """The parts of the critical path, in order; their sum is the wait."""
    units: tuple[UnitTimes, ...] = ()
    """The units that were started within the wait, in the order in which they became ready."""
    compile_s: float | None = None
    """How long DKMS compiled within the wait, according to DKMS's log; None if DKMS compiled nothing."""


@dataclass(frozen=True, kw_only=True)
class TeardownSample:
    """How long one teardown of a baked driver took, in seconds of the guest's clock."""

    way: str
    """The way of the teardown: `fast` or `dkms-remove`."""
    duration_s: Seconds


@dataclass(frozen=True, kw_only=True)
class OracleResult:
    """The differences between a node after a teardown and a node that never had the driver."""

    way: str
    differences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements of one task."""

    samples: tuple[Sample, ...] = ()
    teardowns: tuple[TeardownSample, ...] = ()
    oracle: tuple[OracleResult, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The conditions of the measurement, for the report and for a comparison."""

    accelerator: str
    is_emulated: bool
    """Whether the processor is emulated (TCG), so that seconds by themselves mean nothing."""
    image: str
    kernels: tuple[str, ...]
    driver: str
    provisioner: str
    started_at: str
    is_quick: bool
    registries: Mapping[str, str]
    """The simulated networks to the near and the far registry, by mode."""
    notes: tuple[str, ...] = ()
    host: str = ""
    duration_s: float = 0.0
    payload: Payload = Payload.STAND_IN


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """All measurements of one run."""

    conditions: Conditions
    samples: tuple[Sample, ...]
    teardowns: tuple[TeardownSample, ...] = ()
    oracle: tuple[OracleResult, ...] = ()

    def waits(self, experiment: Experiment, variant: str) -> list[float]:
        """Return the waits of a variant in the order of measurement, or an empty list without samples."""
        return [sample.wait_s for sample in self.of(experiment, variant)]

    def of(self, experiment: Experiment, variant: str) -> list[Sample]:
        """Return the samples of a variant in the order of measurement, or an empty list without samples."""
        return [
            sample
            for sample in self.samples
            if sample.experiment is experiment and sample.variant == variant
        ]

    def modes(self, experiment: Experiment) -> list[Mode]:
        """Return the modes that have samples in an experiment, in the order in which reports list modes."""
        return [mode for mode in Mode if self.waits(experiment, mode.value)]

    def teardown_times(self, way: str) -> list[float]:
        return [sample.duration_s for sample in self.teardowns if sample.way == way]

    def to_json(self) -> dict[str, object]:
        document: dict[str, object] = json.loads(json.dumps(asdict(self)))
        return document


_ADAPTER = pydantic.TypeAdapter(Benchmark)


def read_benchmark(file: Path) -> Benchmark:
    """Read the JSON file that a run of the benchmark has written.

    Raises BadInputError, which names the file, if the file is not a result of a run, or has another
    schema.
    """
    document = read_data_file(file, dict[str, object])
    if document.get("schema") != SCHEMA:
        raise BadInputError(
            f"A result of `harness bench time-to-gpu` with the schema {SCHEMA} was expected, but this "
            f"file has the schema {document.get('schema')!r}; run the benchmark again with this version.",
            source=str(file),
            key="schema",
        )
    try:
        return _ADAPTER.validate_python(document.get("measured"))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise BadInputError(
            f"The result cannot be read: {first['msg']}.",
            source=str(file),
            key=".".join(["measured", *map(str, first["loc"])]),
        ) from error
