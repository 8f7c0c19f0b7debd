"""Machine specs: which values are valid, and which values are part of a checkpoint's key."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadInputError
from harness.machine.description.spec import (
    Accelerator,
    DirectKernel,
    Firmware,
    Flash,
    HostPort,
    MachineSpec,
    MemoryFile,
    without_paths,
)

KERNEL = DirectKernel(version="6.1", vmlinuz=Path("/k"), initrd=Path("/i"))


def a_spec(name: str = "node", /, **sizes: Any) -> MachineSpec:
    return MachineSpec(
        name=name, accelerator=Accelerator.TCG, kernel=KERNEL, disk=Path("/d"), **sizes
    )


def test_plain_machine_names_are_accepted() -> None:
    names = ["node", "n", "fast-path", "6.1.0-56-cloud-amd64", "a" * 63]

    assert [a_spec(name).name for name in names] == names


def test_names_that_would_break_a_command_line_or_a_path_are_refused() -> None:
    accepted = []
    for name in ("", ".", "..", "-n", "a b", "a,b", "a=b", "é", "n\n", "n\0", "a" * 64):
        with contextlib.suppress(BadInputError):
            accepted.append(a_spec(name))

    assert accepted == []
    with pytest.raises(BadInputError, match="key 'name': 'a/b' is not a machine name"):
        a_spec("a/b")


def test_machine_value_that_is_too_small_is_refused() -> None:
    for key, least in (
        ("memory_mib", 128),
        ("cpus", 1),
        ("root_ports", 0),
        ("root_port_window_mib", 2),
        ("root_port_aperture_mib", 0),
    ):
        with pytest.raises(
            BadInputError, match=rf"key '{key}': {least - 1} is too small; use {least} or more"
        ):
            a_spec(**{key: least - 1})

        assert getattr(a_spec(**{key: least}), key) == least


def test_extra_kernel_arguments_are_refused_with_a_boot_loader() -> None:
    with pytest.raises(
        BadInputError, match=r"key 'extra_append': .*set 'kernel' to a DirectKernel"
    ):
        MachineSpec(
            name="node",
            accelerator=Accelerator.TCG,
            kernel=Firmware(),
            disk=Path("/d"),
            extra_append=("quiet",),
        )


def test_machine_with_a_boot_loader_has_an_empty_kernel_command_line() -> None:
    spec = replace(a_spec(), kernel=Firmware(), has_iommu=True)

    assert spec.kernel_command_line == ""


def test_verbatim_kernel_command_line_has_no_arguments_of_the_accelerator() -> None:
    kernel = replace(KERNEL, append=("root=/dev/sda1", "ro"), is_verbatim=True)
    spec = replace(a_spec(), kernel=kernel, extra_append=("debug",))

    assert spec.kernel_command_line == "root=/dev/sda1 ro debug"


def test_kernel_command_line_enables_the_iommu_and_ends_with_the_extra_arguments() -> None:
    kernel = replace(KERNEL, append=("quiet",))
    spec = replace(a_spec(), accelerator=Accelerator.KVM, kernel=kernel, has_iommu=True)

    assert replace(spec, extra_append=("debug",)).kernel_command_line == (
        "quiet intel_iommu=on debug"
    )


def test_kernel_of_an_emulated_machine_does_not_check_its_timer() -> None:
    """On a busy host, Linux misses ticks of the timer when it checks them, and panics."""
    spec = replace(a_spec(), accelerator=Accelerator.TCG, kernel=KERNEL)

    assert "no_timer_check" in spec.kernel_command_line.split()


def test_machine_may_reboot_only_if_its_kernel_is_loaded_again() -> None:
    kernels = (KERNEL, replace(KERNEL, may_reboot=True), Firmware())

    assert [replace(a_spec(), kernel=each).may_reboot for each in kernels] == [False, True, True]


OF_ONE_RUN = replace(
    a_spec("node-7"),
    seed=Path("/runs/7/seed"),
    disk=Path("/runs/7/disk"),
    memory_file=MemoryFile(path=Path("/checkpoints/ram"), is_private=True),
    is_restored=True,
    host_ports=(HostPort(host_port=41000, guest_port=443),),
)


def _flash(run: int) -> Firmware:
    folder = Path(f"/runs/{run}")
    return Firmware(flash=Flash(code=folder / "CODE.fd", variables=folder / "VARS.fd"))


def test_machine_name_and_paths_do_not_change_the_key_of_a_checkpoint() -> None:
    """A rename of a field here would invalidate the checkpoints of users."""
    neutral = without_paths(replace(OF_ONE_RUN, kernel=_flash(7)))

    assert neutral == MachineSpec(
        name="checkpoint",
        accelerator=Accelerator.TCG,
        kernel=Firmware(flash=Flash(code=Path("code"), variables=Path("variables"))),
        disk=Path("disk"),
        memory_file=MemoryFile(path=Path("ram"), is_private=False),
    )
    kernel = without_paths(OF_ONE_RUN).kernel
    assert kernel == replace(KERNEL, vmlinuz=Path("vmlinuz"), initrd=Path("initrd"))


def test_specs_with_different_devices_differ_even_after_removal_of_paths() -> None:
    others = [
        replace(OF_ONE_RUN, accelerator=Accelerator.KVM),
        replace(OF_ONE_RUN, kernel=replace(KERNEL, version="6.12")),
        replace(OF_ONE_RUN, kernel=replace(KERNEL, append=("quiet",))),
        replace(OF_ONE_RUN, kernel=Firmware()),
        replace(OF_ONE_RUN, memory_mib=2048),
        replace(OF_ONE_RUN, cpus=2),
        replace(OF_ONE_RUN, root_ports=2),
        replace(OF_ONE_RUN, root_port_window_mib=128),
        replace(OF_ONE_RUN, root_port_aperture_mib=128),
        replace(OF_ONE_RUN, has_iommu=True),
        replace(OF_ONE_RUN, extra_append=("debug",)),
    ]

    assert [each for each in others if without_paths(each) == without_paths(OF_ONE_RUN)] == []
