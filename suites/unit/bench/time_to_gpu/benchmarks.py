"""Makes benchmark results for tests, from waits that a test chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.samples import (
    Benchmark,
    Conditions,
    Experiment,
    Mode,
    OracleResult,
    Payload,
    Sample,
    Segment,
    TeardownSample,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUILDS = (10.0, 11.0, 9.0, 10.5, 9.5)
PREBAKED = (4.0, 4.2, 3.8, 4.1, 3.9)

Waits = tuple[Experiment, str]


def conditions(*, is_emulated: bool = True, payload: Payload = Payload.STAND_IN) -> Conditions:
    return Conditions(
        accelerator="tcg" if is_emulated else "kvm",
        is_emulated=is_emulated,
        image="debian-12",
        kernels=("6.1.0-56",),
        driver="registry/driver:1-2",
        provisioner="gpu-node",
        started_at="2026-08-01T00:00:00+00:00",
        is_quick=False,
        registries={Mode.NEAR.value: "1 ms round trip"},
        notes=("a note with <angle brackets>",),
        payload=payload,
    )


def sample(
    experiment: Experiment, variant: str, wait_s: float, payload: Payload = Payload.STAND_IN
) -> Sample:
    """Return a sample whose install takes 0.8 of its wait; half of a build's install is compilation."""
    install_s = 0.8 * wait_s
    return Sample(
        experiment=experiment,
        variant=variant,
        wait_s=wait_s,
        allocated_s=None if payload is Payload.NVIDIA else wait_s + 0.1,
        segments=(
            Segment(name="install-driver", start_s=0.0, duration_s=install_s),
            Segment(name="registration", start_s=install_s, duration_s=wait_s - install_s),
        ),
        compile_s=install_s / 2 if variant == Mode.BUILD.value else None,
    )


def benchmark(
    waits: Mapping[Waits, Sequence[float]] | None = None,
    *,
    is_emulated: bool = True,
    teardowns: Mapping[str, Sequence[float]] | None = None,
    oracle: Sequence[OracleResult] = (),
    payload: Payload = Payload.STAND_IN,
) -> Benchmark:
    """Return a benchmark with these waits, by default of two modes of fresh nodes."""
    waits = waits or {
        (Experiment.SCALE_UP, Mode.BUILD.value): BUILDS,
        (Experiment.SCALE_UP, Mode.PREBAKED.value): PREBAKED,
    }
    return Benchmark(
        conditions=conditions(is_emulated=is_emulated, payload=payload),
        samples=tuple(
            sample(experiment, variant, wait, payload)
            for (experiment, variant), group in waits.items()
            for wait in group
        ),
        teardowns=tuple(
            TeardownSample(way=way, duration_s=duration)
            for way, group in (teardowns or {}).items()
            for duration in group
        ),
        oracle=tuple(oracle),
    )
