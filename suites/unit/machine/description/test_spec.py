"""What a machine may be asked to be."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import BadInputError
from harness.machine.description.spec import Accelerator, DirectKernel, Firmware, MachineSpec

KERNEL = DirectKernel(version="6.1", vmlinuz=Path("/k"), initrd=Path("/i"))


def a_spec(name: str = "node", /, **sizes: Any) -> MachineSpec:
    return MachineSpec(
        name=name, accelerator=Accelerator.TCG, kernel=KERNEL, disk=Path("/d"), **sizes
    )


@pytest.mark.parametrize("name", ["node", "n", "fast-path", "6.1.0-56-cloud-amd64", "a" * 63])
def test_plain_names_are_taken(name: str) -> None:
    assert a_spec(name).name == name


@pytest.mark.parametrize("name", ["", "-n", ".n", "a b", "a,b", "a/b", "..", "é", "n\n", "a" * 64])
def test_names_that_would_break_a_command_line_or_a_path_are_refused(name: str) -> None:
    with pytest.raises(BadInputError, match="is not a machine name"):
        a_spec(name)


@given(st.text(string.printable + "é\0", max_size=70))
def test_accepted_name_is_a_word_for_qemu_and_a_file_name(name: str) -> None:
    try:
        a_spec(name)
    except BadInputError:
        return
    assert not set(name) & set(",/= \n\0")
    assert name not in {"", ".", ".."}


@pytest.mark.parametrize(
    ("key", "too_little"),
    [("memory_mib", 127), ("cpus", 0), ("root_ports", -1), ("root_port_window_mib", 1)],
)
def test_too_little_of_anything_is_refused(key: str, too_little: int) -> None:
    with pytest.raises(BadInputError, match=rf"key '{key}': {too_little} is too small"):
        a_spec(**{key: too_little})


def test_waits_are_longer_where_instructions_are_translated() -> None:
    assert Accelerator.TCG.patience > Accelerator.KVM.patience


def test_command_line_of_a_boot_loader_takes_no_arguments() -> None:
    with pytest.raises(BadInputError, match=r"key 'extra_append': \['quiet'\] can't be added"):
        MachineSpec(
            name="node",
            accelerator=Accelerator.TCG,
            kernel=Firmware(),
            disk=Path("/d"),
            extra_append=("quiet",),
        )
