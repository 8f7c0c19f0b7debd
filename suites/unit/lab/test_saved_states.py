"""What a saved state's checkpoint depends on, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError
from harness.lab.machine_request import finish_spec
from harness.lab.saved_states import (
    BuiltImageSource,
    SavedState,
    booted,
    booting_node,
    cloud_init_done,
    key_parts,
    source_parts,
)
from harness.machine.description.spec import Accelerator
from suites.unit.lab.builders import a_platform, an_image
from suites.unit.lab.drivers import StuckDriver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.lab.machine import LabMachine


def parts_of(
    saved_state: SavedState,
    *,
    accelerator: Accelerator = Accelerator.TCG,
    folder: Path = Path("/runs"),
    name: str = "node",
) -> Mapping[str, object]:
    spec = finish_spec(saved_state.machine(name, None), a_platform(accelerator), folder)
    return key_parts(saved_state, spec, StuckDriver())


def an_origin(**changes: Any) -> BuiltImageSource:
    image = an_image()
    return replace(BuiltImageSource(image=image, kernel_image=image.newest_kernel), **changes)


def do_nothing(_: LabMachine) -> None:
    """Leave the machine as it is."""


def test_neither_name_nor_place_counts() -> None:
    elsewhere = replace(
        an_image(),
        kernels=tuple(
            replace(kernel, vmlinuz=Path("/moved/vmlinuz"), initrd=Path("/moved/initrd"))
            for kernel in an_image().kernels
        ),
    )

    here = parts_of(booted(an_image()))

    assert parts_of(booted(elsewhere), folder=Path("/moved"), name="other") == here
    assert "/moved" not in str(here)


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_mib": 2048},
        {"slots": 10},
        {"origin": an_origin(image=replace(an_image(), key="1" * 64))},
        {"origin": an_origin(kernel_image=an_image().other_kernel)},
        {"parts": {"payload": "2"}},
        {"has_iommu": True},
    ],
    ids=["memory", "slots", "image", "kernel", "parts", "iommu"],
)
def test_whatever_changes_the_bytes_counts(changes: dict[str, Any]) -> None:
    saved_state = booted(an_image())

    assert parts_of(replace(saved_state, **changes)) != parts_of(saved_state)


def test_accelerator_counts() -> None:
    saved_state = booted(an_image())

    assert parts_of(saved_state, accelerator=Accelerator.KVM) != parts_of(saved_state)


def test_iommu_that_is_requested_is_in_the_machine() -> None:
    request = booted(an_image(), has_iommu=True).machine("node", None)

    assert finish_spec(request, a_platform(), Path("/runs")).has_iommu


def test_machine_that_becomes_a_checkpoint_stops_before_cloud_init() -> None:
    assert "systemd.unit=basic.target" in booted(an_image()).origin.kernel_append
    assert booting_node("node", an_image()).source.kernel_append == ()


def test_few_slots_share_a_checkpoint_and_many_get_their_own() -> None:
    assert booted(an_image(), slots=1) == booted(an_image(), slots=2)
    assert booted(an_image(), slots=9).slots == 9


def test_saved_state_on_top_keeps_its_parent_and_names_its_source() -> None:
    below = booted(an_image())

    above = below.derive("ready", do_nothing)

    assert above.parent == below
    assert above.parts["make"] == "do_nothing"
    assert above.parts == source_parts(do_nothing)


def test_parts_that_were_named_stand_for_the_source() -> None:
    assert booted(an_image()).derive("ready", do_nothing, {"files": "1"}).parts == {"files": "1"}


def test_function_without_a_source_file_is_refused() -> None:
    scope: dict[str, Any] = {}
    exec("def make(machine): ...", scope)  # noqa: S102 - a function that no file holds

    with pytest.raises(HarnessError, match=r"no source file.*`parts`"):
        booted(an_image()).derive("ready", scope["make"])


def test_seed_counts_for_the_saved_state_after_cloud_init() -> None:
    saved_state = cloud_init_done(booted(an_image()))

    assert set(saved_state.parts) == {"seed", "start_cloud_init"}
    assert saved_state.parent == booted(an_image())
