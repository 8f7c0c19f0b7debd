"""Tests of `harness bench time-to-gpu` on machines: the report about the nodes of a run.

`./dev test` leaves these tests out; `./dev test --all` and `pytest suites/bench -n 1` run them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.bench.time_to_gpu.critical_path import PROVISIONER, REGISTRATION
from harness.bench.time_to_gpu.run import Options, run_benchmark
from harness.bench.time_to_gpu.samples import Benchmark, Experiment, Mode
from harness.provisioner.yaml_file import read_provisioner

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.lab import Lab

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.vm_driver("qemu", reason="the registry is reached by QEMU's user network"),
]
_OWN = Path(__file__).with_name("own-provisioner.yaml")


@pytest.fixture
def measure(lab: Lab) -> Callable[[Options], Benchmark]:
    """Return a function that runs the benchmark in the lab of this run."""

    def run(options: Options) -> Benchmark:
        return run_benchmark(lab, options, lambda _sentence: None)

    return run


def test_each_sample_is_a_complete_critical_path_measured_by_the_guests_clock(
    measure: Callable[[Options], Benchmark],
) -> None:
    """A prebaked node compiles nothing; a node that builds its driver compiles during its wait."""
    found = measure(
        Options(
            samples=1,
            resets=1,
            trims=0,
            teardowns=1,
            modes=[Mode.PREBAKED],
            has_registry=False,
        )
    )

    for sample in found.samples:
        assert sum(part.duration_s for part in sample.segments) == pytest.approx(
            sample.wait_s, abs=0.01
        )
        assert sample.allocated_s is not None
        assert sample.allocated_s >= sample.wait_s
        assert REGISTRATION in {part.name for part in sample.segments}
    (build,) = found.of(Experiment.SCALE_UP, Mode.BUILD.value)
    (prebaked,) = found.of(Experiment.SCALE_UP, Mode.PREBAKED.value)
    assert build.compile_s is not None
    assert prebaked.compile_s is None
    assert "install-driver" in {part.name for part in build.segments}
    assert "install-driver" not in {part.name for part in prebaked.segments}
    assert len(found.waits(Experiment.POLICY_RESET, Mode.PREBAKED.value)) == 1
    assert {result.way: result.differences for result in found.oracle} == {
        "fast": (),
        "dkms-remove": (),
    }


def test_critical_path_shows_a_provisioner_without_steps_as_one_part(
    measure: Callable[[Options], Benchmark],
) -> None:
    """The provisioner makes device nodes and starts no plugin.

    The plugin starts later, as a DaemonSet would start it.
    """
    found = measure(
        Options(
            samples=1,
            resets=0,
            trims=0,
            teardowns=0,
            modes=[Mode.OWN],
            has_registry=False,
            own=read_provisioner(_OWN),
        )
    )

    (own,) = found.of(Experiment.SCALE_UP, Mode.OWN.value)
    assert {part.name for part in own.segments} == {PROVISIONER, REGISTRATION}
