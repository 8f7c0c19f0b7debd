"""The parts of a lab, and the requests that a lab sends to its parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest
import yaml

import harness.lab as lab_module
from harness.errors import BadInputError, HarnessError, RequirementError
from harness.gpu.script import GpuScript
from harness.gpu.transport import Transport
from harness.image import FirmwareType
from harness.image.catalogue import load_catalogue
from harness.image.cloud.derived_images import DerivedStore
from harness.image.cloud.store import CloudImageStore
from harness.image.store import ImageStore
from harness.lab import Lab, images, prepared_images, resumed_machine, shared_caches
from harness.lab.cloud_images import CloudImageBoot, CloudImageSource
from harness.lab.machine_bundle import read_bundle
from harness.lab.node_request import NodeRequest, render_node_seed
from harness.lab.running_machines import Machines
from harness.lab.saved_states import BuiltImageSource, booted, cloud_init_done, naming_seed
from harness.machine.description.spec import DEFAULT_SLOTS, HostPort
from harness.progress import ProgressEvent
from harness.progress import Stage as Progress
from harness.provisioner.gpu_node import CONFIG_PATH
from harness.settings import GpuEmulation, LicenceId, MachineStart
from suites.unit.gpu.models import a_model
from suites.unit.image.formats.small_qcow2 import qcow2_on
from suites.unit.lab.builders import a_cloud_image, a_request, an_image
from suites.unit.lab.bundle_folder import a_bundle
from suites.unit.lab.fake_vm import limit_of
from suites.unit.lab.stage import a_checkpoint
from suites.unit.user_data import content_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.evidence import Evidence
    from harness.lab.description import MachineDescription
    from harness.lab.node import Node
    from harness.machine.checkpoint.store import Checkpoint


# -- caches ------------------------------------------------------------------------------------------


def test_lab_opens_its_caches_in_the_folders_that_the_settings_name(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: dict[str, tuple[tuple[object, ...], dict[str, object]]] = {}

    def note(name: str) -> Any:
        def make(*args: object, **how: object) -> SimpleNamespace:
            made[name] = (args, how)
            return SimpleNamespace(close=lambda: None)

        return make

    for module, name in ((shared_caches, "ImageStore"), (lab_module, "CheckpointStore")):
        monkeypatch.setattr(module, name, note(name))
    shared = {name: object() for name in ("images", "checkpoints", "derived")}
    monkeypatch.setattr(images, "open_shared_caches", lambda _: shared)
    accepted = frozenset({LicenceId("nvidia")})
    settings = replace(
        lab.settings, accepted_licences=accepted, checkpoint_limit_mib=4321, cache=tmp_path
    )

    replace(lab, settings=settings)

    assert made == {
        "ImageStore": (
            (settings.image_store,),
            {"accepted_licences": accepted, "source": shared["images"]},
        ),
        "CheckpointStore": (
            (settings.checkpoint_store,),
            {"limit_mib": 4321, "source": shared["checkpoints"]},
        ),
    }


def test_closed_lab_releases_its_images_and_checkpoints(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(lab.checkpoint_builder, "close", lambda: closed.append("checkpoints"))
    monkeypatch.setattr(ImageStore, "close", lambda _: closed.append("images"))
    monkeypatch.setattr(CloudImageStore, "close", lambda _: closed.append("cloud images"))
    monkeypatch.setattr(DerivedStore, "close", lambda _: closed.append("derived"))

    lab.close()
    assert closed == ["checkpoints", "images"]
    _ = lab.cloud_images, lab.derived
    lab.close()

    assert closed[2:] == ["checkpoints", "images", "cloud images", "derived"]


# -- images ------------------------------------------------------------------------------------------


def test_image_of_a_recipe_is_built_if_the_cache_lacks_the_image(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, int, object]] = []

    def ensure(_: ImageStore, recipe: Any, *, deadline: Any, listener: object) -> object:
        asked.append((recipe.name, limit_of(deadline), listener))
        return an_image()

    monkeypatch.setattr(ImageStore, "ensure", ensure)
    lab = replace(lab, settings=replace(lab.settings, image="debian-13,debian-12"))

    assert lab.node_image("debian-12") == an_image()
    assert lab.node_image() == an_image()

    assert asked == [("debian-12", 1500, lab.listener), ("debian-13", 1500, lab.listener)]


def a_cloud_recipe() -> str:
    catalogue = load_catalogue()
    names = [name for name in catalogue.files if "cloud" in name or "ubuntu" in name]
    return min(names)


def test_cloud_image_is_prepared_before_it_is_used_as_a_node_image(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = a_cloud_image()
    monkeypatch.setattr(Lab, "cloud_image", lambda _, name: replace(image, name=name))
    monkeypatch.setattr(prepared_images, "prepare_node_image", lambda _, found: found)
    name = a_cloud_recipe()

    assert cast("Any", lab.node_image(name)).name == name


# -- nodes -------------------------------------------------------------------------------------------


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[MachineDescription]:
    """Return the descriptions of the machines that a lab creates; no machine is started."""
    described: list[MachineDescription] = []

    def create(_: Machines, description: MachineDescription) -> Any:
        described.append(description)
        raise HarnessError("It is not started.")

    monkeypatch.setattr(Machines, "created", create)
    return described


def machine_of(
    lab: Lab, created: list[MachineDescription], request: NodeRequest, **how: Any
) -> MachineDescription:
    with pytest.raises(HarnessError, match="not started"), lab.boot(request, **how):
        pass
    return created[-1]


def configuration_of(machine: MachineDescription) -> dict[str, Any]:
    """Return the provisioner's configuration that cloud-init writes."""
    assert machine.seed is not None
    (content,) = (
        content_of(file)
        for file in yaml.safe_load(machine.seed.user_data)["write_files"]
        if file["path"] == CONFIG_PATH
    )
    return cast("dict[str, Any]", json.loads(content))


def everything() -> dict[str, Any]:
    return {
        "gpus": [a_model()],
        "gpu_scripts": {"gpu0": GpuScript(is_dead=True)},
        "host_ports": [HostPort(host_port=1, guest_port=2)],
        "memory_mib": 2048,
        "cpus": 2,
        "spare_slots": 6,
    }


def test_node_with_a_cold_boot_has_the_requested_kernel_and_all_requested_options(
    lab: Lab, created: list[MachineDescription], tmp_path: Path
) -> None:
    asked = everything()
    request = a_request(kernel=an_image().other_kernel, may_reboot=True, **asked)

    machine = machine_of(lab, created, request, disk=tmp_path / "disk")

    assert machine.source == BuiltImageSource(
        image=an_image(), kernel_image=an_image().other_kernel, is_held=False, may_reboot=True
    )
    spec = machine.spec
    assert (spec.name, spec.root_ports) == ("node", 7)
    few = machine_of(lab, created, a_request(), disk=tmp_path / "other")
    assert few.spec.root_ports == DEFAULT_SLOTS
    assert (spec.memory_mib, spec.cpus) == (2048, 2)
    assert (machine.checkpoint, machine.backing) == (None, None)
    assert spec.disk == tmp_path / "disk"
    assert machine.gpus == asked["gpus"]
    assert machine.gpu_scripts == asked["gpu_scripts"]
    assert list(spec.host_ports) == asked["host_ports"]
    assert machine.hostname is None


@pytest.fixture
def states(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the saved states for which the lab requested checkpoints."""
    asked: list[Any] = []

    def ensure(state: object) -> Checkpoint:
        asked.append(state)
        return a_checkpoint()

    monkeypatch.setattr(lab.checkpoint_builder, "ensure_checkpoint", ensure)
    return asked


def test_clone_continues_from_a_checkpoint_of_its_image_and_kernel(
    lab: Lab, created: list[MachineDescription], states: list[Any]
) -> None:
    request = a_request(kernel=an_image().other_kernel, **everything())

    machine = machine_of(lab, created, request, start=MachineStart.CLONE)

    state = booted(an_image(), an_image().other_kernel, memory_mib=2048, cpus=2, slots=7)
    assert states == [state]
    assert (machine.checkpoint, machine.source) == (a_checkpoint(), state.origin)
    spec = machine.spec
    assert (spec.name, spec.root_ports, spec.cpus) == ("node", 7, 2)
    assert machine.seed is not None
    assert machine.hostname is None


def test_node_is_not_cloned_if_a_cold_start_or_its_own_disk_or_a_reboot_is_requested(
    lab: Lab, created: list[MachineDescription], states: list[Any]
) -> None:
    lab.settings = replace(lab.settings, machine_start=MachineStart.CLONE)
    may_reboot = a_request(may_reboot=True)
    rows: list[tuple[NodeRequest, Mapping[str, Any], bool]] = [
        (a_request(), {}, True),
        (a_request(), {"start": MachineStart.COLD}, False),
        (a_request(), {"disk": Path("/own/disk")}, False),
        (may_reboot, {"start": MachineStart.CLONE}, False),
    ]
    for request, how, is_clone in rows:
        states.clear()

        machine = machine_of(lab, created, request, **how)

        assert (machine.checkpoint is not None, bool(states)) == (is_clone, is_clone), how


@pytest.mark.parametrize(
    ("has", "is_clone"),
    [
        ((Transport.MPQEMU, GpuEmulation.GSP), False),
        ((Transport.MPQEMU, GpuEmulation.IDENTITY), True),
        ((Transport.VFIO_USER, GpuEmulation.GSP), True),
        # A node without a GPU needs no transport.
        ((None, GpuEmulation.GSP), True),
    ],
)
def test_node_with_gsp_gpus_over_mpqemu_is_not_cloned(
    lab: Lab,
    created: list[MachineDescription],
    states: list[Any],
    has: tuple[Transport | None, GpuEmulation],
    is_clone: bool,
) -> None:
    transport, emulation = has
    events: list[ProgressEvent] = []
    lab.settings = replace(lab.settings, machine_start=MachineStart.CLONE, gpu_emulation=emulation)
    lab.listener = events.append

    def find(_: object) -> Transport:
        if transport is None:
            raise RequirementError("This QEMU takes no emulated GPU.")
        return transport

    cast("Any", lab.driver).transport = find

    machines = [machine_of(lab, created, a_request()) for _ in range(2)]

    assert [each.checkpoint is not None for each in machines] == [is_clone, is_clone]
    assert bool(states) is is_clone
    notices = [each for each in events if "harness qemu sid" in each.message]
    assert len(notices) == (0 if is_clone else 1)
    # The lab of `--machine-plan` raises an error at an event of stage WAIT.
    assert all(each.stage is Progress.CHECK for each in notices)


def test_clone_that_skips_cloud_init_has_a_hostname_but_no_seed(
    lab: Lab,
    created: list[MachineDescription],
    states: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_keys() -> NoReturn:
        raise AssertionError(
            "A node that skips cloud-init gets no SSH keys, and the host may lack OpenSSH."
        )

    monkeypatch.setattr(lab, "keys", no_keys)
    request = a_request(skip_cloud_init=True)
    machine = machine_of(lab, created, request, start=MachineStart.CLONE)

    assert states == [cloud_init_done(booted(an_image(), slots=1))]
    assert (machine.seed, machine.hostname) == (None, "node")


@pytest.mark.usefixtures("states")
def test_clone_has_no_hostname_or_gpus_unless_they_are_requested(
    lab: Lab, created: list[MachineDescription]
) -> None:
    gpus = {"gpus": [a_model()], "gpu_scripts": {"gpu0": GpuScript(is_dead=True)}}
    for asked in ({}, {"hostname": "other", **gpus}):
        with (
            pytest.raises(HarnessError, match="not started"),
            lab.clone(booted(an_image()), "mine", **cast("Any", asked)),
        ):
            pass

    plain, other = created
    assert (plain.spec.name, plain.hostname) == (other.spec.name, None) == ("mine", None)
    assert (list(plain.gpus), plain.gpu_scripts) == ([], {})
    assert other.hostname == "other"
    assert {"gpus": other.gpus, "gpu_scripts": other.gpu_scripts} == gpus


def test_each_resume_of_a_bundle_starts_a_new_machine_on_the_given_base_image(
    lab: Lab,
    created: list[MachineDescription],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(resumed_machine, "qemu_version", lambda _: "7.2.22")
    saved = a_bundle(tmp_path / "checkpoint")
    qcow2_on(saved / "disk.qcow2", "")

    for _ in range(2):
        with (
            pytest.raises(HarnessError, match="not started"),
            lab.resume(read_bundle(saved), base=tmp_path / "base", kept_until=5.0),
        ):
            pass

    first, again = created
    assert (first.kept_until, first.source.disk) == (5.0, tmp_path / "base")
    assert (first.bundle, first.spec.qemu) == (read_bundle(saved), lab.settings.qemu)
    # Each resumed machine has its own folder.
    assert first.folder != again.folder
    assert {first.folder.parent, again.folder.parent} == {lab.folder}
    assert first.spec.disk.parent == first.folder


def test_node_is_cloned_from_the_state_that_the_derive_function_of_its_request_returns(
    lab: Lab, created: list[MachineDescription], states: list[Any]
) -> None:
    request = a_request(
        skip_cloud_init=True,
        derive=lambda state: state.derive("ready", lambda _: None, {"files": "1"}),
    )

    machine_of(lab, created, request, start=MachineStart.CLONE)

    assert [state.name for state in states] == ["ready"]


def test_node_that_skips_cloud_init_and_boots_cold_gets_its_name_from_a_seed(
    lab: Lab, created: list[MachineDescription]
) -> None:
    machine = machine_of(lab, created, a_request(skip_cloud_init=True))

    assert machine.seed == naming_seed("node")


def test_seed_of_a_node_has_its_provisioner_and_its_ssh_keys_and_early_commands(
    lab: Lab, created: list[MachineDescription]
) -> None:
    other = replace(lab.provisioner, name="other", run=["/opt/other"])
    for provisioner in (None, other):
        request = a_request(early=[["mine"]], provisioner=provisioner)

        machine = machine_of(lab, created, request)

        assert machine.seed == render_node_seed(
            request,
            instance_id=f"node-{machine.folder.name}",
            provisioner=provisioner or lab.provisioner,
            access=lab.identity.access,
            early=[["mine"]],
        )


def test_provisioner_gets_more_time_on_a_busy_host(
    lab: Lab, created: list[MachineDescription], tmp_path: Path
) -> None:
    """A node with a fifth of a processor needs about five times as long for each command."""
    (tmp_path / "proc-of-the-host/pressure").mkdir()
    (tmp_path / "proc-of-the-host/pressure/cpu").write_text("some avg10=99.00\n")
    (tmp_path / "proc-of-the-host/loadavg").write_text("10.00 1.00 1.00 3/190 77\n")

    for own, of_run, multiplier in (
        (None, 1.0, 5.0),
        (None, 3.0, 15.0),
        (None, 900.0, 1000.0),
        (2.0, 3.0, 2.0),
    ):
        lab.settings = replace(lab.settings, timeout_multiplier=of_run)
        machine = machine_of(lab, created, a_request(time_limit_multiplier=own))

        assert configuration_of(machine)["time_limit_multiplier"] == multiplier


def test_node_request_with_an_invalid_time_limit_multiplier_is_refused() -> None:
    for multiplier in (0.5, 1000.1, float("nan")):
        with pytest.raises(
            BadInputError, match=r"NodeRequest: key 'time_limit_multiplier': .* 1000"
        ):
            a_request(time_limit_multiplier=multiplier)


def test_provisioner_gets_only_the_time_limit_multiplier_of_the_run_on_a_quiet_host(
    lab: Lab, created: list[MachineDescription]
) -> None:
    for of_run, multiplier in ((3.0, 3.0), (1.0, None), (0.5, None)):
        lab.settings = replace(lab.settings, timeout_multiplier=of_run)

        machine = machine_of(lab, created, a_request())

        assert configuration_of(machine).get("time_limit_multiplier") == multiplier, of_run


def test_node_of_a_cloud_image_boots_from_the_image_even_if_a_clone_is_requested(
    lab: Lab, created: list[MachineDescription], states: list[Any]
) -> None:
    boot = CloudImageBoot(firmware=FirmwareType.BIOS, memory_mib=2048)
    request = a_request(
        image=a_cloud_image(), cloud_image_boot=boot, early=[["mine"]], spare_slots=3
    )

    machine = machine_of(lab, created, request, start=MachineStart.CLONE)

    assert machine.source == CloudImageSource(image=a_cloud_image(), boot=boot)
    assert (machine.spec.name, machine.spec.root_ports, states) == ("node", 3, [])
    assert machine.spec.memory_mib == request.memory_mib
    text = str(machine.seed)
    assert text.index("harness-agent") < text.index("mine")


def test_machine_of_a_cloud_image_has_one_slot_and_the_requested_memory_and_disk(
    lab: Lab, created: list[MachineDescription], tmp_path: Path
) -> None:
    boot = CloudImageBoot(memory_mib=2048)

    for _ in range(2):
        with (
            pytest.raises(HarnessError, match="not started"),
            lab.boot_cloud_image(a_cloud_image(), boot, name="mine", disk=tmp_path / "disk"),
        ):
            pass

    machine, again = created
    assert machine.seed is not None
    assert again.seed is not None
    # With the same instance id, cloud-init would skip its first-boot modules at the second boot of a disk.
    assert machine.seed.meta_data != again.seed.meta_data
    spec = machine.spec
    assert (spec.name, spec.root_ports, spec.memory_mib) == ("mine", 1, 2048)
    assert spec.disk == tmp_path / "disk"
    assert machine.source == CloudImageSource(image=a_cloud_image(), boot=boot.of(a_cloud_image()))


# -- evidence ----------------------------------------------------------------------------------------


def test_evidence_that_can_not_be_kept_does_not_hide_the_first_error(lab: Lab) -> None:
    rows: list[Exception] = [HarnessError("No space."), OSError("No space.")]
    for error in rows:
        events: list[ProgressEvent] = []
        lab = replace(lab, listener=events.append)

        def collect(error: Exception = error) -> Evidence:
            raise error

        node = SimpleNamespace(collect_available=collect, request=SimpleNamespace(name="node"))

        assert lab.try_save_evidence(cast("Node", node), "test/node") is None

        (event,) = events
        assert event.message == "the evidence of 'node' could not be kept: No space."
