"""Opens the pool of this host's GPUs as a run's settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.gpu.catalogue import load_catalogue
from harness.gpu.passthrough.inventory import Inventory, read_inventory
from harness.gpu.passthrough.pool import GpuPool
from harness.settings import INVENTORY

if TYPE_CHECKING:
    from harness.gpu.catalogue import Catalogue
    from harness.settings import Settings


def open_gpu_pool(settings: Settings, catalogue: Catalogue | None = None) -> GpuPool:
    """Return the pool; raises BadInputError where the inventory is wrong."""
    return GpuPool(settings.gpu_pool_folder, inventory=inventory_of(settings, catalogue))


def inventory_of(settings: Settings, catalogue: Catalogue | None) -> Inventory:
    """Return the inventory that the settings name, else that of the host, else an empty one."""
    file = settings.gpu_inventory
    if file is None:
        if not INVENTORY.exists():
            return Inventory()
        file = INVENTORY
    models = (catalogue or load_catalogue(*settings.gpu_models)).models
    return read_inventory(file, models)
