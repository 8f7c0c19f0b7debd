"""QEMU's arguments for a GPU of the host."""

from __future__ import annotations

import json

from harness.gpu import HostGpuAttachment


def test_gpu_with_one_pci_function_is_plugged_without_its_option_rom() -> None:
    gpu = HostGpuAttachment(id="gpu0", addresses=("0000:65:00.0",))

    assert gpu.to_device_add("rp2", None) == [
        {
            "driver": "vfio-pci",
            "id": "gpu0",
            "host": "0000:65:00.0",
            "bus": "rp2",
            "addr": "0x0.0",
            "rombar": 0,
        }
    ]


def test_pci_function_zero_of_a_group_is_plugged_last() -> None:
    """A guest scans the slot when function 0 appears and ignores functions that appear later."""
    gpu = HostGpuAttachment(id="gpu0", addresses=("0000:65:00.0", "0000:65:00.1", "0000:65:00.2"))

    devices = gpu.to_device_add("rp0", None)

    assert [(each["id"], each["host"], each["addr"]) for each in devices] == [
        ("gpu0-2", "0000:65:00.2", "0x0.2"),
        ("gpu0-1", "0000:65:00.1", "0x0.1"),
        ("gpu0", "0000:65:00.0", "0x0.0"),
    ]
    assert all(each["multifunction"] is True for each in devices)
    assert [json.loads(each) for each in gpu.to_device_argv("rp0")] == devices


def test_device_id_of_the_gpu_has_no_suffix_even_if_the_gpu_is_not_pci_function_zero() -> None:
    gpu = HostGpuAttachment(id="gpu0", addresses=("0000:65:00.1", "0000:65:00.0"))

    assert [each["id"] for each in gpu.to_device_add("rp0", None)] == ["gpu0", "gpu0-0"]
