"""How a guest finds and trusts a registry of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cloudinit import GuestFile
from harness.lab.registry import REGISTRY_NAMES, Registry
from harness.machine.description.spec import HostPort
from harness.registry import RegistryLog
from harness.registry.certificate import Certificate
from harness.registry.server import RegistryServer
from suites.unit.lab.builders import a_request

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def a_registry(folder: Path) -> Registry:
    (folder / "certificate.pem").write_bytes(b"PEM")
    certificate = Certificate(certificate=folder / "certificate.pem", key=folder / "key.pem")
    server = RegistryServer(folder=folder)
    return Registry(server=server, certificate=certificate, port=41000, log=RegistryLog())


def test_node_reaches_the_registry_by_the_names_of_real_ones_beside_its_own_requests(
    tmp_path: Path,
) -> None:
    own_port, own_file = HostPort(host_port=1, guest_port=2), GuestFile(path="/own", content=b"")
    request = a_request(host_ports=[own_port], files=[own_file])

    reaching = a_registry(tmp_path).reachable(request)

    assert reaching.host_ports == (own_port, HostPort(host_port=41000, guest_port=443))
    files = {file.path: file.content.decode() for file in reaching.files}
    assert set(files) == {"/etc/hosts", "/etc/ssl/certs/harness-registry.pem", "/own"}
    assert files["/etc/hosts"].splitlines() == [
        "127.0.0.1 localhost",
        f"10.0.2.100 {' '.join(REGISTRY_NAMES)}",
    ]
    assert "PEM" in files["/etc/ssl/certs/harness-registry.pem"]


def test_image_is_pushed_without_the_name_of_its_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[tuple[bytes, str, str]] = []

    def push(_: RegistryServer, archive: bytes, *, repository: str, tag: str) -> None:
        pushed.append((archive, repository, tag))

    monkeypatch.setattr(RegistryServer, "push", push)

    a_registry(tmp_path).push(b"archive", "localhost:5000/aks/gpu:580.1-2026")

    assert pushed == [(b"archive", "aks/gpu", "580.1-2026")]
