"""What the checkpoint of a saved state depends on, and what it does not depend on."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError
from harness.lab.machine import LabMachine
from harness.lab.machine_cloud_init import START_CLOUD_INIT
from harness.lab.saved_states import (
    BuiltImageSource,
    SavedState,
    booted,
    cloud_init_done,
    describe_clone,
    key_parts,
    naming_seed,
    source_parts,
)
from harness.machine.description.spec import Accelerator, DirectKernel
from suites.unit.lab.builders import a_platform, a_prepared_image, an_image
from suites.unit.lab.drivers import StuckDriver
from suites.unit.lab.stage import Stage, a_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.cloudinit import SeedFiles
    from harness.image import Image


def parts_of(
    saved_state: SavedState,
    *,
    accelerator: Accelerator = Accelerator.TCG,
    folder: Path = Path("/runs"),
    name: str = "node",
) -> Mapping[str, object]:
    machine = describe_clone(saved_state, a_platform(accelerator), folder, None, name=name)
    return key_parts(saved_state, machine.spec, StuckDriver())


def an_origin(**changes: Any) -> BuiltImageSource:
    image = an_image()
    return replace(BuiltImageSource(image=image, kernel_image=image.newest_kernel), **changes)


def do_nothing(_: LabMachine) -> None:
    """Leave the machine as it is."""


def test_key_of_a_saved_state_does_not_depend_on_its_name_or_a_folder() -> None:
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


def test_saved_state_key_depends_on_image_and_kernel_and_machine_options_and_parts() -> None:
    saved_state = booted(an_image())
    others = [
        replace(saved_state, memory_mib=2048),
        replace(saved_state, slots=10),
        replace(saved_state, origin=an_origin(image=replace(an_image(), key="1" * 64))),
        replace(saved_state, origin=an_origin(kernel_image=an_image().other_kernel)),
        replace(saved_state, parts={"payload": "2"}),
        replace(saved_state, has_iommu=True),
        replace(saved_state, cpus=2),
    ]

    here = parts_of(saved_state)
    assert [other for other in others if parts_of(other) == here] == []
    assert parts_of(saved_state, accelerator=Accelerator.KVM) != here


def test_state_has_a_default_number_of_slots_unless_more_slots_are_requested() -> None:
    assert booted(an_image(), slots=1) == booted(an_image(), slots=2)
    assert booted(an_image(), slots=9).slots == 9


def test_parts_of_a_derived_state_default_to_the_source_of_its_function() -> None:
    below = booted(an_image())

    above = below.derive("ready", do_nothing)

    assert above.parent == below
    source = Path(__file__).read_bytes()
    assert above.parts == source_parts(do_nothing)
    assert above.parts == {
        "make": "do_nothing",
        "module_sha256": hashlib.sha256(source).hexdigest(),
    }
    for parts in ({"files": "1"}, {}):
        assert below.derive("ready", do_nothing, parts).parts == parts


def test_function_without_a_source_file_is_refused() -> None:
    scope: dict[str, Any] = {}
    exec("def make(machine): ...", scope)  # noqa: S102 - a function that no file holds

    for make in (scope["make"], print):
        with pytest.raises(HarnessError, match=r"no source file.*`parts`"):
            booted(an_image()).derive("ready", make)


# -- the first machine -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "limit_s"), [(an_image(), 90), (a_prepared_image(), 180)], ids=["built", "prepared"]
)
def test_booted_state_waits_for_basic_target_and_containerd_service(
    stage: Stage, image: Image, limit_s: int
) -> None:
    with stage.machine() as machine:
        booted(image).origin.wait_until_booted(machine)

    units = [each for each in stage.noted if each[0] == "unit"]
    assert units == [("unit", "basic.target", limit_s), ("unit", "containerd.service", limit_s)]
    asked = [argv for argv in stage.agent.commands() if argv[0] == "systemctl"]
    assert asked == [
        ("systemctl", "cat", "basic.target"),
        ("systemctl", "cat", "containerd.service"),
    ]


def test_checkpoint_of_an_image_without_containerd_does_not_wait_for_containerd(
    stage: Stage,
) -> None:
    stage.agent.refused.add("containerd.service")

    with stage.machine() as machine:
        booted(an_image()).origin.wait_until_booted(machine)

    assert [each[1] for each in stage.noted if each[0] == "unit"] == ["basic.target"]


def test_networkd_of_a_prepared_cloud_image_starts_after_netplan(stage: Stage) -> None:
    for image, is_written in ((an_image(), False), (a_prepared_image(), True)):
        with stage.machine() as machine:
            booted(image).origin.wait_until_booted(machine)

        path = "/run/systemd/system/cloud-init-local.service.d/50-netplan.conf"
        written = {argv[-1]: text.decode() for argv, text in stage.agent.stdin.items()}
        assert (path in written) is is_written, image
        if is_written:
            assert "systemd-networkd.service" in written[path], image


def test_clone_has_the_kernel_and_the_vcpus_and_the_slots_of_its_saved_state() -> None:
    state = booted(
        an_image(), an_image().other_kernel, memory_mib=2048, cpus=2, slots=7, has_iommu=True
    )

    machine = describe_clone(state, a_platform(), Path("/runs/1"), a_checkpoint(), name="mine")

    assert (state.name, machine.spec.name) == ("debian-12-booted", "mine")
    spec = machine.spec
    assert (spec.memory_mib, spec.cpus, spec.root_ports) == (2048, 2, 7)
    assert spec.has_iommu
    assert (machine.checkpoint, machine.source) == (a_checkpoint(), state.origin)
    assert isinstance(spec.kernel, DirectKernel)
    assert spec.kernel.version == an_image().other_kernel.version


def test_machine_for_a_checkpoint_boots_only_to_basic_target() -> None:
    machine = describe_clone(booted(an_image()), a_platform(), Path("/runs/1"), None)

    assert "systemd.unit=basic.target" in machine.spec.kernel_command_line
    assert machine.spec.name == "debian-12-booted"


def test_cloud_init_done_state_is_made_with_a_seed_that_only_sets_the_hostname(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[SeedFiles] = []
    monkeypatch.setattr(LabMachine, "run_cloud_init", lambda _, seed: seeds.append(seed))
    state = cloud_init_done(booted(an_image()))

    assert (state.name, state.parent) == ("debian-12-cloud-init-done", booted(an_image()))
    assert state.make is not None
    state.make(object.__new__(LabMachine))

    assert seeds == [naming_seed("clone")]
    assert "hostname: clone" in str(seeds[0])
    assert state.parts == {
        "seed": hashlib.sha256(repr(naming_seed("clone")).encode()).hexdigest(),
        "start_cloud_init": START_CLOUD_INIT,
    }
