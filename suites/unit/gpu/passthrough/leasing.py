"""Helpers for tests of leases: requests, verdicts, drivers and records."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from typing import TYPE_CHECKING

from harness.gpu.passthrough import GpuChoice, VerdictKind
from harness.provisioning.wait import Deadline
from suites.unit.gpu.passthrough.fake_host import FakeHost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pytest

    from harness.gpu.passthrough.pool import GpuPool, LeasedGpu

GPU = "0000:65:00.0"
AUDIO = "0000:65:00.1"
SECOND = "0000:66:00.0"
ANY = GpuChoice()
FIRST = GpuChoice(address=GPU)


def lease(
    pool: GpuPool,
    *wanted: GpuChoice,
    holder: str = "a test",
    within_s: float = 0.3,
    reports: list[str] | None = None,
) -> contextlib.AbstractContextManager[tuple[LeasedGpu, ...]]:
    return pool.lease(
        wanted or (ANY,),
        holder=holder,
        deadline=Deadline.after(within_s),
        report=(reports if reports is not None else []).append,
    )


def verdicts(pool: GpuPool) -> dict[str, VerdictKind]:
    return {gpu.address: gpu.verdict.kind for gpu in pool.survey()}


def drivers(host: FakeHost) -> dict[str, str | None]:
    return {address: host.driver_of(address) for address in (GPU, AUDIO, SECOND)}


BEFORE = {GPU: "nvidia", AUDIO: "snd_hda_intel", SECOND: None}


def record(
    folder: Path,
    functions: Mapping[str, str | None],
    *,
    gpu: str = GPU,
    override: str | None = None,
    boot: str = FakeHost.boot_id,
) -> Path:
    """Write a run's record of the drivers that functions had before the run took their GPU."""
    bound = {each: {"driver": driver, "override": override} for each, driver in functions.items()}
    file = folder / f"drivers-{gpu}.json"
    file.write_text(json.dumps({"boot_id": boot, "functions": bound}))
    return file


@contextlib.contextmanager
def busy(monkeypatch: pytest.MonkeyPatch, *groups: int) -> Iterator[None]:
    """Make opens of these VFIO group files fail, as if another process had the files open."""
    true_open = os.open

    def refuse(path: str | Path, flags: int, *arguments: int, **more: int) -> int:
        if str(path).endswith(tuple(f"/dev/vfio/{group}" for group in groups)):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return true_open(path, flags, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield
