"""Decides which GPUs of a machine are emulated, and which are leased from the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from harness.errors import RequirementError
from harness.gpu import GpuModel
from harness.gpu.catalogue import load_catalogue
from harness.gpu.passthrough import GpuChoice
from harness.gpu.passthrough.inventory import Inventory, read_inventory
from harness.gpu.passthrough.pool import GpuPool
from harness.provisioning.wait import Deadline
from harness.settings import INVENTORY, GpuEmulation, GpuSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.gpu.catalogue import Catalogue
    from harness.gpu.passthrough.pool import LeasedGpu
    from harness.settings import Settings

#: What a test may request: a model, or a choice among the GPUs of the host.
RequestedGpu: TypeAlias = "GpuModel | GpuChoice"

#: Seconds that a machine waits for GPUs that other machines hold.
_LEASE_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class GpuSources:
    """The source of a run's GPUs, which `--gpu-source` selects.

    `pool` opens the pool of the host's GPUs. `any_model` returns the model to emulate for a
    request that names no model. `emulation` is the kind of emulation, by default the kind in each
    model's description. `model_folders` are the user's folders of GPU models.
    """

    source: GpuSource
    pool: Callable[[], GpuPool]
    any_model: Callable[[], GpuModel]
    model_folders: tuple[Path, ...]
    emulation: GpuEmulation | None = None

    def resolve(self, requested: Sequence[RequestedGpu]) -> list[RequestedGpu]:
        """Return each requested GPU as a model to emulate or as a choice among the host's GPUs.

        A GPU that is requested by its address belongs to the host. With `auto`, all other GPUs are
        emulated unless the host has a usable GPU for each request.
        """
        if not requested:
            return []
        is_host = self.source is GpuSource.HOST or (
            self.source is GpuSource.AUTO and self._host_has(requested)
        )
        return [self._resolve(each, is_host=is_host) for each in requested]

    def _resolve(self, gpu: RequestedGpu, *, is_host: bool) -> RequestedGpu:
        if is_host:
            return _choice(gpu)
        if not isinstance(gpu, GpuModel) and gpu.address is not None:
            return gpu
        model = gpu if isinstance(gpu, GpuModel) else gpu.model or self.any_model()
        if self.emulation is None or (self.emulation is GpuEmulation.GSP and model.gsp is None):
            # A model without a GSP is emulated without a GSP: NVIDIA's driver reports why it can't
            # open the GPU.
            return model
        return model.emulated_as(self.emulation)

    def _host_has(self, requested: Sequence[RequestedGpu]) -> bool:
        """Return whether the host has a GPU for each request, free now or later."""
        try:
            self.pool().require([_choice(gpu) for gpu in requested])
        except RequirementError:
            return False
        return True

    def lease(
        self,
        choices: Sequence[GpuChoice],
        *,
        holder: str,
        report: Callable[[str], None],
        cancelled: Callable[[], str | None],
    ) -> AbstractContextManager[tuple[LeasedGpu, ...]]:
        """Lease these GPUs of the host together, and bind them to `vfio-pci`.

        Raises RequirementError if this host can't provide the GPUs, and HarnessError when
        `cancelled` returns a reason to stop waiting.
        """
        deadline = Deadline.after(_LEASE_S)
        return self.pool().lease(
            choices, holder=holder, deadline=deadline, report=report, cancelled=cancelled
        )


def _choice(gpu: RequestedGpu) -> GpuChoice:
    """Return a request as a choice among the host's GPUs."""
    if not isinstance(gpu, GpuModel):
        return gpu
    return GpuChoice(model=gpu)


def open_gpu_pool(settings: Settings, catalogue: Catalogue | None = None) -> GpuPool:
    """Return the pool of the host's GPUs. Raises BadInputError if the inventory is wrong."""
    return GpuPool(settings.gpu_pool_folder, inventory=inventory_of(settings, catalogue))


def inventory_of(settings: Settings, catalogue: Catalogue | None) -> Inventory:
    """Return the inventory in the settings, else the host's inventory, else an empty inventory."""
    file = settings.gpu_inventory
    if file is None:
        if not INVENTORY.exists():
            return Inventory()
        file = INVENTORY
    models = (catalogue or load_catalogue(*settings.gpu_models)).models
    return read_inventory(file, models)
