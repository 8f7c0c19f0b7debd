"""How the kernel of a host with an IOMMU shows emulated GPUs, before the harness touches them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.gpu import GpuModel
    from suites.e2e.passthrough.conftest import StartHost

_GROUPS = (
    "cd /sys/bus/pci/devices; for d in *; do echo $d $(basename $(readlink $d/iommu_group)); done"
)


def test_each_gpu_of_a_clone_is_in_a_group_of_its_own(
    start_host: StartHost, h100: GpuModel
) -> None:
    """The IOMMU works in a restored machine, and for functions that are plugged after the restore."""
    host = start_host(2)

    listed = host.guest.output_of("sh", "-c", _GROUPS).splitlines()
    group_of = dict(line.split() for line in listed)
    gpus = host.guest.output_of("lspci", "-Dn", "-d", str(h100.pci)).splitlines()
    groups = [group_of[line.split()[0]] for line in gpus]

    assert len(groups) == 2
    assert all(list(group_of.values()).count(group) == 1 for group in groups)
