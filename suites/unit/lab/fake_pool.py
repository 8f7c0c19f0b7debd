"""A fake pool of host GPUs, for tests on hosts without GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.gpu.passthrough import GpuChoice, HostFunction, HostGpu, IommuGroup, Verdict
from harness.gpu.passthrough.bars import MemoryBar
from harness.gpu.passthrough.pool import LeasedGpu
from harness.lab.gpu_sources import GpuSources
from suites.unit.gpu.models import a_model
from suites.unit.lab.kept_alive import kept_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.gpu import GpuModel
    from harness.gpu.passthrough.pool import GpuPool
    from harness.provisioning.wait import Deadline
    from harness.settings import GpuSource

ANY = GpuChoice()
ADDRESS = "0000:65:00.0"


def named(name: str) -> GpuModel:
    return replace(a_model(), name=name)


def a_leased_gpu(address: str) -> LeasedGpu:
    """Return a GPU with an audio function."""
    function = HostFunction(
        address=address,
        vendor=0x10DE,
        device=0x2330,
        class_code=0x030200,
        bars={0: MemoryBar(size=16 << 20, bits=32), 2: MemoryBar(size=128 << 30, bits=64)},
    )
    audio = HostFunction(
        address=f"{function.slot}.1",
        vendor=0x10DE,
        device=0x22BA,
        class_code=0x040300,
        bars={0: MemoryBar(size=64 << 20, bits=32), 2: MemoryBar(size=1 << 30, bits=64)},
    )
    group = IommuGroup(number=1, functions=(audio, function))
    gpu = HostGpu(function=function, group=group, verdict=Verdict.of((), "It is free."))
    return LeasedGpu(gpu=gpu, _reset=lambda: None)


@dataclass
class FakePool:
    """A pool of the GPUs at `addresses`, which records the leased GPUs and their holders."""

    addresses: tuple[str, ...]
    held: list[str] = field(default_factory=list)
    holders: list[str] = field(default_factory=list)

    def require(self, wanted: Sequence[GpuChoice]) -> None:
        if not wanted:
            raise BadInputError("0 GPUs are wanted; request at least one.", source="GpuPool.lease")
        if len(wanted) > len(self.addresses):
            raise RequirementError(f"{len(wanted)} GPUs are wanted at once.")

    @kept_alive
    def lease(
        self,
        wanted: Sequence[GpuChoice],
        *,
        holder: str,
        deadline: Deadline,
        report: Callable[[str], None],
        cancelled: Callable[[], str | None],
    ) -> Iterator[tuple[LeasedGpu, ...]]:
        if why := cancelled():
            raise HarnessError(why)
        assert deadline.remaining_s() > 0
        report("waiting")
        self.require(wanted)
        taken = [each for each in self.addresses if each not in self.held][: len(wanted)]
        self.held += taken
        self.holders.append(holder)
        try:
            yield tuple(a_leased_gpu(each) for each in taken)
        finally:
            for each in taken:
                self.held.remove(each)


def sources(source: GpuSource, *addresses: str) -> tuple[GpuSources, FakePool]:
    fake = FakePool(addresses)
    made = GpuSources(
        source=source,
        pool=lambda: cast("GpuPool", fake),
        any_model=lambda: named("any"),
        model_folders=(),
    )
    return made, fake
