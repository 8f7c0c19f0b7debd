"""What a layer's checkpoint depends on, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError
from harness.lab.layers import BuiltOrigin, Layer, booted, cloud_init_done, key_parts, source_parts
from harness.machine.spec import Accelerator
from suites.unit.lab.drivers import StuckDriver
from suites.unit.lab.test_node import an_image

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.lab.machine import LabMachine


def parts_of(
    layer: Layer,
    *,
    accelerator: Accelerator = Accelerator.TCG,
    disk: Path = Path("/runs/disk.qcow2"),
    name: str = "node",
) -> Mapping[str, object]:
    spec = layer.spec(name, accelerator=accelerator, qemu="qemu", disk=disk)
    return key_parts(layer, spec, StuckDriver())


def an_origin(**changes: Any) -> BuiltOrigin:
    image = an_image()
    return replace(BuiltOrigin(image=image, kernel=image.newest_kernel), **changes)


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

    assert parts_of(booted(elsewhere), disk=Path("/moved/disk"), name="other") == here
    assert "/moved" not in str(here)


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_mib": 2048},
        {"slots": 10},
        {"origin": an_origin(image=replace(an_image(), key="1" * 64))},
        {"origin": an_origin(kernel=an_image().other_kernel)},
        {"parts": {"payload": "2"}},
    ],
    ids=["memory", "slots", "image", "kernel", "parts"],
)
def test_whatever_changes_the_bytes_counts(changes: dict[str, Any]) -> None:
    layer = booted(an_image())

    assert parts_of(replace(layer, **changes)) != parts_of(layer)


def test_accelerator_counts() -> None:
    layer = booted(an_image())

    assert parts_of(layer, accelerator=Accelerator.KVM) != parts_of(layer)


def test_machine_is_held_before_cloud_init() -> None:
    spec = booted(an_image()).spec(
        "node", accelerator=Accelerator.TCG, qemu="qemu", disk=Path("disk")
    )

    assert "systemd.unit=basic.target" in spec.extra_append


def test_few_slots_share_a_checkpoint_and_many_get_their_own() -> None:
    assert booted(an_image(), slots=1) == booted(an_image(), slots=2)
    assert booted(an_image(), slots=9).slots == 9


def test_layer_on_top_keeps_its_parent_and_names_its_source() -> None:
    below = booted(an_image())

    above = below.then("ready", do_nothing)

    assert above.parent == below
    assert above.parts["make"] == "do_nothing"
    assert above.parts == source_parts(do_nothing)


def test_parts_that_were_named_stand_for_the_source() -> None:
    assert booted(an_image()).then("ready", do_nothing, {"files": "1"}).parts == {"files": "1"}


def test_function_without_a_source_file_is_refused() -> None:
    scope: dict[str, Any] = {}
    exec("def make(machine): ...", scope)  # noqa: S102 - a function that no file holds

    with pytest.raises(HarnessError, match=r"no source file.*`parts`"):
        booted(an_image()).then("ready", scope["make"])


def test_seed_counts_for_the_layer_after_cloud_init() -> None:
    layer = cloud_init_done(booted(an_image()))

    assert set(layer.parts) == {"seed", "let_go"}
    assert layer.parent == booted(an_image())
