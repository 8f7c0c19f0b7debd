"""`harness bench gpu`: how many accesses a second an emulated GPU answers, by each transport."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.columns import print_columns
from harness.cli.options import add_gpu_options, settings_of
from harness.errors import HarnessError
from harness.gpu.catalogue import load_catalogue
from harness.gpu.serving import serve_gpu
from harness.gpu.transport import Transport
from harness.provisioning.command import spawn

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from harness.cli.options import Commands
    from harness.gpu import GpuModel

#: What is measured of each transport, in accesses of 32 bits, one at a time.
GPU_MEASURES: Mapping[str, str] = {
    "config_reads_per_s": "reads of configuration space that the device answers in a second",
    "bar_reads_per_s": "reads of a register in BAR 0 that the device answers in a second",
}

_MODEL = "h100-sxm5-80gb"
_APERTURE_MIB = 256 << 10
_END_S = 60.0


def add_subject(subjects: Commands, count: Callable[[str], int]) -> None:
    """Add the subject `gpu` to `harness bench`; `count` parses a number of runs."""
    gpu = subjects.add_parser("gpu", help="accesses to an emulated GPU, by each transport")
    add_gpu_options(gpu)
    gpu.add_argument("--model", default=_MODEL, metavar="NAME")
    gpu.add_argument("--runs", type=count, default=5, metavar="N", help="runs of each kind")
    gpu.add_argument("--seconds", type=float, default=1.0, metavar="S", help="of each run")
    gpu.add_argument("--json", action="store_true")
    gpu.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    model = load_catalogue(*settings_of(arguments).gpu_models).get(arguments.model)
    rates: dict[str, dict[str, float]] = {}
    for transport in Transport:
        rates[transport.value] = {
            measure: statistics.median(
                measure_rate(model, transport, measure.partition("_")[0], arguments.seconds)
                for _ in range(arguments.runs)
            )
            for measure in GPU_MEASURES
        }
    if arguments.json:
        document = {"model": model.name, "runs": arguments.runs, "transports": rates}
        print(json.dumps(document, indent=2))
    else:
        print_columns(
            ("TRANSPORT", *(measure.upper() for measure in GPU_MEASURES)),
            [(name, *(f"{rate:.0f}" for rate in each.values())) for name, each in rates.items()],
        )
    return 0


def measure_rate(model: GpuModel, transport: Transport, what: str, seconds: float) -> float:
    """Return the accesses a second of `what`, "config" or "bar", to a device served for it.

    Raises HarnessError where the process that asks does not end well.
    """
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as top:
        folder = Path(top)
        server = serve_gpu(model, transport, folder=folder, aperture_mib=_APERTURE_MIB)
        with server:
            fd = server.attachment().fd
            place = str(folder / "gpu0.sock") if fd is None else str(fd)
            argv = [sys.executable, "-m", "harness.cli.gpu_load", transport.value, what]
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
                    f"The process that asks the device by '{transport.value}' ended with {code}: "
                    f"{(folder / 'stderr').read_text(errors='replace').strip()[-500:]}"
                )
            return float(output.read_text())
