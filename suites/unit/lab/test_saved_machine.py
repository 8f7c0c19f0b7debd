"""The bundle of a saved machine, and the machine that is resumed from the bundle."""

from __future__ import annotations

import json
import shutil
import stat
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.errors import HarnessError
from harness.lab import machine_bundle
from harness.lab.base_images import BaseImage
from harness.lab.machine_bundle import (
    ResumedSource,
    qemu_version,
    read_bundle,
    save_machine,
)
from harness.machine.description.spec import (
    Accelerator,
    DirectKernel,
    Firmware,
    Flash,
    MachineSpec,
)
from harness.provisioning.command import CommandResult
from suites.unit.lab.bundle_folder import a_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.lab.machine_bundle import MachineBundle
    from harness.machine import Machine

BASE = BaseImage(
    name="debian-12",
    digest="12" * 32,
    folder="/images/debian-12-0123",
    parents=("/images/debian-12-4567",),
)


class Host:
    """Records commands instead of running them; `convert` and `cp` write their target file."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, ...]] = []
        self.limits_s: list[float] = []
        self.version = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)"
        self.refuses = False

    def run(self, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        self.noted.append(tuple(argv))
        self.limits_s.append(timeout_s)
        if argv[1] == "convert":
            Path(argv[-1]).write_bytes(b"the disk's difference")
        if argv[0] == "cp":
            shutil.copyfile(argv[-2], argv[-1])
        stdout = self.version if argv[1] == "--version" else ""
        return CommandResult(
            argv=tuple(argv), exit_code=int(self.refuses), stdout=stdout, stderr="No space left"
        )


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(machine_bundle, "LocalRunner", lambda: made)
    monkeypatch.setattr(machine_bundle, "suffix", lambda: ".zst")
    return made


class Savable:
    """A fake VM that can be saved; records when its guest is paused and continues."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @contextmanager
    def saved_whole(self, state: Path) -> Iterator[None]:
        state.write_bytes(b"memory")
        self._host.noted.append(("paused",))
        yield
        self._host.noted.append(("goes on",))

    def restore_whole(self, state: Path) -> None:
        raise AssertionError(state)


@pytest.fixture
def spec(tmp_path: Path) -> MachineSpec:
    """Return a spec that sets each field in which a saved machine may differ from the defaults."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/disk.qcow2").touch()
    (tmp_path / "vmlinuz").write_bytes(b"k" * (80 << 10))
    return MachineSpec(
        name="node",
        accelerator=Accelerator.KVM,
        kernel=DirectKernel(
            version="6.1.0-56",
            vmlinuz=tmp_path / "vmlinuz",
            initrd=tmp_path / "initrd",
            may_reboot=True,
        ),
        disk=tmp_path / "own/disk.qcow2",
        seed=tmp_path / "own/seed.iso",
        memory_mib=2048,
        cpus=3,
        root_ports=5,
        root_port_window_mib=128,
        root_port_aperture_mib=256,
        has_iommu=True,
        is_restored=False,
        qemu="my-qemu",
    )


def save(
    host: Host, spec: MachineSpec, to: Path, *, seed: Path | None = None, gpus: Sequence[str] = ()
) -> MachineBundle:
    return save_machine(
        cast("Machine", SimpleNamespace(spec=spec)),
        Savable(host),
        to,
        base=Path("/images/debian-12-0123/disk.qcow2"),
        base_image=BASE,
        gpus=gpus,
        seed=seed,
        agent_program=b"the agent",
        driver="libvirt",
        purpose="suites/e2e/test_boot.py::test_boots",
    )


def test_bundle_that_is_read_equals_the_saved_bundle(
    host: Host, spec: MachineSpec, tmp_path: Path
) -> None:
    seed = tmp_path / "own/seed.iso"
    seed.write_bytes(b"the seed")
    to = tmp_path / "evidence/node/checkpoint"

    bundle = save(host, spec, to, seed=seed, gpus=["h100", "a100"])

    assert bundle == read_bundle(to)
    assert (bundle.name, bundle.folder) == ("node", to)
    assert bundle.purpose == "suites/e2e/test_boot.py::test_boots"
    assert bundle.driver == "libvirt"
    assert (bundle.qemu_version, bundle.base) == ("7.2.22", BASE)
    assert (bundle.gpus, bundle.memory) == (("h100", "a100"), to / "memory.zst")
    assert bundle.made.endswith("+00:00")
    assert bundle.agent_program == b"the agent"
    assert (to / "seed.iso").read_bytes() == b"the seed"
    assert isinstance(bundle.spec.kernel, DirectKernel)
    assert bundle.spec == replace(
        spec,
        kernel=replace(bundle.spec.kernel, version="6.1.0-56", may_reboot=True),
        disk=to / "disk.qcow2",
        seed=to / "seed.iso",
        is_restored=True,
        qemu="qemu-system-x86_64",
    )
    assert bundle.spec.kernel.vmlinuz.read_bytes() == b"k" * (64 << 10)
    assert bundle.spec.kernel.initrd == bundle.spec.kernel.vmlinuz
    assert stat.S_IMODE(to.stat().st_mode) == 0o700
    assert not list(to.glob("*.part"))


def test_disk_of_a_bundle_is_copied_from_a_paused_guest_and_has_no_backing_path(
    host: Host, spec: MachineSpec, tmp_path: Path
) -> None:
    to = tmp_path / "checkpoint"

    bundle = save(host, spec, to)

    disk = str(to / "disk.qcow2")
    assert host.noted == [
        ("paused",),
        (
            *("qemu-img", "convert", "-U", "-q", "-c", "-O", "qcow2"),
            *("-o", "compression_type=zstd", "-B", "/images/debian-12-0123/disk.qcow2"),
            *("-F", "qcow2", str(spec.disk), disk),
        ),
        ("goes on",),
        ("qemu-img", "rebase", "-u", "-f", "qcow2", "-b", "", disk),
        ("my-qemu", "--version"),
    ]
    assert host.limits_s == [300, 300, 20]
    assert bundle.spec.seed is None
    assert bundle.size_mib == sum(path.stat().st_size for path in to.iterdir()) / (1 << 20)


def test_failure_to_save_a_disk_is_an_error(host: Host, spec: MachineSpec, tmp_path: Path) -> None:
    host.refuses = True

    with pytest.raises(
        HarnessError, match=r"(?s)^The disk of the machine could not be saved\..*No space left"
    ):
        save(host, spec, tmp_path / "checkpoint")

    assert not (tmp_path / "checkpoint/machine.json").exists()


def test_saving_a_disk_that_is_not_on_this_host_fails_before_anything_is_written(
    host: Host, spec: MachineSpec, tmp_path: Path
) -> None:
    spec.disk.unlink()

    with pytest.raises(HarnessError, match=r"^The disk of machine 'node' is not on this host\.$"):
        save(host, spec, tmp_path / "checkpoint")

    assert host.noted == []
    assert not (tmp_path / "checkpoint").exists()


def test_uefi_variables_are_saved_in_the_bundle(
    host: Host, spec: MachineSpec, tmp_path: Path
) -> None:
    variables = tmp_path / "variables"
    variables.write_bytes(b"boot order")
    flash = Flash(code=Path("/usr/share/OVMF/code.fd"), variables=variables)

    bundle = save(host, replace(spec, kernel=Firmware(flash=flash)), tmp_path / "checkpoint")

    saved = tmp_path / "checkpoint/variables.fd"
    assert bundle.spec.kernel == Firmware(flash=Flash(code=flash.code, variables=saved))
    assert saved.read_bytes() == b"boot order"
    without = save(host, replace(spec, kernel=Firmware()), tmp_path / "bios")
    assert without.spec.kernel == Firmware()
    assert not (tmp_path / "bios/variables.fd").exists()


def test_description_of_a_bundle_has_exactly_the_documented_keys(
    host: Host, spec: MachineSpec, tmp_path: Path
) -> None:
    """Another version of the harness may read the bundle."""
    save(host, spec, tmp_path / "checkpoint", gpus=["h100"])

    described: dict[str, Any] = json.loads((tmp_path / "checkpoint/machine.json").read_text())
    assert set(described) == {
        *("schema", "name", "made", "purpose", "driver", "qemu", "memory", "gpus", "base", "spec")
    }
    assert described["schema"] == 1
    # Bundles of earlier versions lack the key 'driver'; QEMU was the only driver then.
    older = {key: value for key, value in described.items() if key != "driver"}
    (tmp_path / "checkpoint/machine.json").write_text(json.dumps(older))
    assert read_bundle(tmp_path / "checkpoint").driver == "qemu"
    assert described["spec"] == {
        "accelerator": "KVM",
        "kernel": {"version": "6.1.0-56", "may_reboot": True},
        "has_seed": False,
        "memory_mib": 2048,
        "cpus": 3,
        "root_ports": 5,
        "root_port_window_mib": 128,
        "root_port_aperture_mib": 256,
        "has_iommu": True,
    }


# -- resumed machines ------------------------------------------------------------------------------


@pytest.mark.parametrize("has_variables", [False, True])
def test_resumed_machine_writes_to_its_own_copies_of_disk_and_variables(
    host: Host, tmp_path: Path, has_variables: bool
) -> None:
    kernel = {"flash": "/usr/share/OVMF/code.fd"} if has_variables else {}
    saved = a_bundle(tmp_path / "checkpoint", kernel=kernel)
    (saved / "disk.qcow2").write_bytes(b"difference")
    if has_variables:
        (saved / "variables.fd").write_bytes(b"boot order")
    bundle = read_bundle(saved)
    own = tmp_path / "own"
    own.mkdir()
    ResumedSource(bundle=bundle, disk=Path("/images/disk.qcow2")).prepare(own)

    # The copy of a sparse disk is sparse too.
    copy = ("cp", "--reflink=auto", "--sparse=always", "--")
    assert host.noted == [
        (*copy, str(saved / "disk.qcow2"), str(own / "disk.qcow2")),
        (
            *("qemu-img", "rebase", "-u", "-f", "qcow2", "-F", "qcow2"),
            *("-b", "/images/disk.qcow2", str(own / "disk.qcow2")),
        ),
        *(
            [(*copy, str(saved / "variables.fd"), str(own / "variables.fd"))]
            if has_variables
            else []
        ),
    ]
    assert (own / "disk.qcow2").read_bytes() == b"difference"
    assert (own / "variables.fd").exists() is has_variables


def test_error_for_a_missing_qemu_version_shows_the_qemu_program(host: Host) -> None:
    host.refuses = True

    with pytest.raises(HarnessError, match=r"(?s)^'my-qemu' printed no version\..*No space"):
        qemu_version("my-qemu")
