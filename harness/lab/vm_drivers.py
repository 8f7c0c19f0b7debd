"""Opens and checks the VM driver of a run."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from harness.entry_points import Group, find_plugin
from harness.errors import BadInputError, RequirementError
from harness.machine import VmDriver
from harness.machine.qemu.driver import QemuDriver
from harness.machine.requirement_check import RequirementCheck
from harness.settings import MachineDriver, PluginDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.entry_points import Plugin
    from harness.machine.description.spec import Accelerator
    from harness.settings import Settings


class DriverOpener(Protocol):
    """Opens a VM driver until the context ends, and reports the programs that the driver starts."""

    def __call__(
        self, settings: Settings, report: Callable[[str], None], /
    ) -> contextlib.AbstractContextManager[VmDriver]: ...


_NO_MACHINES = "An existing node is tested as it is, and no machine is started for it."
_NO_MACHINES_REMEDY = (
    "Use --machine-driver=qemu or libvirt for tests that boot machines; `harness node` "
    "tests an existing node."
)


@contextlib.contextmanager
def open_driver(settings: Settings, report: Callable[[str], None]) -> Iterator[VmDriver]:
    """Open the VM driver that the settings name, until the context ends.

    `report` is called with each program that is started for the driver. Raises RequirementError if
    the host can't run the driver.
    """
    match settings.machine_driver:
        case MachineDriver.QEMU:
            yield QemuDriver(settings.qemu, cache=settings.cache)
        case MachineDriver.LIBVIRT:
            # The import is here, because it would delay runs under QEMU, which do not need libvirt.
            from harness.machine.libvirt.driver import LibvirtDriver  # noqa: PLC0415

            with LibvirtDriver.open(
                settings.machine_uri,
                qemu=settings.qemu,
                cache=settings.cache,
                report=report,
            ) as driver:
                yield driver
        case PluginDriver(name=name):
            with _open_plugin(name, settings, report) as added:
                yield added
        case MachineDriver.NODE:
            raise RequirementError(f"{_NO_MACHINES} {_NO_MACHINES_REMEDY}")


def opener_of(plugin: Plugin) -> DriverOpener:
    """Load the function of an entry point that opens a VM driver, or raise PluginError."""
    found = plugin.load()
    if not callable(found):
        raise plugin.error(
            f"a function that opens a VM driver is expected, but the entry point refers to {found!r}"
        )
    opener: DriverOpener = found
    return opener


@contextlib.contextmanager
def _open_plugin(
    name: str, settings: Settings, report: Callable[[str], None]
) -> Iterator[VmDriver]:
    plugin = find_plugin(Group.MACHINE_DRIVERS, name)
    if plugin is None:
        raise BadInputError(
            f"No installed package has a VM driver '{name}'; install the package of this driver.",
            source="--machine-driver",
        )
    with opener_of(plugin)(settings, report) as driver:
        if not isinstance(driver, VmDriver):
            raise plugin.error(f"a VM driver is expected, but the function opens {driver!r}")
        yield driver


def examine_driver(settings: Settings, accelerator: Accelerator | None) -> list[RequirementCheck]:
    """Check the VM driver's own requirements, which are not requirements of every machine."""
    if settings.machine_driver is MachineDriver.LIBVIRT:
        from harness.machine.libvirt import requirement_checks  # noqa: PLC0415 - loads slowly

        return requirement_checks.examine(
            settings.machine_uri, qemu=settings.qemu, accelerator=accelerator
        )
    if settings.machine_driver is MachineDriver.NODE:
        return [
            RequirementCheck(
                requirement="machines",
                is_met=False,
                found=_NO_MACHINES,
                remedy=_NO_MACHINES_REMEDY,
            )
        ]
    return []
