"""How much address space the GPUs of a machine share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.machine.address_space import apertures_mib
from harness.machine.description.spec import Accelerator

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("line", "gib"),
    [
        ("address sizes\t: 39 bits physical, 48 bits virtual", 128),
        ("address sizes\t: 40 bits physical, 48 bits virtual", 256),
        ("address sizes\t: 42 bits physical, 48 bits virtual", 1024),
        ("address sizes\t: 46 bits physical, 48 bits virtual", 2048),
        ("address sizes\t: 52 bits physical, 57 bits virtual", 2048),
        ("model name\t: says nothing", 256),
    ],
)
def test_guest_under_kvm_has_a_quarter_of_what_the_host_addresses(
    tmp_path: Path, line: str, gib: int
) -> None:
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text(f"processor\t: 0\n{line}\npower management:\n")

    assert apertures_mib(Accelerator.KVM, cpu_info) == gib << 10


def test_emulated_processor_is_the_same_on_every_host(tmp_path: Path) -> None:
    assert apertures_mib(Accelerator.TCG, tmp_path / "missing") == 256 << 10
