"""The emulated GPUs of one machine: their servers, and the traces of the guest's accesses."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, listed
from harness.gpu.serving import serve_gpu
from harness.gpu.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from harness.gpu import GpuModel
    from harness.gpu.emulated import EmulatedGpu
    from harness.gpu.script import GpuScript
    from harness.gpu.server import DeviceServer
    from harness.gpu.trace import AccessTrace
    from harness.machine import VmDriver
    from harness.machine.description.spec import MachineSpec

#: The number of unplugged GPUs whose traces are kept.
_MOST_DEPARTED = 16


class MachineGpus:
    """Serves GPUs to the machine of `spec`, with sockets in `folder`, until it is closed.

    `transport` raises RequirementError where QEMU can't take an emulated GPU. `scripts` describe
    faults of a GPU, by device id, from the moment it is plugged.
    """

    def __init__(
        self,
        spec: MachineSpec,
        folder: Path,
        *,
        driver: VmDriver,
        transport: Callable[[], Transport],
        scripts: Mapping[str, GpuScript],
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._driver = driver
        self._transport = transport
        self._scripts = scripts
        self._servers: dict[str, DeviceServer[Any]] = {}
        self._departed: dict[str, EmulatedGpu] = {}
        self._numbers = itertools.count()

    @property
    def plugged(self) -> tuple[str, ...]:
        """Return the device ids of the GPUs that are served."""
        return tuple(self._servers)

    def serve(self, model: GpuModel) -> DeviceServer[Any]:
        """Start to serve a GPU of this model, to be plugged into the machine.

        Raises HarnessError where the transport would hang a machine with that many vCPUs.
        """
        transport = self._transport()
        spec = self._spec
        if transport is Transport.MPQEMU and self._driver.has_vcpu_threads(spec):
            raise HarnessError(
                f"Machine '{spec.name}' has {spec.cpus} vCPUs, each in a thread of its own, and two "
                f"threads that touch one '{transport.value}' at once hang QEMU; give it one vCPU, "
                "or use QEMU 10.1.1 or newer."
            )
        device_id = f"gpu{next(self._numbers)}"
        server = serve_gpu(
            model,
            transport,
            folder=self._folder,
            device_id=device_id,
            aperture_mib=spec.root_port_aperture_mib,
        )
        script = self._scripts.get(device_id)
        if script is not None:
            script.apply(server.gpu)
        server.start()
        self._servers[device_id] = server
        return server

    def stop_serving(self, device_id: str) -> None:
        """Stop serving an unplugged GPU; its trace is kept."""
        server = self._servers.pop(device_id)
        server.close()
        self._departed[device_id] = server.gpu
        if len(self._departed) > _MOST_DEPARTED:
            del self._departed[next(iter(self._departed))]

    def close(self) -> None:
        """End every server; the machine must have ended first."""
        with contextlib.ExitStack() as closing:
            for server in self._servers.values():
                closing.callback(server.close)

    def gpu(self, device_id: str) -> EmulatedGpu:
        """Return the device model behind a GPU, plugged or one of the last to be unplugged.

        Raises HarnessError where there is none.
        """
        gpus = self._by_id()
        if device_id not in gpus:
            raise HarnessError(
                f"Machine '{self._spec.name}' has no GPU '{device_id}'; it has {listed(gpus)}."
            )
        return gpus[device_id]

    def traces(self) -> Mapping[str, AccessTrace]:
        """Return the trace of the guest's accesses to each GPU, by device id."""
        return {device_id: gpu.trace for device_id, gpu in self._by_id().items()}

    def mark(self, words: str) -> None:
        """Write a line into the trace of every GPU that is plugged."""
        for server in self._servers.values():
            server.gpu.mark(words)

    def stall_report(self, patience_s: float) -> str | None:
        """Return that the guest has been blocked on a GPU for `patience_s`, or None."""
        reports = (server.stall_report(patience_s) for server in self._servers.values())
        return next(filter(None, reports), None)

    def _by_id(self) -> dict[str, EmulatedGpu]:
        plugged = {device_id: server.gpu for device_id, server in self._servers.items()}
        return {**self._departed, **plugged}
