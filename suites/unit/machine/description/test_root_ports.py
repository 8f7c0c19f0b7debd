"""Which root port a device gets."""

from __future__ import annotations

import pytest

from harness.errors import HarnessError
from harness.gpu import GpuAttachment
from harness.machine.description.root_ports import RootPorts
from suites.unit.machine.description.builders import a_machine_spec, an_attachment


def a_large_attachment(*, window_mib: int, aperture_mib: int = 0) -> GpuAttachment:
    return GpuAttachment(
        id="gpu0",
        driver="vfio-user-pci",
        root_port_window_mib=window_mib,
        aperture_mib=aperture_mib,
    )


def test_attachments_at_start_have_the_first_ports() -> None:
    ports = RootPorts(a_machine_spec(root_ports=3), [an_attachment("gpu0"), an_attachment("gpu1")])

    assert ports.choose(an_attachment("gpu2")) == "rp2"


def test_port_is_free_until_it_is_taken() -> None:
    """A device that QEMU refuses takes none."""
    ports = RootPorts(a_machine_spec(root_ports=2))

    assert [ports.choose(an_attachment("gpu0")) for _ in range(2)] == ["rp0", "rp0"]
    ports.take("gpu0", "rp0")
    assert ports.choose(an_attachment("gpu1")) == "rp1"


def test_port_of_a_device_that_went_is_free_again() -> None:
    ports = RootPorts(a_machine_spec(root_ports=2))
    ports.take("gpu0", "rp0")
    ports.take("gpu1", "rp1")
    with pytest.raises(HarnessError) as full:
        ports.free()
    assert str(full.value) == (
        "All 2 root ports of machine 'node' are in use; raise 'root_ports'."
    )

    ports.release("gpu0")

    assert ports.free() == 0


def test_device_that_went_before_it_had_a_port_frees_none() -> None:
    ports = RootPorts(a_machine_spec(root_ports=2), [an_attachment("gpu0")])

    ports.release("gpu1")

    assert ports.free() == 1


def test_device_as_large_as_its_port_fits() -> None:
    ports = RootPorts(a_machine_spec(root_port_window_mib=64, root_port_aperture_mib=256))

    assert ports.choose(a_large_attachment(window_mib=64, aperture_mib=256)) == "rp0"


def test_device_too_large_for_a_window_is_refused_with_both_sizes() -> None:
    ports = RootPorts(a_machine_spec(root_port_window_mib=64))

    with pytest.raises(HarnessError) as refused:
        ports.choose(a_large_attachment(window_mib=65))

    assert str(refused.value) == (
        "The root ports of machine 'node' reserve 64 MiB, but device 'gpu0' needs 65; raise "
        "'root_port_window_mib'."
    )


def test_device_too_large_for_an_aperture_is_refused_with_both_sizes() -> None:
    ports = RootPorts(a_machine_spec(root_port_window_mib=64, root_port_aperture_mib=256))

    with pytest.raises(HarnessError) as refused:
        ports.choose(a_large_attachment(window_mib=64, aperture_mib=257))

    assert str(refused.value) == (
        "The root ports of machine 'node' reserve 256 MiB for 64-bit BARs, but device 'gpu0' "
        "needs 257; raise 'root_port_aperture_mib'."
    )
