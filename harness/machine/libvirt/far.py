"""The VM driver for a libvirt on another host, whose machines see none of this one's files.

A machine's files are uploaded, its console and its agent come back by libvirt's streams. What
needs a file or a descriptor of this host at both ends is refused: emulated GPUs, and checkpoints.
"""

from __future__ import annotations

import contextlib
import hashlib
import xml.etree.ElementTree as ET
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import RequirementError
from harness.machine.accelerator import AcceleratorChoice
from harness.machine.libvirt.domain_xml import DomainHost
from harness.machine.libvirt.farfiles import far_files
from harness.machine.libvirt.machine import LibvirtMachine
from harness.machine.libvirt.monitor import MonitorEvents
from harness.machine.libvirt.storage import open_storage
from harness.machine.spec import Accelerator
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.gpu import GpuAttachment
    from harness.gpu.transport import Transport
    from harness.machine.libvirt.connection import Connection
    from harness.machine.libvirt.farfiles import FarFiles
    from harness.machine.libvirt.storage import Storage
    from harness.machine.spec import MachineSpec

#: Where a system's libvirt keeps images, and security policies let QEMU read them.
SYSTEM_FOLDER = PurePosixPath("/var/lib/libvirt/images/gpu-node-harness")

_OPEN_S = 30.0
#: A gigabyte over ten megabits takes a quarter of an hour.
_UPLOAD_S = 1800.0


class FarMachine(LibvirtMachine):
    """A domain on another host; its disk comes back where somebody waits for it to be complete."""

    def __init__(
        self,
        files: FarFiles,
        folder: Path,
        attachments: Sequence[GpuAttachment] = (),
        *,
        connection: Connection,
        host: DomainHost,
        monitor_events: MonitorEvents,
        agent_program: bytes = b"",
    ) -> None:
        super().__init__(
            files.spec,
            folder,
            attachments,
            connection=connection,
            host=host,
            monitor_events=monitor_events,
            agent_program=agent_program,
        )
        self._files = files

    @override
    def wait_for_power_off(self, deadline: Deadline) -> None:
        super().wait_for_power_off(deadline)
        self._files.fetch_disk(Deadline.after(_UPLOAD_S))


class FarLibvirtDriver:
    """Makes machines by another host's libvirtd."""

    name = "libvirt"

    def __init__(self, connection: Connection, storage: Storage, capabilities: str) -> None:
        self._connection = connection
        self._storage = storage
        self._capabilities = capabilities
        self._monitor_events = MonitorEvents(connection)

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        connection: Connection,
        capabilities: str,
        *,
        folder: PurePosixPath | None,
        cache: Path,
        tell: Callable[[str], None],
    ) -> Iterator[FarLibvirtDriver]:
        """Use the storage in `folder` of the other host for as long as machines are wanted.

        Raises RequirementError where a session's libvirt was not told which folder is its own.
        """
        if folder is None and connection.is_session:
            raise RequirementError(
                f"Machines at '{connection.uri}' need a folder of that host for their disks, and "
                "its user's is not known here; name one by --machine-storage."
            )
        there = folder or SYSTEM_FOLDER
        place = hashlib.sha256(f"{connection.uri} {there}".encode()).hexdigest()[:16]
        with open_storage(connection, there, state=cache / "far" / place, tell=tell) as storage:
            yield cls(connection, storage, capabilities)

    def choose_accelerator(self, choice: str) -> AcceleratorChoice:
        """Return TCG unless KVM was asked for: only a program run on that host could prove it."""
        if choice == "kvm":
            return AcceleratorChoice(
                accelerator=Accelerator.KVM,
                reason=f"KVM was asked for; '{self._connection.uri}' has to have it.",
            )
        return AcceleratorChoice(
            accelerator=Accelerator.TCG,
            reason=(
                "TCG, since KVM can't be proved on another host; --accelerator=kvm takes it at "
                "its word."
            ),
        )

    def transport(self, accelerator: Accelerator) -> Transport:
        del accelerator
        raise RequirementError(
            f"A machine at '{self._connection.uri}' takes no emulated GPU, whose server is a "
            "process of this host; use a libvirt of this host, or --machine-driver=qemu."
        )

    def has_vcpu_threads(self, spec: MachineSpec) -> bool:
        return spec.cpus > 1

    def state_parts(self, spec: MachineSpec) -> Mapping[str, object]:
        raise RequirementError(
            f"Machine '{spec.name}' at '{self._connection.uri}' can't begin from a checkpoint, "
            "whose memory is a file of this host; use --machine-start=cold."
        )

    @contextlib.contextmanager
    def machine(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[GpuAttachment] = (),
        *,
        agent_program: bytes = b"",
    ) -> Iterator[FarMachine]:
        self._connection.reopen(Deadline.after(_OPEN_S))
        with (
            far_files(spec, self._storage, deadline=Deadline.after(_UPLOAD_S)) as files,
            FarMachine(
                files,
                folder,
                attachments,
                connection=self._connection,
                host=DomainHost(emulator=parse_emulator(self._capabilities)),
                monitor_events=self._monitor_events,
                agent_program=agent_program,
            ) as machine,
        ):
            yield machine


def parse_emulator(capabilities: str) -> str:
    """Return the QEMU that a libvirt's host has for our machines, from its capabilities.

    Raises RequirementError where it has none.
    """
    tree = ET.fromstring(capabilities)  # noqa: S314 - libvirt's
    for arch in tree.findall("./guest/arch[@name='x86_64']"):
        emulator = arch.findtext("emulator")
        if emulator:
            return emulator
    raise RequirementError(
        "libvirt's host has no QEMU for x86-64; run `apt-get install --no-install-recommends "
        "qemu-system-x86` there, and restart its libvirtd."
    )
