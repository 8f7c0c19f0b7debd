"""What `harness doctor` reports about a host's GPUs."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.cli import host_gpu_checks
from harness.cli.host_gpu_checks import examine_host_gpus
from harness.gpu.passthrough import GpuChoice
from harness.gpu.passthrough.pool import GpuPool
from harness.lab import gpu_sources
from harness.provisioning.wait import Deadline
from harness.settings import Settings
from suites.unit.gpu.passthrough.fake_host import NVME_CLASS, VGA_CLASS, FakeHost, FakeKernel

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gpu.catalogue import Catalogue
    from harness.machine.requirement_check import RequirementCheck

GPU = "0000:65:00.0"
SECOND = "0000:66:00.0"
NVME = "0000:03:00.0"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path / "host")
    host.add_function(GPU, group=5)
    host.add_function(SECOND, group=6)
    return host


@pytest.fixture
def settings(tmp_path: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> Settings:
    def open_pool(settings: Settings, catalogue: Catalogue) -> GpuPool:
        inventory = gpu_sources.inventory_of(settings, catalogue)
        return GpuPool(settings.gpu_pool_folder, inventory=inventory, root=host.root)

    monkeypatch.setattr(host_gpu_checks, "open_gpu_pool", open_pool)
    monkeypatch.setattr(host_gpu_checks, "INVENTORY", tmp_path / "absent.yaml")
    monkeypatch.setattr(gpu_sources, "INVENTORY", tmp_path / "absent.yaml")
    tmp_path.chmod(0o755)
    return Settings(gpu_pool_folder=tmp_path / "leases")


@pytest.fixture
def inventory(tmp_path: Path, settings: Settings) -> Settings:
    """Return settings with an inventory, which says that the host's GPUs are for tests."""
    (tmp_path / "gpus.yaml").write_text("schema: 1\n")
    return replace(settings, gpu_inventory=tmp_path / "gpus.yaml")


def missing(host: FakeHost, settings: Settings) -> dict[str, RequirementCheck]:
    checks = examine_host_gpus(settings, host.root)
    return {check.requirement: check for check in checks if not check.is_met}


def iommu_off(host: FakeHost, vendor: str, parameters: str = "quiet", *tables: str) -> None:
    for address in (GPU, SECOND):
        (host.device(address) / "iommu_group").unlink()
    for group in (host.root / "sys/kernel/iommu_groups").iterdir():
        for link in (group / "devices").iterdir():
            link.unlink()
        (group / "devices").rmdir()
        group.rmdir()
    host.write("proc/cpuinfo", f"processor : 0\nvendor_id\t: {vendor}\nmodel : 1\n")
    host.write("proc/cmdline", f"BOOT_IMAGE=/vmlinuz {parameters}\n")
    for table in ("FACP", *tables):
        host.write(f"sys/firmware/acpi/tables/{table}", "")


def test_host_with_usable_gpus_meets_every_requirement(host: FakeHost, settings: Settings) -> None:
    checks = examine_host_gpus(settings, host.root)

    assert [check.requirement for check in checks] == [
        *("IOMMU", "vfio-pci", "locked memory", "leases of GPUs", f"GPU {GPU}", f"GPU {SECOND}")
    ]
    assert all(check.is_met and check.remedy is None for check in checks)


def test_doctor_has_no_gpu_rows_for_a_host_with_only_a_display_controller(
    host: FakeHost, settings: Settings
) -> None:
    """The display controller of a laptop or of a server's BMC is no GPU for tests."""
    host.remove(GPU)
    host.remove(SECOND)
    host.add_function("0000:00:02.0", group=1, class_code=VGA_CLASS, vendor=0x8086, boot_vga=True)

    assert examine_host_gpus(settings, host.root) == []


def test_doctor_has_a_row_for_each_nvidia_3d_controller_even_of_an_unknown_model(
    host: FakeHost, settings: Settings
) -> None:
    """A GPU without an IOMMU group has a row too; a virtual machine may have such a GPU."""
    host.add_function("0000:67:00.0", group=None, device=0x1234)
    host.add_function("0000:68:00.0", group=8, vendor=0x1002)
    host.add_function("0000:69:00.0", group=9, class_code=VGA_CLASS, device=0x1234)

    checks = examine_host_gpus(settings, host.root)

    rows = [check.requirement for check in checks]
    assert rows[4:] == [f"GPU {address}" for address in (GPU, SECOND, "0000:67:00.0")]
    assert checks[0].is_met


def test_missing_gpu_is_reported_on_a_host_with_an_inventory(
    host: FakeHost, inventory: Settings
) -> None:
    host.remove(GPU)
    host.remove(SECOND)

    assert "its PCI bus has no GPU of" in missing(host, inventory)["GPUs of this host"].found


@pytest.mark.parametrize(
    ("firmware", "remedy"),
    [
        (("GenuineIntel", "quiet", "DMAR"), "Add `intel_iommu=on iommu=pt` in GRUB_CMDLINE_LINUX"),
        (("AuthenticAMD", "quiet", "IVRS"), "Add `amd_iommu=on iommu=pt` in GRUB_CMDLINE_LINUX"),
        (("GenuineIntel", "quiet"), "Enable VT-d in the firmware. Add `intel_iommu=on iommu=pt`"),
        (("GenuineIntel", "intel_iommu=on"), "Enable VT-d in the firmware; the kernel has"),
        (("AuthenticAMD", "amd_iommu=off", "IVRS"), "Replace `amd_iommu=off` by `amd_iommu=on"),
        (
            ("GenuineIntel", "iommu=off", "DMAR"),
            "Replace `iommu=off` by `intel_iommu=on iommu=pt`",
        ),
        (("HygonGenuine", "quiet"), "Enable the IOMMU in the firmware, and remove `iommu=off`"),
    ],
)
def test_remedy_for_a_disabled_iommu_mentions_the_kernel_parameter_or_firmware_setting(
    host: FakeHost,
    settings: Settings,
    firmware: tuple[str, ...],
    remedy: str,
) -> None:
    iommu_off(host, *firmware)

    found = missing(host, settings)

    assert list(found) == ["IOMMU"]
    assert str(found["IOMMU"].remedy).startswith(remedy)


def test_missing_vfio_pci_module_is_reported_with_a_modprobe_command(
    host: FakeHost, settings: Settings
) -> None:
    (host.root / "sys/bus/pci/drivers/vfio-pci/unbind").unlink()
    (host.root / "sys/bus/pci/drivers/vfio-pci").rmdir()

    assert "Run `modprobe vfio-pci`" in str(missing(host, settings)["vfio-pci"].remedy)


def test_shared_iommu_group_is_reported_in_the_row_of_its_gpu(
    host: FakeHost, settings: Settings
) -> None:
    host.add_function(NVME, group=5, class_code=NVME_CLASS, driver="nvme")

    found = missing(host, settings)

    assert list(found) == [f"GPU {GPU}"]
    assert f"The GPU shares IOMMU group 5 with {NVME}" in found[f"GPU {GPU}"].found


def test_doctor_reports_the_process_that_has_a_gpu_open(
    host: FakeHost, settings: Settings
) -> None:
    host.add_process(4711, "qemu-system-x86", "/dev/vfio/6")

    found = missing(host, settings)

    assert list(found) == [f"GPU {SECOND}"]
    assert "process 4711 ('qemu-system-x86'" in found[f"GPU {SECOND}"].found


def test_leased_gpu_meets_its_requirement_and_its_holder_is_shown(
    host: FakeHost, settings: Settings
) -> None:
    pool = GpuPool(settings.gpu_pool_folder, root=host.root, runner=FakeKernel(host))
    host.add_function(NVME, group=6, class_code=NVME_CLASS, driver="nvme")

    with pool.lease([GpuChoice()], holder="a suite", deadline=Deadline.after(1)):
        checks = examine_host_gpus(settings, host.root)

    rows = {check.requirement: check for check in checks}
    assert rows[f"GPU {GPU}"].is_met
    assert "The GPU is held by 'a suite'" in rows[f"GPU {GPU}"].found
    # The second GPU is not leased.
    assert not rows[f"GPU {SECOND}"].is_met


@pytest.mark.parametrize(
    ("limit", "is_met"),
    [(1791 << 20, False), (1792 << 20, True), (resource.RLIM_INFINITY, True)],
)
def test_limit_of_locked_memory_is_checked_for_ordinary_users(
    monkeypatch: pytest.MonkeyPatch, limit: int, *, is_met: bool
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    # The second number is the hard limit, to which the user has not raised the soft limit.
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))

    row = host_gpu_checks._locked_memory()

    assert row.is_met == is_met
    assert is_met or "`LimitMEMLOCK=infinity`" in str(row.remedy)


def test_doctor_reports_a_missing_lease_folder_to_ordinary_users(
    host: FakeHost, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)

    found = missing(host, settings)

    assert list(found) == ["leases of GPUs"]
    assert "`install -d -m 2770 -g GROUP" in str(found["leases of GPUs"].remedy)


def test_error_in_the_gpu_inventory_is_an_unmet_requirement(
    host: FakeHost, inventory: Settings, tmp_path: Path
) -> None:
    (tmp_path / "gpus.yaml").write_text("gpu: {}\n")

    found = missing(host, inventory)

    assert list(found) == ["GPUs of this host"]
    assert "gpus.yaml:1: key 'gpu'" in found["GPUs of this host"].found


def test_iommu_is_mandatory_only_if_the_host_has_a_gpu_inventory(
    host: FakeHost, settings: Settings, inventory: Settings, tmp_path: Path
) -> None:
    iommu_off(host, "GenuineIntel")

    assert not missing(host, settings)["IOMMU"].is_needed
    assert missing(host, inventory)["IOMMU"].is_needed
    # The host has an inventory of its own, which applies without an option.
    (tmp_path / "absent.yaml").write_text("schema: 1\n")
    assert missing(host, settings)["IOMMU"].is_needed
