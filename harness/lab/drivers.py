"""Which VM driver a run gets."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from harness.errors import BadInputError, RequirementError
from harness.machine.direct import QemuDriver
from harness.machine.finding import Finding
from harness.machine.libvirt import health
from harness.machine.libvirt.driver import LibvirtDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.machine import VmDriver
    from harness.machine.spec import Accelerator
    from harness.settings import Settings


_NO_MACHINES = "An existing node is judged as it is, and no machine is begun for it."
_NO_MACHINES_REMEDY = (
    "Use --machine-driver=qemu or libvirt for what boots machines of its own; `harness node` "
    "judges one that exists."
)


@contextlib.contextmanager
def open_driver(settings: Settings, tell: Callable[[str], None]) -> Iterator[VmDriver]:
    """Open the driver that the settings name, for as long as the run's machines need it.

    `tell` hears what is started for it. Raises RequirementError where the host can't serve it.
    """
    match settings.machine_driver:
        case "qemu":
            yield QemuDriver(settings.qemu, cache=settings.cache)
        case "libvirt":
            with LibvirtDriver.open(
                settings.machine_uri,
                qemu=settings.qemu,
                cache=settings.cache,
                tell=tell,
                far_folder=settings.machine_storage,
            ) as driver:
                yield driver
        case "node":
            raise RequirementError(f"{_NO_MACHINES} {_NO_MACHINES_REMEDY}")
        case other:
            raise BadInputError(f"There is no VM driver '{other}'.", source="--machine-driver")


def examine_driver(settings: Settings, accelerator: Accelerator | None) -> list[Finding]:
    """Return what the driver needs of its host beside what every machine does."""
    if settings.machine_driver == "libvirt":
        return health.examine(settings.machine_uri, qemu=settings.qemu, accelerator=accelerator)
    if settings.machine_driver == "node":
        return [
            Finding(
                requirement="machines",
                is_met=False,
                found=_NO_MACHINES,
                remedy=_NO_MACHINES_REMEDY,
            )
        ]
    return []
