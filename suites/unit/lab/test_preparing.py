"""A machine boots a cloud image once, to make a node image or to bake a driver into the image."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from harness.cloudinit import FINISHED
from harness.errors import HarnessError
from harness.image import DriverImage
from harness.image.cloud.derived_images import DerivedStore
from harness.image.store import ImageStore
from harness.lab import Lab, bakes, evidence_collection, prepared_images
from harness.lab.bakes import bake_cloud_image, bake_evidence, bake_node, clean_script
from harness.lab.cloud_images import CloudImageBoot, agent_commands
from harness.lab.node import Node
from harness.lab.prepared_images import (
    MAKE_DRIVER,
    MISSING,
    UNPACK,
    prepare_node_image,
    stand_in_archive,
)
from harness.machine.guest_time import MOST_TIMES
from harness.progress import ProgressEvent
from harness.progress import Stage as Progress
from harness.provisioner import BAKE, EXIT_CODE_PATH, ConfigurationFile
from harness.provisioner.gpu_node import CONFIG_PATH
from harness.provisioning.command import LocalRunner
from harness.settings import MachineStart
from suites.unit.evidence.folders import EvidenceFolder
from suites.unit.lab.builders import a_cloud_image, a_cloud_kernel, a_provisioner, an_image
from suites.unit.lab.fake_vm import limit_of
from suites.unit.lab.stage import RESULT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from harness.evidence import Evidence
    from harness.lab.machine import LabMachine
    from suites.unit.lab.stage import Stage

ARCHIVE = "/run/harness-stand-ins.tar"
_stand_in_archive = functools.cache(stand_in_archive)


KERNELS = (a_cloud_kernel("6.8.0-30"), a_cloud_kernel("6.8.0-31"))


@dataclass
class Workshop:
    """Replaces the image stores: makes images on `disk`, and records the requests and the overlays."""

    disk: Path
    noted: list[tuple[object, ...]] = field(default_factory=list)
    parts: list[Mapping[str, str]] = field(default_factory=list)
    limits_s: list[int] = field(default_factory=list)
    listeners: list[object] = field(default_factory=list)
    made: list[Any] = field(default_factory=list)

    @property
    def overlay(self) -> Path:
        return self.disk.with_name("overlay.qcow2")

    def make(self, make: Callable[[Path], object], parts: Mapping[str, str], how: Any) -> None:
        self.parts.append(parts)
        self.limits_s.append(limit_of(how["deadline"]))
        self.listeners.append(how["listener"])
        self.made.append(make(self.disk))


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path / "made/disk.qcow2")
    made.disk.parent.mkdir()

    def ensure_prepared(
        _: ImageStore, name: str, parts: Mapping[str, str], make: Any, **how: Any
    ) -> str:
        made.noted.append(("image", name))
        made.make(make, parts, how)
        return "the node image"

    def ensure_derived(
        _: ImageStore, parent: object, parts: Mapping[str, str], make: Any, **how: Any
    ) -> str:
        made.noted.append(("image", parent))
        made.make(make, parts, how)
        return "the baked image"

    def bake(
        _: DerivedStore, image: object, parts: Mapping[str, str], make: Any, **how: Any
    ) -> str:
        made.noted.append(("image", image))
        made.make(make, parts, how)
        return "the baked cloud image"

    def create_overlay(
        _: ImageStore, backing: Path, at: Path, *, size_gib: int | None = None
    ) -> None:
        made.noted.append(("overlay", backing, at, size_gib))
        at.touch()

    def flatten(disk: Path, to: Path, *, runner: object, timeout_s: float) -> None:
        assert isinstance(runner, LocalRunner)
        made.noted.append(("flatten", disk, to, timeout_s))

    monkeypatch.setattr(prepared_images, "stand_in_archive", _stand_in_archive)
    monkeypatch.setattr(ImageStore, "ensure_prepared", ensure_prepared)
    monkeypatch.setattr(ImageStore, "ensure_derived", ensure_derived)
    monkeypatch.setattr(DerivedStore, "bake", bake)
    monkeypatch.setattr(ImageStore, "create_overlay", create_overlay)
    for module in (prepared_images, bakes):
        monkeypatch.setattr(module, "flatten", flatten)
    monkeypatch.setattr(Lab, "cloud_image_kernels", lambda *_: KERNELS)
    monkeypatch.setattr(Lab, "node_image", lambda *_: an_image())
    return made


@pytest.fixture
def said(lab: Lab) -> list[ProgressEvent]:
    events: list[ProgressEvent] = []
    lab.listener = events.append
    return events


def messages(events: list[ProgressEvent], subject: str) -> list[str | None]:
    assert {(event.subject, event.stage) for event in events} == {(subject, Progress.BUILD)}
    return [event.message for event in events]


# -- node images -----------------------------------------------------------------------------------


def test_cloud_image_is_prepared_with_agent_and_stand_ins_in_one_boot_of_its_newest_kernel(
    lab: Lab,
    stage: Stage,
    asked: list[dict[str, Any]],
    workshop: Workshop,
    said: list[ProgressEvent],
) -> None:
    image = a_cloud_image()

    assert prepare_node_image(lab, image) == "the node image"  # type: ignore[comparison-overlap]

    assert asked == [
        {
            "image": image,
            "boot": CloudImageBoot(kernel=KERNELS[-1]),
            "name": "prepare",
            "disk": workshop.overlay,
        }
    ]
    assert workshop.noted == [
        ("image", "noble"),
        ("overlay", image.disk, workshop.overlay, 10),
        ("flatten", workshop.overlay, workshop.disk, 900),
    ]
    assert not workshop.overlay.exists()
    (prepared,) = workshop.made
    assert prepared.driver == image.driver
    assert [kernel.version for kernel in prepared.kernels] == ["6.8.0-30", "6.8.0-31"]
    assert {kernel.command_line[-1] for kernel in prepared.kernels} == {"console=ttyS0"}
    assert stage.agent.files == {ARCHIVE: _stand_in_archive()}
    ran = stage.agent.commands()
    unpacking = ("sh", "-c", UNPACK, "unpack", ARCHIVE, "/")
    assert unpacking in ran
    # The image already contains a driver.
    assert ("sh", "-c", MAKE_DRIVER) not in ran
    assert ran[-1] == ("systemctl", "--no-block", "poweroff")
    clean = ran[-2]
    assert "cloud-init clean" in clean[-1]
    limits_s = stage.agent.limits_s
    assert (limits_s[ran[0]], limits_s[unpacking], limits_s[clean]) == (450, 360, 90)
    assert ("power off", 90) in stage.noted
    assert messages(said, "noble") == [
        "booting it once, to add the guest agent and the stand-ins",
        "removing the files of its first boot",
        "writing its disk",
    ]
    assert (workshop.limits_s, workshop.listeners) == ([3000 * MOST_TIMES], [lab.listener])


def test_cloud_image_without_a_driver_gets_the_stand_in_driver(
    lab: Lab, stage: Stage, asked: list[dict[str, Any]], workshop: Workshop
) -> None:
    prepare_node_image(lab, a_cloud_image(driver=None))

    (prepared,) = workshop.made
    assert prepared.driver.repository == "mcr.microsoft.com/aks/aks-gpu-cuda-lts"
    call = ("sh", "-c", MAKE_DRIVER)
    assert call in stage.agent.commands()
    assert stage.agent.limits_s[call] == 360
    assert stage.agent.environments[call] == {
        "GPU_DRIVER_REPOSITORY": prepared.driver.repository,
        "GPU_DRIVER_VERSION": prepared.driver.version,
        "GPU_IMAGE_SHA": prepared.driver.sha,
    }
    assert len(asked) == 1


def test_error_for_an_image_without_the_tools_shows_the_missing_tools(
    lab: Lab,
    stage: Stage,
    asked: list[dict[str, Any]],
    workshop: Workshop,
    said: list[ProgressEvent],
) -> None:
    stage.agent.answers[MAKE_DRIVER] = f"{MISSING}gcc, make\n"

    prepare_node_image(lab, a_cloud_image(driver=None))

    assert workshop.made[0].driver is None
    assert "leaving out the stand-in driver, which needs gcc, make" in messages(said, "noble")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("refused", "answers", "words"),
    [
        ([UNPACK], {}, "unpack"),
        ([MAKE_DRIVER], {}, "stand-in driver could not be added to the image 'noble'"),
        (
            [],
            {"sh": RESULT.replace("[]", '["no such module", "disk full"]')},
            "cloud-init of the image 'noble' failed .*: no such module; disk full",
        ),
    ],
    ids=["unpacking", "driver", "first boot"],
)
def test_failed_preparation_of_a_cloud_image_saves_host_evidence_and_publishes_no_image(
    lab: Lab,
    stage: Stage,
    asked: list[dict[str, Any]],
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    *,
    refused: list[str],
    answers: dict[str, str],
    words: str,
) -> None:
    kept: list[Path] = []

    def save(machine: LabMachine, folder: Path) -> Path:
        assert machine.has_vm
        kept.append(folder)
        return folder

    monkeypatch.setattr(evidence_collection, "try_save_host_evidence", save)
    stage.agent.refused.update(refused)
    stage.agent.answers |= answers

    with pytest.raises(HarnessError, match=words) as failure:
        prepare_node_image(lab, a_cloud_image(driver=None))

    assert failure.value.evidence == lab.settings.evidence_folder / "node-images/noble"
    assert kept == [failure.value.evidence]
    assert workshop.noted[-1][0] == "overlay"
    assert len(asked) == 1


def test_node_image_key_depends_on_image_and_driver_and_stand_ins_and_agent(
    lab: Lab, asked: list[dict[str, Any]], workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_node_image(lab, a_cloud_image())
    prepare_node_image(lab, a_cloud_image(digest="sha256:5678"))
    prepare_node_image(lab, a_cloud_image(driver=None))
    monkeypatch.setattr(prepared_images, "stand_in_archive", lambda: b"others")
    prepare_node_image(lab, a_cloud_image())
    monkeypatch.setattr(prepared_images, "agent_commands", lambda: (("others",),))
    prepare_node_image(lab, a_cloud_image())
    monkeypatch.setattr(prepared_images, "UNPACK", "another")
    prepare_node_image(lab, a_cloud_image())

    first = workshop.parts[0]
    assert len({tuple(parts.items()) for parts in workshop.parts}) == len(asked) == 6
    assert {tuple(parts) for parts in workshop.parts} == {tuple(first)}
    driver = a_cloud_image().driver
    assert driver is not None
    assert (first["cloud_image"], first["driver"]) == ("sha256:1234", driver.reference)
    assert workshop.parts[2]["driver"] == ""
    assert first["version"] == str(prepared_images.VERSION)
    assert first["agent"] == hashlib.sha256(repr(agent_commands()).encode()).hexdigest()


# -- bakes -----------------------------------------------------------------------------------------


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Let every bake succeed, and return the folders of the gathered evidence."""
    folders: list[Path] = []

    def collect(_: Node, folder: Path) -> Evidence:
        folders.append(folder)
        made = EvidenceFolder(folder).outcome()
        return made.file(EXIT_CODE_PATH, "0\n").evidence

    monkeypatch.setattr(Node, "collect", collect)
    return folders


def test_driver_is_baked_into_a_cloud_image_that_is_booted_by_its_own_boot_loader(
    lab: Lab,
    stage: Stage,
    asked: list[dict[str, Any]],
    workshop: Workshop,
    healthy: list[Path],
) -> None:
    said: list[ProgressEvent] = []
    lab.listener = said.append
    image = a_cloud_image()

    assert bake_cloud_image(lab, image) == "the baked cloud image"  # type: ignore[comparison-overlap]

    (boot,) = asked
    request = boot["request"]
    assert (request.name, request.image, request.command) == ("bake", image, BAKE)
    assert request.provisioner is lab.provisioner
    assert request.cloud_image_boot == CloudImageBoot()
    assert (boot["disk"], request.gpus) == (workshop.overlay, ())
    assert workshop.noted == [
        ("image", image),
        ("overlay", image.disk, workshop.overlay, 10),
        ("flatten", workshop.overlay, workshop.disk, 900),
    ]
    assert not workshop.overlay.exists()
    assert healthy == [workshop.disk.parent / "evidence"]
    clean = ("sh", "-c", clean_script(lab.provisioner))
    ran = stage.agent.commands()
    assert ran[-2:] == [clean, ("systemctl", "--no-block", "poweroff")]
    assert stage.agent.limits_s[clean] == 90
    assert messages(said, "noble") == [
        "bake: booting it with its own boot loader",
        f"bake: {FINISHED}",
        "bake: removing the files of its first boot",
        "bake: writing its disk",
    ]
    assert workshop.limits_s == [
        round((lab.provisioner.timeout_s + 180) * lab.patience) * MOST_TIMES
    ]
    assert workshop.listeners == [lab.listener]
    (parts,) = workshop.parts
    assert parts["clean"] == clean_script(lab.provisioner)
    assert parts["payload"] == lab.provisioner.digest


def bake_the_node(lab: Lab) -> None:
    bake_node(lab)


def bake_the_cloud_image(lab: Lab) -> None:
    bake_cloud_image(lab, a_cloud_image())


both = pytest.mark.parametrize(
    "bake", [bake_the_node, bake_the_cloud_image], ids=["node", "cloud image"]
)


@both
def test_failed_bake_reports_the_reason_and_keeps_its_evidence_and_publishes_nothing(
    lab: Lab,
    asked: list[dict[str, Any]],
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    bake: Callable[[Lab], None],
) -> None:
    def collect(_: Node, folder: Path) -> Evidence:
        made = EvidenceFolder(folder).outcome(error="no headers")
        return made.file(EXIT_CODE_PATH, "84\n").evidence

    monkeypatch.setattr(Node, "collect", collect)

    with pytest.raises(
        HarnessError, match=r" ended with 84 \(GPU_DRIVERS_START_FAIL\): no headers\."
    ) as failure:
        bake(lab)

    kept = lab.settings.evidence_folder / "bake"
    assert failure.value.evidence == kept
    assert any(kept.rglob("*"))
    assert (workshop.made, len(asked)) == ([], 1)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("bake", "is_kept"), [(bake_the_node, True), (bake_the_cloud_image, False)]
)
def test_bake_that_times_out_keeps_the_available_evidence_and_reports_the_timeout(
    lab: Lab,
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    bake: Callable[[Lab], None],
    *,
    is_kept: bool,
) -> None:
    def wait(*_: object) -> None:
        raise HarnessError("cloud-init did not finish in time.")

    def collect_available(_: Node) -> Evidence:
        if not is_kept:
            raise OSError("No space left on device.")
        return EvidenceFolder(tmp_path / "node").file("/proc/uptime", "never").evidence

    monkeypatch.setattr(Node, "wait_until_provisioned", wait)
    monkeypatch.setattr(Node, "collect_available", collect_available)

    with pytest.raises(HarnessError, match=r"did not finish in time\.") as failure:
        bake(lab)

    kept = lab.settings.evidence_folder / "bake"
    assert failure.value.evidence == (kept if is_kept else None)
    assert (kept / "files/proc/uptime").is_file() is is_kept
    assert workshop.made == []


@pytest.mark.usefixtures("asked", "healthy")
def test_bake_key_changes_with_the_driver_and_the_payload_and_the_bake_values(
    lab: Lab, workshop: Workshop
) -> None:
    bake_cloud_image(lab, a_cloud_image())
    driver = DriverImage(repository="mcr.microsoft.com/gpu", version="590.1", sha="2026")
    bake_cloud_image(lab, a_cloud_image(), driver=driver)
    lab.provisioner = a_provisioner("2" * 64)
    bake_cloud_image(lab, a_cloud_image())
    for value in (True, False):
        configuration = ConfigurationFile(path=CONFIG_PATH, bake_values={"gpu_node": value})
        lab.provisioner = replace(lab.provisioner, configuration=configuration)
        bake_cloud_image(lab, a_cloud_image())

    assert [parts for parts in workshop.parts if workshop.parts.count(parts) > 1] == []
    assert len(workshop.parts) == 5


def test_node_image_is_baked_in_a_cold_boot_on_its_own_disk(
    lab: Lab,
    stage: Stage,
    asked: list[dict[str, Any]],
    workshop: Workshop,
    healthy: list[Path],
) -> None:
    assert bake_node(lab) == "the baked image"  # type: ignore[comparison-overlap]

    (boot,) = asked
    request = boot["request"]
    assert (request.name, request.image, request.command) == ("bake", an_image(), BAKE)
    # The bake runs on another kernel than the nodes, so tests notice a provisioner that records the wrong
    # kernel.
    assert request.kernel == an_image().other_kernel
    assert request.provisioner is lab.provisioner
    assert (boot["disk"], boot["start"]) == (workshop.disk, MachineStart.COLD)
    assert ("power off", 45) in stage.noted
    assert healthy == [workshop.disk.parent / "evidence"]
    assert bake_evidence(an_image()).folder == an_image().disk.parent / "evidence"
    assert workshop.limits_s == [
        round((lab.provisioner.timeout_s + 60) * lab.patience) * MOST_TIMES
    ]
    assert workshop.listeners == [lab.listener]


def test_image_with_one_kernel_is_baked_for_that_kernel(
    lab: Lab,
    asked: list[dict[str, Any]],
    workshop: Workshop,
    healthy: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = replace(an_image(), kernels=an_image().kernels[:1])
    monkeypatch.setattr(Lab, "node_image", lambda *_: prepared)

    bake_node(lab)

    assert asked[0]["request"].kernel == prepared.kernels[0]
    assert (len(workshop.made), len(healthy)) == (1, 1)


def test_bake_uses_the_requested_image_and_driver_and_provisioner(
    lab: Lab,
    asked: list[dict[str, Any]],
    workshop: Workshop,
    healthy: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str | None] = []

    def node_image(_: Lab, name: str | None) -> object:
        names.append(name)
        return an_image()

    monkeypatch.setattr(Lab, "node_image", node_image)
    configuration = ConfigurationFile(path="/etc/mine", bake_values={"gpu_node": True})
    other = replace(lab.provisioner, timeout_s=77.0, configuration=configuration)
    driver = DriverImage(repository="mcr.microsoft.com/gpu", version="590.1", sha="2026")

    bake_node(lab, "debian-13", provisioner=other)
    bake_cloud_image(lab, a_cloud_image(), driver=driver, provisioner=other)

    assert names == ["debian-13"]
    assert all(boot["request"].provisioner is other for boot in asked)
    assert [boot["request"].config for boot in asked] == [{"gpu_node": True}] * 2
    assert {parts["config"] for parts in workshop.parts} == {"[('gpu_node', True)]"}
    assert asked[1]["request"].image.driver == driver
    assert workshop.parts[1]["driver"] == driver.reference
    assert workshop.limits_s == [1370 * MOST_TIMES, 2570 * MOST_TIMES]
    assert len(healthy) == 2


# -- images in files of the user -------------------------------------------------------------------


def test_image_is_written_to_a_temporary_file_and_then_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Path, int, bool]] = []

    def flatten(disk: Path, to: Path, *, runner: object, timeout_s: float) -> None:
        assert isinstance(runner, LocalRunner)
        assert (disk, timeout_s) == (an_image().disk, 900)
        seen.append((to, to.stat().st_mode & 0o777, (tmp_path / "mine.qcow2").exists()))
        to.write_bytes(b"a disk")

    monkeypatch.setattr(bakes, "flatten", flatten)
    assert bakes.write_standalone(an_image(), tmp_path / "mine.qcow2") == tmp_path / "mine.qcow2"

    assert seen == [(tmp_path / ".mine.qcow2.part", 0o600, False)]
    # An earlier run was killed while it wrote another image.
    (tmp_path / ".other.qcow2.part").write_bytes(b"half a disk")
    bakes.write_standalone(an_image(), tmp_path / "other.qcow2")
    images = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert images == dict.fromkeys(("mine.qcow2", "other.qcow2"), b"a disk")
