"""The versions of all that a machine ran with."""

from __future__ import annotations

import platform
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError
from harness.evidence.history import HISTORY, PACKAGES
from harness.lab import versions
from harness.lab.versions import versions_of
from harness.machine.description.spec import Accelerator
from harness.payload import build_payload
from suites.unit.evidence.folders import KERNEL, EvidenceFolder, a_gpu_node

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab.machine import LabMachine


@pytest.fixture(autouse=True)
def no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "qemu_version", lambda _: "7.2.22")
    monkeypatch.setattr(versions, "_commit", lambda: "bb84073")


def a_machine() -> LabMachine:
    source = SimpleNamespace(name="debian-12", disk_sha256=lambda: "5d" * 32)
    return cast(
        "LabMachine",
        SimpleNamespace(
            spec=SimpleNamespace(qemu="qemu-system-x86_64", accelerator=Accelerator.TCG),
            request=SimpleNamespace(source=source),
            agent_program=b"agent",
            gpus=SimpleNamespace(provided=[SimpleNamespace(title="h100-sxm5-80gb")]),
        ),
    )


def test_versions_are_of_host_and_guest(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path).root
    EvidenceFolder(folder / HISTORY).command(PACKAGES, "adduser\t3.134\n")

    found = versions_of(a_machine(), folder)

    assert found["qemu"] == "7.2.22"
    assert found["accelerator"] == "tcg"
    assert found["host"] == {
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    assert found["image"] == {"name": "debian-12", "digest": "5d" * 32}
    assert found["payload"] == build_payload().digest
    assert found["guest"] == {"kernel": KERNEL, "packages": {"adduser": "3.134"}}
    packages = found["python_packages"]
    assert isinstance(packages, dict)
    assert packages["pytest"] == pytest.__version__


def test_unknown_versions_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that did not answer says nothing of itself."""

    def refuse(_: str) -> str:
        raise HarnessError("It does not say its version.")

    monkeypatch.setattr(versions, "qemu_version", refuse)

    found = versions_of(a_machine(), tmp_path)

    assert found["qemu"] is None
    assert found["guest"] == {"kernel": None, "packages": None}
