"""Which root port a device gets."""

from __future__ import annotations

import pytest

from harness.errors import HarnessError
from harness.machine.description.root_ports import RootPorts
from suites.unit.machine.description.builders import a_machine_spec, an_attachment


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
    with pytest.raises(HarnessError, match="All 2 root ports"):
        ports.free()

    ports.release("gpu0")

    assert ports.free() == 0
