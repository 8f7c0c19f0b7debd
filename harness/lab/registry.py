"""A container registry on the host that replaces the registries of the nodes' cloud."""

from __future__ import annotations

import contextlib
import functools
import secrets
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.artifact_cache import KEY_DIGITS
from harness.cloudinit import GuestFile
from harness.errors import HarnessError
from harness.lab.saved_states import booted
from harness.lab.shared_caches import cached_driver_file
from harness.lease import make_private_folder
from harness.machine.description.spec import HostPort
from harness.progress import ProgressEvent, Stage
from harness.registry import RegistryLog
from harness.registry.certificate import Certificate
from harness.registry.proxy import RegistryProxy
from harness.registry.server import ensure_registry_program, running_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.image import Image
    from harness.lab import Lab
    from harness.lab.node_request import NodeRequest
    from harness.registry import PullFault
    from harness.registry.server import RegistryServer

#: Microsoft's registry, Microsoft's registry for its cloud in China, and a name for tests.
REGISTRY_NAMES = ("mcr.microsoft.com", "mcr.azk8s.cn", "registry.test")
#: The path, in a node image, of the driver's container image (images/driver-image/build.sh).
DRIVER_ARCHIVE = "/usr/lib/gpu-node/driver-image.tar"
_TRUSTED = "/etc/ssl/certs/harness-registry.pem"
_TLS_PORT = 443
_ARCHIVE_KVM_S = 60.0


@dataclass(frozen=True, kw_only=True)
class RegistryHost:
    """The shared parts of all registries of a run: the program, the certificate and a folder."""

    program: tuple[str, ...]
    certificate: Certificate
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A registry for the nodes of one test, with a log of its requests and planned faults."""

    server: RegistryServer
    certificate: Certificate
    port: int
    log: RegistryLog = field(repr=False)

    def reachable(self, request: NodeRequest) -> NodeRequest:
        """Return the request, changed so that REGISTRY_NAMES lead the node to this registry."""
        return replace(
            request,
            host_ports=(*request.host_ports, *self.host_ports),
            files=(*self.guest_files, *request.files),
        )

    @property
    def host_ports(self) -> tuple[HostPort, ...]:
        """Return the host ports by which the guest of a node reaches this registry."""
        return (HostPort(host_port=self.port, guest_port=_TLS_PORT),)

    @property
    def guest_files(self) -> tuple[GuestFile, ...]:
        """Return the files with which a guest finds and trusts this registry."""
        (forward,) = self.host_ports
        hosts = f"127.0.0.1 localhost\n{forward.guest_address} {' '.join(REGISTRY_NAMES)}\n"
        return (
            GuestFile(path="/etc/hosts", content=hosts.encode()),
            GuestFile(path=_TRUSTED, content=self.certificate.pem),
        )

    def push(self, archive: bytes, reference: str) -> None:
        """Push the only image of an OCI archive under a name such as `mcr.microsoft.com/gpu/driver:1`."""
        _, _, path = reference.partition("/")
        repository, _, tag = path.rpartition(":")
        self.server.push(archive, repository=repository, tag=tag)

    def disturb_next(self, *faults: PullFault) -> None:
        """Plan the faults of the next pulls, one fault for each pull."""
        self.log.disturb_next(*faults)

    def disturb_all(self, fault: PullFault) -> None:
        """Plan this fault for each later pull that has no other planned fault."""
        self.log.disturb_all(fault)


def prepare_registry_host(lab: Lab) -> RegistryHost:
    """Return the parts that all registries of this run share, in the lab's folder.

    Raises RequirementError if the host lacks something that the registries need.
    """

    def report(message: str) -> None:
        lab.listener(ProgressEvent(subject="registry", stage=Stage.BUILD, message=message))

    folder = make_private_folder(lab.folder / "registries")
    try:
        program = ensure_registry_program(lab.settings.cache, report=report)
    finally:
        lab.listener(ProgressEvent(subject="registry", stage=Stage.ENDED, message="is ready"))
    return RegistryHost(
        program=program,
        certificate=Certificate.generate(folder / "certificate", REGISTRY_NAMES),
        folder=folder,
    )


@contextlib.contextmanager
def open_registry(host: RegistryHost) -> Iterator[Registry]:
    """Run a registry with its own storage, log and faults until the block ends."""
    log, tls = RegistryLog(), host.certificate.server_context()
    folder = make_private_folder(host.folder / secrets.token_hex(4))
    try:
        with (
            running_registry(host.program, folder) as server,
            RegistryProxy(server.connection, log, tls=tls) as proxy,
        ):
            yield Registry(server=server, certificate=host.certificate, port=proxy.port, log=log)
    finally:
        shutil.rmtree(folder)


def driver_archive(lab: Lab, image: Image) -> bytes:
    """Return the driver's container image in a node image, as an OCI archive.

    The archive is read from a machine once, and then stored in the cache under the image's key.
    """
    return cached_driver_file(
        lab.settings,
        f"{image.name}-{image.key[:KEY_DIGITS]}.tar",
        functools.partial(_read_archive, lab, image),
        timeout_s=_ARCHIVE_KVM_S * lab.patience,
    ).read_bytes()


def _read_archive(lab: Lab, image: Image) -> bytes:
    with lab.clone(booted(image), "driver-image") as machine:
        content = machine.agent.read_bytes(DRIVER_ARCHIVE, machine.deadline(_ARCHIVE_KVM_S))
    if content is None:
        raise HarnessError(
            f"The image '{image.name}' was expected to carry its driver's container image as "
            f"'{DRIVER_ARCHIVE}', but that file is missing; push a driver container image with "
            "`registry.push`."
        )
    return content
