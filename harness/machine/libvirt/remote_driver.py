"""The VM driver for a remote libvirt, whose machines see no files of this host.

A machine's files are uploaded; its console and its agent are connected by libvirt's streams. What
needs a file or a descriptor on both hosts is refused: emulated GPUs and checkpoints.
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
from harness.machine.description.spec import Accelerator
from harness.machine.libvirt.domain_xml import DomainHost
from harness.machine.libvirt.machine import LibvirtMachine
from harness.machine.libvirt.monitor import MonitorEvents
from harness.machine.libvirt.remote_files import remote_files
from harness.machine.libvirt.storage import open_storage
from harness.provisioning.wait import Deadline
from harness.settings import AcceleratorOption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.gpu import Attachment
    from harness.gpu.transport import Transport
    from harness.machine.description.spec import MachineSpec
    from harness.machine.libvirt.connection import Connection
    from harness.machine.libvirt.remote_files import RemoteFiles
    from harness.machine.libvirt.storage import Storage

#: Where a system's libvirt keeps images, and security policies let QEMU read them.
SYSTEM_FOLDER = PurePosixPath("/var/lib/libvirt/images/gpu-node-harness")

_OPEN_S = 30.0
#: A gigabyte over ten megabits takes a quarter of an hour.
_UPLOAD_S = 1800.0


class RemoteMachine(LibvirtMachine):
    """A domain on a remote host; its disk is downloaded after a power-off."""

    def __init__(
        self,
        files: RemoteFiles,
        folder: Path,
        attachments: Sequence[Attachment] = (),
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


class RemoteLibvirtDriver:
    """Creates machines by a remote libvirtd."""

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
        report: Callable[[str], None],
    ) -> Iterator[RemoteLibvirtDriver]:
        """Use the storage in `folder` of the remote host for as long as the context lasts.

        Raises RequirementError where a session's libvirt is used without a folder.
        """
        if folder is None and connection.is_session:
            raise RequirementError(
                f"Machines at '{connection.uri}' need a folder of that host for their disks; "
                "name one by --machine-storage."
            )
        there = folder or SYSTEM_FOLDER
        place = hashlib.sha256(f"{connection.uri} {there}".encode()).hexdigest()[:16]
        with open_storage(
            connection, there, state=cache / "remote" / place, report=report
        ) as storage:
            yield cls(connection, storage, capabilities)

    def choose_accelerator(self, option: AcceleratorOption) -> AcceleratorChoice:
        """Return TCG unless KVM was requested: only a program run on that host could prove it."""
        if option is AcceleratorOption.KVM:
            return AcceleratorChoice(
                accelerator=Accelerator.KVM,
                reason=f"KVM was requested; '{self._connection.uri}' must have it.",
            )
        return AcceleratorChoice(
            accelerator=Accelerator.TCG,
            reason=(
                "TCG, since KVM can't be tested on a remote host; --accelerator=kvm uses it "
                "untested."
            ),
        )

    def transport(self, accelerator: Accelerator) -> Transport:
        del accelerator
        raise RequirementError(
            f"A machine at '{self._connection.uri}' can't have an emulated GPU, whose server is a "
            "process of this host; use a libvirt of this host, or --machine-driver=qemu."
        )

    def state_parts(self, spec: MachineSpec) -> Mapping[str, object]:
        raise RequirementError(
            f"Machine '{spec.name}' at '{self._connection.uri}' can't start from a checkpoint, "
            "whose memory is a file of this host; use --machine-start=cold."
        )

    @contextlib.contextmanager
    def machine(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[Attachment] = (),
        *,
        agent_program: bytes = b"",
    ) -> Iterator[RemoteMachine]:
        self._connection.reopen(Deadline.after(_OPEN_S))
        with (
            remote_files(spec, self._storage, deadline=Deadline.after(_UPLOAD_S)) as files,
            RemoteMachine(
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
    """Parse the path of QEMU for x86-64 from a libvirt's capabilities.

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
