"""A lab on hosts that lack something, and one that is abandoned."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn, cast

import pytest

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.image.store import ImageStore
from harness.lab import Lab, open_lab
from harness.lab.layers import BuiltOrigin, booted
from harness.lab.machine import LabMachine
from harness.lab.stock import StockBoot
from harness.machine.accelerator import AcceleratorChoice
from harness.machine.broker import Broker
from harness.machine.spec import Accelerator
from harness.machine.ssh import SshIdentity
from harness.payload import Payload
from harness.provisioning.wait import WaitTimeoutError
from harness.settings import Settings
from suites.unit.evidence.folders import EvidenceFolder
from suites.unit.image.stockfolder import DIGEST, IMAGE
from suites.unit.lab.drivers import StuckDriver
from suites.unit.lab.test_node import a_request, an_image
from suites.unit.machine.test_broker import ROOM, Host, at_once, mib

if TYPE_CHECKING:
    from pathlib import Path

    from harness.image import ImageEvent
    from harness.lab.node import Node


def ignore(_: ImageEvent) -> None:
    return


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    folder = tmp_path / "run"
    keys = tmp_path / "keys"
    for each in (folder, keys):
        each.mkdir()
    for name in ("user.pub", "host", "host.pub"):
        (keys / name).touch()
    monkeypatch.setattr(ImageStore, "create_overlay", lambda _, __, at, **___: at.touch())
    return Lab(
        settings=Settings(
            cache=tmp_path,
            machine_start="cold",
            evidence_folder=tmp_path / "evidence",
            qemu="qemu-that-is-not-there",
        ),
        folder=folder,
        driver=StuckDriver(),
        accelerator=AcceleratorChoice(accelerator=Accelerator.TCG, reason=""),
        payload=Payload(content=b"", digest="0" * 64),
        agent_program=Payload(content=b"", digest="1" * 64),
        broker=Broker(tmp_path / "room"),
        identity=SshIdentity(folder=keys),
        listener=ignore,
    )


def test_host_without_qemu_is_told_before_anything_is_built(tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path / "cache", qemu="qemu-that-is-not-there")

    with pytest.raises(RequirementError, match="no QEMU"), open_lab(settings, ignore):
        pass

    assert list(tmp_path.iterdir()) == []


def test_host_without_space_boots_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1023 << 20))

    with (
        pytest.raises(RequirementError, match=r"may take 1024 MiB.*1023 MiB left.*XDG_CACHE"),
        lab.boot(a_request()),
    ):
        pass

    assert list(lab.folder.iterdir()) == []


def test_node_that_does_not_start_leaves_its_console_alone(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(machine: LabMachine) -> NoReturn:
        (machine.folder / "serial.log").write_text("Kernel panic")
        raise HarnessError("It did not boot.")

    monkeypatch.setattr(LabMachine, "_start", fail)

    with pytest.raises(HarnessError) as failure, lab.boot(a_request()):
        pass

    assert list(lab.folder.iterdir()) == []
    (kept,) = (tmp_path / "evidence/starts").iterdir()
    assert str(failure.value) == f"It did not boot. The evidence lies in '{kept}'."
    assert (kept / "host/serial.log").read_text() == "Kernel panic"


@pytest.mark.parametrize(
    ("trouble", "is_abandoned"),
    [
        (RequirementError("There is no QEMU; install it."), False),
        (BadInputError("There is no such GPU.", source="test.py"), False),
        (HarnessError("QEMU was killed."), True),
    ],
    ids=["host", "input", "abandoned"],
)
def test_machine_that_nobody_can_start_keeps_no_evidence(
    lab: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: HarnessError,
    is_abandoned: bool,
) -> None:
    def fail(machine: LabMachine) -> NoReturn:
        (machine.folder / "serial.log").write_text("")
        if is_abandoned:
            lab.abandon()
        raise trouble

    monkeypatch.setattr(LabMachine, "_start", fail)

    with pytest.raises(HarnessError) as failure, lab.boot(a_request()):
        pass

    assert failure.value is trouble
    assert trouble.evidence is None
    assert not (tmp_path / "evidence").exists()


def test_abandoned_lab_ends_its_machines(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[str] = []

    def start(machine: LabMachine) -> None:
        vm = SimpleNamespace(kill=lambda: killed.append(machine.name))
        monkeypatch.setattr(machine, "_vm", vm)

    monkeypatch.setattr(LabMachine, "_start", start)
    with lab.boot(a_request(name="gone")):
        pass

    with lab.boot(a_request(name="first")), lab.boot(a_request(name="second")):
        lab.abandon()

    assert sorted(killed) == ["first", "second"]


def test_abandoned_lab_boots_nothing_more(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LabMachine, "_start", lambda _: None)
    lab.abandon()

    with pytest.raises(HarnessError, match="'node' is not wanted"), lab.boot(a_request()):
        pass

    assert list(lab.folder.iterdir()) == []


def test_abandoned_lab_waits_for_no_room(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.lab.machine._ROOM_S", 5)
    host = Host(tmp_path)
    told: list[str] = []

    def abandon(sentence: str) -> None:
        told.append(sentence)
        lab.abandon()

    equipment = replace(lab.machines._equipment, broker=host.broker(2), tell=abandon)
    monkeypatch.setattr(lab.machines, "_equipment", equipment)

    with (
        at_once(host.broker(1), "another run", mib(ROOM.memory_mib)),
        pytest.raises(HarnessError, match=r"^Machine 'node' is not wanted any more"),
        lab.boot(a_request()),
    ):
        pass

    assert len(told) == 1
    assert list(lab.folder.iterdir()) == []


def test_abandoned_lab_makes_no_checkpoint(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BuiltOrigin, "disk_sha256", lambda _: "2" * 64)
    lab.abandon()

    with pytest.raises(HarnessError, match=r"^No machine is wanted any more"):
        lab.hold(booted(an_image()))

    assert lab.checkpoints.ls() == []


def test_evidence_is_kept_where_people_look(lab: Lab, tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "gathered").file("/x", "1").evidence

    kept = lab.keep(evidence, "demo/fast-path")

    assert kept == tmp_path / "evidence/demo/fast-path"
    assert (kept / "files/x").read_text() == "1"


def test_evidence_that_cannot_be_kept_is_told_and_hides_no_other_trouble(
    lab: Lab, tmp_path: Path
) -> None:
    told: list[str] = []
    (tmp_path / "evidence").write_text("a file")
    evidence = EvidenceFolder(tmp_path / "gathered").file("/x", "1").evidence
    node = SimpleNamespace(salvage=lambda: evidence, request=a_request())
    lab = replace(lab, listener=lambda event: told.append(event.message))

    assert lab.salvage(cast("Node", node), "demo/node") is None

    (sentence,) = told
    assert "the evidence of 'node' could not be kept" in sentence


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (HarnessError("It did not boot."), "It did not boot."),
        (WaitTimeoutError("apt was awaited for 60 s."), "apt was awaited for 60 s."),
        (AssertionError("1 == 2"), "AssertionError('1 == 2')"),
    ],
    ids=["harness", "wait", "assertion"],
)
def test_layer_that_cannot_be_made_keeps_its_console(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception, words: str
) -> None:
    """Whatever its maker raised: people write those."""

    def make(machine: LabMachine) -> NoReturn:
        (machine.folder / "serial.log").write_text("Kernel panic")
        raise trouble

    monkeypatch.setattr("harness.lab.templates._reserve", lambda *_: None)
    monkeypatch.setattr(LabMachine, "_start", lambda _: None)
    monkeypatch.setattr(BuiltOrigin, "disk_sha256", lambda _: "0" * 64)
    monkeypatch.setattr(BuiltOrigin, "settle", staticmethod(make))
    layer = booted(an_image())

    with pytest.raises(HarnessError) as failure:
        lab.hold(layer)

    kept = tmp_path / "evidence/layers" / layer.name
    assert str(failure.value) == (
        f"The layer '{layer.name}' could not be made. {words} The evidence lies in '{kept}'."
    )
    assert (kept / "host/serial.log").read_text() == "Kernel panic"


def test_host_that_lacks_what_a_layer_needs_is_told_as_such(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a test is skipped for it, where tests are."""

    def refuse(_: LabMachine) -> NoReturn:
        raise RequirementError("There is no QEMU; install it.")

    monkeypatch.setattr("harness.lab.templates._reserve", lambda *_: None)
    monkeypatch.setattr(LabMachine, "_start", refuse)
    monkeypatch.setattr(BuiltOrigin, "disk_sha256", lambda _: "0" * 64)

    with pytest.raises(RequirementError, match=r"^There is no QEMU; install it\.$"):
        lab.hold(booted(an_image()))

    assert not (tmp_path / "evidence").exists()


def test_stock_image_is_found_by_its_path(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "our.qcow2").write_bytes(IMAGE)

    image = lab.stock_image(str(tmp_path / "our.qcow2"))

    assert (image.name, image.digest) == ("our", f"sha256:{DIGEST}")


def test_recipe_is_no_stock_image_and_stock_image_no_node(lab: Lab) -> None:
    with pytest.raises(BadInputError, match="'debian-12' is built from a recipe"):
        lab.stock_image("debian-12")
    with pytest.raises(BadInputError, match=r"'ubuntu-24\.04' is a stock image"):
        lab.node_image("ubuntu-24.04")


def test_stock_machine_that_does_not_start_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "our.qcow2").write_bytes(IMAGE)
    image = lab.stock_image(str(tmp_path / "our.qcow2"))

    with pytest.raises(RequirementError, match="qemu-that-is-not-there"), lab.boot_stock(image):
        pass

    assert list(lab.folder.iterdir()) == []


def test_host_without_ovmf_is_told_what_to_install(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.lab.stock._OVMF", tmp_path / "OVMF")
    (tmp_path / "our.qcow2").write_bytes(IMAGE)
    image = lab.stock_image(str(tmp_path / "our.qcow2"))

    with (
        pytest.raises(RequirementError, match="apt-get install --no-install-recommends ovmf"),
        lab.boot_stock(image, StockBoot(firmware="uefi")),
    ):
        pass
