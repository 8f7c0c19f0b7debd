"""Machine specs: which values are valid, and which values are part of a checkpoint's key."""

from __future__ import annotations

import contextlib
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    for name in ("", "-n", "a b", "a,b", "é", "n\n", "a" * 64):
        with contextlib.suppress(BadInputError):
            accepted.append(a_spec(name))

    assert accepted == []
    with pytest.raises(BadInputError, match="key 'name': 'a/b' is not a machine name"):
        a_spec("a/b")


@given(st.text(string.printable + "é\0", max_size=70))
def test_accepted_name_is_valid_as_a_file_name_and_as_one_word_for_qemu(name: str) -> None:
    try:
        a_spec(name)
    except BadInputError:
        return
    assert not set(name) & set(",/= \n\0")
    assert name not in {"", ".", ".."}


@pytest.mark.parametrize(
    ("key", "least"),
    [
        ("memory_mib", 128),
        ("cpus", 1),
        ("root_ports", 0),
        ("root_port_window_mib", 2),
        ("root_port_aperture_mib", 0),
    ],
)
def test_machine_value_that_is_too_small_is_refused(key: str, least: int) -> None:
    with pytest.raises(
        BadInputError, match=rf"key '{key}': {least - 1} is too small; use {least} or more"
    ):
        a_spec(**{key: least - 1})

    assert getattr(a_spec(**{key: least}), key) == least


@pytest.mark.parametrize(("cpus", "threads"), [(1, "tcg,thread=single"), (2, "tcg,thread=multi")])
def test_several_vcpus_of_a_machine_without_kvm_run_in_parallel(cpus: int, threads: str) -> None:
    assert Accelerator.TCG.to_qemu(cpus) == threads


def test_extra_kernel_arguments_are_refused_with_a_boot_loader() -> None:
    with pytest.raises(BadInputError, match=r"key 'extra_append': .*boot a DirectKernel"):
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


def test_kernel_command_line_of_a_machine_with_an_iommu_enables_the_iommu() -> None:
    kernel = replace(KERNEL, append=("quiet",))
    spec = replace(a_spec(), accelerator=Accelerator.KVM, kernel=kernel, has_iommu=True)

    assert spec.kernel_command_line == "quiet intel_iommu=on"


def test_kernel_of_an_emulated_machine_does_not_check_its_timer() -> None:
    """On a busy host, Linux misses ticks of the timer when it checks them, and panics."""
    spec = replace(a_spec(), accelerator=Accelerator.TCG, kernel=KERNEL)

    assert "no_timer_check" in spec.kernel_command_line.split()


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (KERNEL, False),
        (replace(KERNEL, may_reboot=True), True),
        (Firmware(), True),
    ],
    ids=["kernel", "kernel that may reboot", "firmware"],
)
def test_machine_may_reboot_only_if_its_kernel_is_loaded_again(
    kernel: DirectKernel | Firmware, *, expected: bool
) -> None:
    assert replace(a_spec(), kernel=kernel).may_reboot is expected


OF_ONE_RUN = replace(
    a_spec("node-7"),
    seed=Path("/runs/7/seed"),
    disk=Path("/runs/7/disk"),
    memory_file=MemoryFile(path=Path("/checkpoints/ram"), is_private=True),
    is_restored=True,
    host_ports=(HostPort(host_port=41000, guest_port=443),),
)
OF_ANOTHER_RUN = replace(a_spec("node-8"), disk=Path("/runs/8/disk"))


def _flash(run: int) -> Firmware:
    folder = Path(f"/runs/{run}")
    return Firmware(flash=Flash(code=folder / "CODE.fd", variables=folder / "VARS.fd"))


@pytest.mark.parametrize(
    ("kernel", "same_kernel_elsewhere"),
    [
        (KERNEL, replace(KERNEL, vmlinuz=Path("/other/k"), initrd=Path("/other/i"))),
        (_flash(7), _flash(8)),
        (Firmware(), Firmware()),
    ],
    ids=["kernel", "flash", "firmware"],
)
def test_specs_of_two_runs_with_the_same_devices_are_equal_after_removal_of_paths(
    kernel: DirectKernel | Firmware, same_kernel_elsewhere: DirectKernel | Firmware
) -> None:
    one = replace(OF_ONE_RUN, kernel=kernel)
    other = replace(OF_ANOTHER_RUN, kernel=same_kernel_elsewhere)

    assert without_paths(one) == without_paths(other)


def test_facts_of_one_run_do_not_change_the_key_of_a_checkpoint() -> None:
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
