"""How a guest finds and trusts a registry of the test."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from harness.cloudinit import GuestFile
from harness.lab import registry
from harness.lab.registry import REGISTRY_NAMES, Registry, RegistryHost, open_registry
from harness.machine.description.spec import HostPort
from harness.registry import RegistryLog
from harness.registry.certificate import Certificate
from harness.registry.server import RegistryServer
from suites.unit.lab.builders import a_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest


def a_registry(folder: Path) -> Registry:
    (folder / "certificate.pem").write_bytes(b"PEM")
    certificate = Certificate(certificate=folder / "certificate.pem", key=folder / "key.pem")
    server = RegistryServer(folder=folder)
    return Registry(server=server, certificate=certificate, port=41000, log=RegistryLog())


def test_node_resolves_names_of_real_registries_to_the_registry_of_the_test(
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


def test_repository_name_of_a_pushed_image_does_not_contain_the_registry_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[tuple[bytes, str, str]] = []

    def push(_: RegistryServer, archive: bytes, *, repository: str, tag: str) -> None:
        pushed.append((archive, repository, tag))

    monkeypatch.setattr(RegistryServer, "push", push)

    a_registry(tmp_path).push(b"archive", "localhost:5000/aks/gpu:580.1-2026")

    assert pushed == [(b"archive", "aks/gpu", "580.1-2026")]


def test_each_registry_has_its_own_log_and_its_own_temporary_storage_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def running(_: object, folder: Path) -> Iterator[SimpleNamespace]:
        (folder / "blob").touch()
        yield SimpleNamespace(connection=folder)

    @contextlib.contextmanager
    def proxy(connection: Path, log: RegistryLog, *, tls: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(port=(connection, log, tls))

    monkeypatch.setattr(registry, "running_registry", running)
    monkeypatch.setattr(registry, "RegistryProxy", proxy)
    certificate = SimpleNamespace(server_context=lambda: "tls")
    host = RegistryHost(
        program=("registry",), certificate=cast("Certificate", certificate), folder=tmp_path
    )

    with open_registry(host) as first:
        with open_registry(host) as second:
            folders = [cast("Any", each.server).connection for each in (first, second)]
            assert sorted(tmp_path.iterdir()) == sorted(folders)
            for folder, each in zip(folders, (first, second), strict=True):
                assert cast("Any", each.port) == (folder, each.log, "tls")
            assert first.log is not second.log
        assert list(tmp_path.iterdir()) == [folders[0]]

    assert list(tmp_path.iterdir()) == []
