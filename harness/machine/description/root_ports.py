"""Assigns devices to the root ports of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.machine.description.argv import root_port_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.gpu import Attachment
    from harness.machine.description.spec import MachineSpec


class RootPorts:
    """The root ports of one machine; the attachments at its start use the first ones."""

    def __init__(self, spec: MachineSpec, attachments: Sequence[Attachment] = ()) -> None:
        self._spec = spec
        self._taken = {
            attachment.id: root_port_id(index) for index, attachment in enumerate(attachments)
        }

    def choose(self, attachment: Attachment) -> str:
        """Return the first free root port; `take` assigns it once the device is plugged.

        Raises HarnessError where none is free, or their windows are too small for it.
        """
        spec = self._spec
        port = root_port_id(self.free())
        if attachment.root_port_window_mib > spec.root_port_window_mib:
            raise HarnessError(
                f"The root ports of machine '{spec.name}' reserve {spec.root_port_window_mib} MiB, "
                f"but device '{attachment.id}' needs {attachment.root_port_window_mib}; raise "
                "'root_port_window_mib'."
            )
        if attachment.aperture_mib > spec.root_port_aperture_mib:
            raise HarnessError(
                f"The root ports of machine '{spec.name}' reserve {spec.root_port_aperture_mib} "
                f"MiB for 64-bit BARs, but device '{attachment.id}' needs "
                f"{attachment.aperture_mib}; raise 'root_port_aperture_mib'."
            )
        return port

    def free(self) -> int:
        """Return the number of the first free root port. Raises HarnessError where none is."""
        taken = set(self._taken.values())
        for index in range(self._spec.root_ports):
            if root_port_id(index) not in taken:
                return index
        raise HarnessError(
            f"All {self._spec.root_ports} root ports of machine '{self._spec.name}' are in use; raise "
            "'root_ports'."
        )

    def take(self, device_id: str, port: str) -> None:
        """Record that a device is behind a port."""
        self._taken[device_id] = port

    def release(self, device_id: str) -> None:
        """Record that a device was removed."""
        self._taken.pop(device_id, None)
