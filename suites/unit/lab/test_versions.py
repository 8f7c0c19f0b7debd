"""The recorded versions of a machine: host, guest, image, harness and packages."""

from __future__ import annotations

import hashlib
import importlib.metadata
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
from harness.provisioning.command import CommandResult, LocalRunner
from suites.unit.evidence.folders import KERNEL, EvidenceFolder, a_gpu_node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.lab.machine import LabMachine


#: The original function, which starts git; the fixture `no_commands` replaces this function.
_COMMIT = versions._commit


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
            description=SimpleNamespace(source=source),
            agent_program=b"agent",
            gpus=SimpleNamespace(provided=[SimpleNamespace(title="h100-sxm5-80gb")]),
        ),
    )


def test_versions_of_host_and_guest_and_image_and_harness_and_packages_are_recorded(
    tmp_path: Path,
) -> None:
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
    assert found["schema"] == 1
    assert found["harness"] == {
        "version": importlib.metadata.version("gpu-node-harness"),
        "commit": "bb84073",
    }
    assert found["agent"] == hashlib.sha256(b"agent").hexdigest()
    assert found["gpus"] == ["h100-sxm5-80gb"]
    packages = found["python_packages"]
    assert isinstance(packages, dict)
    assert packages["pytest"] == pytest.__version__
    # The packages are the dependencies of the harness and the plug-ins of pytest.
    assert {"pydantic", "qemu.qmp", "PyYAML", "pytest-xdist", "gpu-node-harness"} <= set(packages)
    assert list(packages) == sorted(packages)
    assert None not in packages.values()


def test_versions_are_none_if_they_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest that did not answer has no versions."""

    def refuse(_: str) -> str:
        raise HarnessError("It does not say its version.")

    monkeypatch.setattr(versions, "qemu_version", refuse)

    found = versions_of(a_machine(), tmp_path)

    assert found["qemu"] is None
    assert found["guest"] == {"kernel": None, "packages": None}


def test_image_whose_manifest_can_not_be_read_has_no_digest(tmp_path: Path) -> None:
    rows: list[Exception] = [HarnessError("No manifest."), OSError("Gone."), KeyError("d")]
    for error in rows:

        def refuse(error: Exception = error) -> str:
            raise error

        machine = a_machine()
        cast("SimpleNamespace", machine.description.source).disk_sha256 = refuse

        assert versions_of(machine, tmp_path)["image"] == {"name": "debian-12", "digest": None}


# -- the commit of the harness -------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a git checkout that contains the harness."""
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(versions, "__file__", str(tmp_path / "harness/lab/versions.py"))
    monkeypatch.setattr(versions, "_commit", _COMMIT)
    return tmp_path


def test_commit_of_the_harness_is_the_output_of_git_describe(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[tuple[str, ...], float]] = []
    results = {"bb84073-dirty\n": 0, "\n": 0, "bb84073\n": 128}

    def run(_: LocalRunner, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        stdout = list(results)[len(asked)]
        asked.append((tuple(argv), timeout_s))
        return CommandResult(argv=tuple(argv), exit_code=results[stdout], stdout=stdout, stderr="")

    monkeypatch.setattr(LocalRunner, "run", run)
    found = [versions_of(a_machine(), checkout)["harness"] for _ in results]

    version = importlib.metadata.version("gpu-node-harness")
    assert found == [
        {"version": version, "commit": commit} for commit in ("bb84073-dirty", None, None)
    ]
    words = ("describe", "--always", "--dirty", "--abbrev=40")
    assert asked == [(("git", "-C", str(checkout), *words), 20)] * 3


def test_installed_harness_has_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / ".git").rmdir()
    monkeypatch.setattr(LocalRunner, "run", None)

    harness = versions_of(a_machine(), checkout)["harness"]

    assert isinstance(harness, dict)
    assert harness["commit"] is None
