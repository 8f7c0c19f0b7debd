"""How a guest finds and trusts a registry of the test."""

from __future__ import annotations

import stat
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.cloudinit import GuestFile
from harness.lab import registry as registry_module
from harness.lab.registry import REGISTRY_NAMES, Registry, RegistryHost, prepare_registry_host
from harness.machine.description.spec import HostPort
from harness.progress import Stage
from harness.registry import PullFault, RegistryLog
from harness.registry.certificate import Certificate
from harness.registry.server import RegistryServer
from suites.unit.lab.builders import a_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pytest

    from harness.lab import Lab
    from harness.progress import ProgressEvent


def a_registry(folder: Path) -> Registry:
    (folder / "certificate.pem").write_bytes(b"PEM")
    certificate = Certificate(certificate=folder / "certificate.pem", key=folder / "key.pem")
    server = RegistryServer(folder=folder)
    return Registry(server=server, certificate=certificate, port=41000, log=RegistryLog())


def test_node_reaches_the_registry_by_the_names_of_real_ones_beside_what_it_asked_for(
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


def test_planned_faults_are_those_of_the_next_pulls(tmp_path: Path) -> None:
    registry = a_registry(tmp_path)
    registry.disturb_all(PullFault(status=500))
    registry.disturb_next(PullFault(status=429), PullFault())

    faults = [
        registry.log.began(number, "HEAD", "mcr", "/v2/gpu/manifests/1", is_first=True)[1]
        for number in range(4)
    ]

    # Nothing goes wrong in the second one, although all others fail: it was planned so.
    assert [fault.status for fault in faults] == [429, None, 500, 500]


def test_image_is_pushed_without_the_name_of_its_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[tuple[bytes, str, str]] = []

    def push(_: RegistryServer, archive: bytes, *, repository: str, tag: str) -> None:
        pushed.append((archive, repository, tag))

    monkeypatch.setattr(RegistryServer, "push", push)

    a_registry(tmp_path).push(b"archive", "localhost:5000/aks/gpu:580.1-2026")

    assert pushed == [(b"archive", "aks/gpu", "580.1-2026")]


def test_registries_of_a_run_share_a_program_and_a_certificate(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    events: list[ProgressEvent] = []
    lab = replace(lab, listener=events.append)

    def ensure(cache: Path, *, report: Callable[[str], None]) -> tuple[str, ...]:
        asked.append(cache)
        report("fetching docker-registry")
        return ("docker-registry",)

    def generate(folder: Path, names: Sequence[str]) -> str:
        asked.append((folder, tuple(names)))
        return "a certificate"

    monkeypatch.setattr(registry_module, "ensure_registry_program", ensure)
    monkeypatch.setattr(Certificate, "generate", generate)

    host = prepare_registry_host(lab)

    folder = lab.folder / "registries"
    assert host == RegistryHost(
        program=("docker-registry",),
        certificate="a certificate",  # type: ignore[arg-type]
        folder=folder,
    )
    assert asked == [lab.settings.cache, (folder / "certificate", REGISTRY_NAMES)]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (event,) = events
    assert (event.subject, event.stage, event.message) == (
        "registry",
        Stage.BUILD,
        "fetching docker-registry",
    )
