"""Measures how many accesses per second an emulated GPU answers over each transport."""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.gpu.serving import serve_gpu
from harness.gpu.transport import Transport
from harness.provisioning.command import spawn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.gpu import GpuModel

#: The measures of each transport; accesses have 32 bits and are made one after another.
GPU_MEASURES: Mapping[str, str] = {
    "config_reads_per_s": "reads of configuration space that the device answers in a second",
    "bar_reads_per_s": "reads of a register in BAR 0 that the device answers in a second",
}

_APERTURE_MIB = 256 << 10
_END_S = 60.0


@dataclass(frozen=True, kw_only=True)
class GpuRates:
    """The figures of one transport; each figure is the median of several runs."""

    config_reads_per_s: float
    bar_reads_per_s: float


def measure_gpu(model: GpuModel, *, runs: int, seconds: float) -> Mapping[Transport, GpuRates]:
    """Measure an emulated GPU of `model` over each transport, in `runs` runs of `seconds` seconds each."""

    def median(transport: Transport, what: str) -> float:
        return statistics.median(
            measure_rate(model, transport, what, seconds) for _ in range(runs)
        )

    return {
        transport: GpuRates(
            config_reads_per_s=median(transport, "config"),
            bar_reads_per_s=median(transport, "bar"),
        )
        for transport in Transport
    }


def measure_rate(model: GpuModel, transport: Transport, what: str, seconds: float) -> float:
    """Return how many accesses to `what` ("config" or "bar") an emulated GPU answers per second.

    Raises HarnessError if the process that makes the accesses fails.
    """
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as top:
        folder = Path(top)
        server = serve_gpu(model, transport, folder=folder, aperture_mib=_APERTURE_MIB)
        with server:
            fd = server.attachment().fd
            place = str(folder / "gpu0.sock") if fd is None else str(fd)
            argv = [sys.executable, "-m", "harness.bench.gpu_load", transport.value, what]
            output = folder / "rate"
            with output.open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
                process = spawn(
                    [*argv, str(seconds), place],
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=[] if fd is None else [fd],
                )
                try:
                    code = process.wait(_END_S + seconds)
                finally:
                    process.kill()
            if code != 0:
                raise HarnessError(
                    f"The process that accesses the GPU over '{transport.value}' ended "
                    f"with exit code {code}: "
                    f"{(folder / 'stderr').read_text(errors='replace').strip()[-500:]}"
                )
            return float(output.read_text())
