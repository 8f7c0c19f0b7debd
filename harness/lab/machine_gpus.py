"""The GPUs of one machine: servers of emulated GPUs, leases of the host's GPUs, and traces of accesses."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, RequirementError, listed
from harness.gpu import GpuModel, HostGpuAttachment, aperture_mib, root_port_window_mib
from harness.gpu.transport import Transport
from harness.lab.guest_channels import ANSWER_KVM_S, HOT_PLUG_KVM_S, GuestChannels, MachineServices
from harness.settings import GpuEmulation
from harness.steps import stepped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from harness.gpu import Attachment, Bars
    from harness.gpu.emulated import EmulatedGpu
    from harness.gpu.passthrough.pool import LeasedGpu
    from harness.gpu.script import GpuScript
    from harness.gpu.server import DeviceServer
    from harness.gpu.trace import AccessTrace
    from harness.lab.description import MachineDescription
    from harness.lab.gpu_sources import GpuSources, RequestedGpu
    from harness.lab.machine_entrance import Listing
    from harness.machine.description.spec import MachineSpec
    from harness.provisioning.wait import Deadline

#: The number of unplugged GPUs whose traces are kept.
_MOST_DEPARTED = 16


@dataclass(frozen=True, kw_only=True)
class ProvidedGpu:
    """A GPU that is plugged into a machine, or is about to be plugged."""

    device_id: str
    pci: str
    """Vendor and device id, such as `10de:2330`."""
    title: str
    """The model's name, or the word `host` and the PCI address of the host's GPU."""
    bars: Bars
    """The memory BARs of the GPU's function 0."""
    attachment: Attachment


class MachineGpus:
    """Provides the GPUs of the machine that `spec` describes, until `close`.

    `folder` is for sockets. `transport` raises RequirementError if QEMU does not support emulated
    GPUs. `sources` decides which GPUs are emulated and which belong to the host. `scripts` maps
    device ids to the faults of emulated GPUs. A fault is present as soon as its GPU is plugged in.
    """

    def __init__(
        self,
        spec: MachineSpec,
        folder: Path,
        *,
        transport: Callable[[], Transport],
        sources: GpuSources,
        scripts: Mapping[str, GpuScript],
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._transport = transport
        self._sources = sources
        self._scripts = scripts
        self._servers: dict[str, DeviceServer[Any]] = {}
        self._departed: dict[str, EmulatedGpu] = {}
        self._leases: dict[str, contextlib.ExitStack] = {}
        self._provided: dict[str, ProvidedGpu] = {}
        self._numbers = itertools.count()

    @property
    def plugged(self) -> tuple[str, ...]:
        """Return the device ids of the GPUs that the machine has."""
        return tuple(self._provided)

    @property
    def emulated(self) -> tuple[str, ...]:
        """Return the device ids of the emulated GPUs that are plugged."""
        return tuple(self._servers)

    @property
    def provided(self) -> tuple[ProvidedGpu, ...]:
        return tuple(self._provided.values())

    def provide(
        self,
        requested: Sequence[RequestedGpu],
        *,
        report: Callable[[str], None],
        cancelled: Callable[[], str | None] = lambda: None,
    ) -> list[ProvidedGpu]:
        """Start the servers of the emulated GPUs in `requested`, and lease the host's GPUs together.

        `report` is called with the reason while the machine waits for GPUs of the host. `cancelled`
        returns a reason to stop waiting. Raises RequirementError if this host can't provide the
        GPUs.
        """
        resolved = self._sources.resolve(requested)
        choices = [each for each in resolved if not isinstance(each, GpuModel)]
        leases = contextlib.ExitStack()
        leased = iter(
            leases.enter_context(
                self._sources.lease(
                    choices, holder=self._spec.name, report=report, cancelled=cancelled
                )
            )
            if choices
            else ()
        )
        with contextlib.ExitStack() as undoing:
            undoing.callback(leases.close)
            provided = [
                self._serve(each) if isinstance(each, GpuModel) else self._hand_over(next(leased))
                for each in resolved
            ]
            undoing.pop_all()
        for one in provided:
            if one.device_id not in self._servers:
                self._leases[one.device_id] = leases
        self._provided.update({one.device_id: one for one in provided})
        return provided

    def _serve(self, model: GpuModel) -> ProvidedGpu:
        server = self.serve(model)
        return ProvidedGpu(
            device_id=server.device_id,
            pci=str(model.pci),
            title=model.name,
            bars=server.gpu.bars,
            attachment=server.attachment(),
        )

    def _hand_over(self, gpu: LeasedGpu) -> ProvidedGpu:
        device_id = f"gpu{next(self._numbers)}"
        if device_id in self._scripts:
            raise RequirementError(
                f"A test plans a fault of GPU '{device_id}' of machine '{self._spec.name}', but only "
                "emulated GPUs can have planned faults; run the test with --gpu-source=emulated."
            )
        functions = gpu.gpu.functions
        windows = dict(enumerate(bar.to_bar() for each in functions for bar in each.bars.values()))
        return ProvidedGpu(
            device_id=device_id,
            pci=gpu.gpu.function.ids,
            title=f"host {gpu.addresses[0]}",
            bars={index: bar.to_bar() for index, bar in gpu.gpu.function.bars.items()},
            attachment=HostGpuAttachment(
                id=device_id,
                addresses=gpu.addresses,
                root_port_window_mib=root_port_window_mib(windows),
                aperture_mib=aperture_mib(windows),
            ),
        )

    def serve(self, model: GpuModel) -> DeviceServer[Any]:
        """Start the server of a GPU of this model. The GPU is then plugged into the machine.

        Raises HarnessError if QEMU hangs with this transport and the machine's number of vCPUs.
        """
        # The import is inside the function, because importing takes longer than starting a machine without
        # GPUs.
        from harness.gpu.serving import serve_gpu  # noqa: PLC0415

        transport = self._transport()
        spec = self._spec
        if transport is Transport.MPQEMU and spec.cpus > 1:
            raise HarnessError(
                f"Machine '{spec.name}' has {spec.cpus} vCPUs, but QEMU hangs if two vCPUs use one "
                f"'{transport.value}' at the same time; give the machine one vCPU, or use QEMU 10.1.1 or "
                "newer."
            )
        memory = spec.memory_file
        if (
            transport is Transport.MPQEMU
            and model.emulation is GpuEmulation.GSP
            and memory is not None
            and memory.is_private
        ):
            raise RequirementError(
                f"NVIDIA's driver can open GPU model '{model.name}' only if the GPU reaches the guest's "
                f"memory. But machine '{spec.name}' continues from a checkpoint, so its memory is "
                f"private, and '{transport.value}' reaches shared memory only. Boot the machine "
                "(--machine-start=cold). Or use QEMU 10.1.1 or newer, which needs no slow boot; "
                "'harness qemu sid' installs it."
            )
        number = next(self._numbers)
        device_id = f"gpu{number}"
        server = serve_gpu(
            model,
            transport,
            folder=self._folder,
            device_id=device_id,
            window_mib=spec.root_port_window_mib,
            aperture_mib=spec.root_port_aperture_mib,
            number=number + 1,
            model_folders=self._sources.model_folders,
        )
        script = self._scripts.get(device_id)
        if script is not None:
            script.apply(server.gpu)
        server.start()
        self._servers[device_id] = server
        return server

    def withdraw(self, device_id: str) -> None:
        """End the server of an unplugged emulated GPU but keep the GPU's trace, or return a GPU to the host.

        GPUs of the host that were leased together are returned together.
        """
        del self._provided[device_id]
        leases = self._leases.pop(device_id, None)
        if leases is not None:
            if leases not in self._leases.values():
                leases.close()
            return
        server = self._servers.pop(device_id)
        server.close()
        self._departed[device_id] = server.gpu
        if len(self._departed) > _MOST_DEPARTED:
            del self._departed[next(iter(self._departed))]

    def close(self) -> None:
        """End every server and lease. The machine must have ended first."""
        with contextlib.ExitStack() as closing:
            for server in self._servers.values():
                closing.callback(server.close)
            for leases in self._leases.values():
                closing.callback(leases.close)

    def wait_until_placed(self, deadline: Deadline) -> None:
        """Wait until the guest has assigned addresses to the BARs of each emulated GPU, or until the deadline."""
        for server in self._servers.values():
            server.gpu.wait_until_placed(deadline)

    def gpu(self, device_id: str) -> EmulatedGpu:
        """Return the device model of a plugged GPU, or of a GPU that was unplugged recently.

        Raises HarnessError if there is no such GPU, and RequirementError if the GPU belongs to the
        host.
        """
        gpus = self._by_id()
        if device_id in self._leases:
            raise RequirementError(
                f"GPU '{device_id}' of machine '{self._spec.name}' belongs to the host, and has no "
                "device model to inspect or to change; run this test with --gpu-source=emulated."
            )
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
        """Return a sentence about a GPU that has blocked the guest for `patience_s`, or None."""
        reports = (server.stall_report(patience_s) for server in self._servers.values())
        return next(filter(None, reports), None)

    def _by_id(self) -> dict[str, EmulatedGpu]:
        plugged = {device_id: server.gpu for device_id, server in self._servers.items()}
        return {**self._departed, **plugged}


#: The device files of single GPUs; the pattern does not match `/dev/nvidiactl`.
GPU_DEVICE_FILES = "/dev/nvidia[0-9]*"
#: Each line is a PCI function; the second column has vendor and device, as in `10de2330`.
_PCI_FUNCTIONS = "/proc/bus/pci/devices"
#: Seconds to wait for the addresses of a hot-plugged GPU before the guest has to list its PCI
#: functions.
_PLACED_KVM_S = 1.0
#: Seconds after which a guest that is blocked on its GPU is reported as stuck.
_STALL_S = 60.0


class MachineGpuSlots(GuestChannels):
    """A machine with the slots into which GPUs are plugged."""

    def __init__(self, description: MachineDescription, services: MachineServices) -> None:
        super().__init__(description, services)
        self._listing: Listing | None = None
        self.gpus = MachineGpus(
            self.spec,
            self.folder,
            transport=services.transport,
            sources=services.gpu_sources,
            scripts=description.gpu_scripts,
        )

    @stepped("Plug a GPU into machine '{0.name}'")
    def hot_plug(self, gpu: RequestedGpu) -> str:
        """Plug a GPU into the running machine, and return its device id.

        Raises HarnessError if the VM does not accept the GPU, for example if no slot is free.
        """
        (provided,) = self.gpus.provide(
            [gpu], report=self._services.report, cancelled=self._stop_reason
        )
        try:
            self.vm.plug(provided.attachment)
        except HarnessError:
            # QEMU may have opened a part of a host's GPU, so the lease of this GPU stays until the
            # machine ends.
            if provided.device_id in self.gpus.emulated:
                self.gpus.withdraw(provided.device_id)
            raise
        self._show_gpus()
        return provided.device_id

    def _show_gpus(self) -> None:
        """Show in `harness ps` which GPUs the machine has now."""
        if self._listing is not None:
            self._listing.show_gpus([gpu.title for gpu in self.gpus.provided])

    def wait_for_gpus(self) -> None:
        """Wait until the guest lists every plugged GPU on its bus.

        Raises HarnessError at the time limit. The message lists the PCI functions of the guest.
        """
        self._wait_for_functions(Counter(gpu.pci for gpu in self.gpus.provided))

    def wait_for_gpu(self, model: GpuModel, *, count: int = 1) -> None:
        """Wait until the guest lists `count` GPUs of this model on its bus.

        Raises HarnessError at the time limit. The message lists the PCI functions of the guest.
        """
        self._wait_for_functions(Counter({str(model.pci): count}))

    def _wait_for_functions(self, wanted: Counter[str]) -> None:
        if not wanted:
            return
        # The device model knows when the guest has assigned addresses to the GPU's BARs. A polling
        # loop in the guest would take the processor time that an emulated processor needs to find
        # the GPU.
        self.gpus.wait_until_placed(self.deadline(_PLACED_KVM_S))
        if wanted <= self._listed_functions():
            return
        for pci, count in wanted.items():
            self.guest.wait_for_pci(pci, count=count)

    def _listed_functions(self) -> Counter[str]:
        """Count the guest's PCI functions by vendor and device id. Start no process in the guest."""
        listed = self.agent.read_bytes(_PCI_FUNCTIONS, self.deadline(ANSWER_KVM_S)) or b""
        return Counter(
            f"{ids[:4]}:{ids[4:]}"
            for line in listed.decode(errors="replace").splitlines()
            for ids in line.split()[1:2]
        )

    @stepped("Unplug a GPU of machine '{0.name}'")
    def hot_unplug(self, device_id: str, *, in_use: bool = False) -> None:
        """Ask the guest to release a GPU, wait until the GPU is removed, and keep its trace.

        Raises HarnessError if a process of the guest has a GPU open, unless `in_use` is true.
        With `in_use`, NVIDIA's driver waits until that process ends, and the guest does not answer
        until then.
        """
        users = [] if in_use else self.guest.users_of(GPU_DEVICE_FILES)
        if users:
            raise HarnessError(
                f"GPU '{device_id}' of machine '{self.name}' is not unplugged, since a GPU is in use in "
                f"the guest: {'; '.join(users)}. End these processes first, or pass `in_use=True`."
            )
        self.vm.unplug(device_id, self.deadline(HOT_PLUG_KVM_S))
        self.gpus.withdraw(device_id)
        self._show_gpus()

    def gpu(self, device_id: str = "gpu0") -> EmulatedGpu:
        """Return the device model of a plugged GPU, or of a GPU that was unplugged recently.

        Raises HarnessError if there is no such GPU.
        """
        return self.gpus.gpu(device_id)

    def gpu_traces(self) -> Mapping[str, AccessTrace]:
        """Return the trace of the guest's accesses to each GPU, by device id."""
        return self.gpus.traces()

    def mark(self, words: str) -> None:
        """Write a line into the trace of every GPU, as the harness does at boot stages and steps."""
        self.gpus.mark(words)

    def failure(self) -> str | None:
        """Return why this machine can't continue, or None."""
        return self.gpus.stall_report(_STALL_S) or self.vm.failure()
