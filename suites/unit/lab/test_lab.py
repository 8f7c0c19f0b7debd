"""Labs on hosts that lack something, machines that do not start, and the end of a lab."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.gpu.transport import Transport
from harness.image.store import ImageStore
from harness.lab import Lab
from harness.lab.machine import LabMachine
from harness.lab.saved_states import BuiltImageSource, booted
from harness.machine.accelerator import AcceleratorChoice
from harness.machine.description.spec import Accelerator
from harness.provisioner import Provisioner
from harness.provisioning.wait import WaitTimeoutError
from harness.settings import GpuEmulation, GpuSource, Settings
from suites.unit.image.cloud_image_folder import DIGEST, IMAGE
from suites.unit.lab.builders import a_request, an_image, ignore_event
from suites.unit.machine.capacity.builders import CAPACITY, FakeHost, at_once, mib

if TYPE_CHECKING:
    from pathlib import Path


def test_missing_qemu_is_reported_before_anything_is_built(tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path / "cache", qemu="qemu-that-is-not-there")

    with pytest.raises(RequirementError, match="no QEMU"), Lab.open(settings, ignore_event):
        pass

    assert list(tmp_path.iterdir()) == []


def test_time_limits_of_the_lab_are_multiplied_by_the_timeout_multiplier(lab: Lab) -> None:
    again = replace(lab, settings=replace(lab.settings, timeout_multiplier=2.5))

    assert again.patience == 25.0
    assert again.checkpoint_builder.patience == 25.0


def test_guest_polls_a_gsp_gpu_only_over_mpqemu_without_kvm(lab: Lab) -> None:
    settings = replace(lab.settings, gpu_emulation=GpuEmulation.GSP)
    opened = replace(lab, settings=settings)
    by_messages = replace(lab, settings=settings)
    by_messages.transport = Transport.VFIO_USER
    kvm = AcceleratorChoice(accelerator=Accelerator.KVM, reason="")
    labs = {"none": lab, "mpqemu": opened, "vfio-user": by_messages}
    labs["kvm"] = replace(lab, settings=settings, accelerator=kvm)

    polling = [name for name, each in labs.items() if each.platform.lacks_gpu_interrupts]

    assert polling == ["mpqemu"]


def test_platform_has_apertures_only_if_it_may_use_host_gpus(lab: Lab) -> None:
    labs = [
        replace(lab, settings=replace(lab.settings, gpu_source=source)) for source in GpuSource
    ]

    wide = [each.settings.gpu_source for each in labs if each.platform.apertures_mib]

    assert wide == [GpuSource.HOST, GpuSource.AUTO]


def test_boot_on_a_host_without_disk_space_is_refused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1023 << 20))

    with (
        pytest.raises(RequirementError, match=r"may need 1024 MiB.*1023 MiB left.*XDG_CACHE"),
        lab.boot(a_request()),
    ):
        pass

    assert list(lab.folder.iterdir()) == []


def test_failed_creation_of_machine_files_leaves_no_machine_folder(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[BaseException] = [OSError("No space left on device."), KeyboardInterrupt()]
    for error in rows:

        def fail(
            _: object, __: object, at: Path, error: BaseException = error, **___: object
        ) -> NoReturn:
            at.write_text("half a disk")
            raise error

        monkeypatch.setattr(ImageStore, "create_overlay", fail)

        with pytest.raises(type(error)), lab.boot(a_request()):
            pass

        assert list(lab.folder.iterdir()) == []


def test_node_that_does_not_start_leaves_only_its_console_log(
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
    assert str(failure.value) == f"It did not boot. The evidence is in '{kept}'."
    assert (kept / "host/serial.log").read_text() == "Kernel panic"


def test_no_evidence_is_kept_if_a_user_error_or_an_ending_lab_prevents_the_start(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[tuple[HarnessError, bool]] = [
        (RequirementError("There is no QEMU; install it."), False),
        (BadInputError("There is no such GPU.", source="test.py"), False),
        (HarnessError("QEMU was killed."), True),
    ]
    for error, is_ending in rows:

        def fail(
            machine: LabMachine, error: HarnessError = error, *, ends: bool = is_ending
        ) -> NoReturn:
            (machine.folder / "serial.log").write_text("")
            if ends:
                lab.kill_machines()
            raise error

        monkeypatch.setattr(LabMachine, "_start", fail)

        with pytest.raises(HarnessError) as failure, lab.boot(a_request()):
            pass

        assert failure.value is error
        assert error.evidence is None
        assert not (tmp_path / "evidence").exists()


def test_invalid_machine_name_is_refused_before_anything_is_created(lab: Lab) -> None:
    for name in ("../up", ""):
        with (
            pytest.raises(BadInputError, match="is not a machine name"),
            lab.boot(a_request(name=name)),
        ):
            pass

        assert list(lab.folder.iterdir()) == [], name
        assert not (lab.folder.parent / "up").exists(), name


def test_lab_that_is_ending_kills_its_machines_and_boots_no_new_machine(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[str] = []

    def start(machine: LabMachine) -> None:
        def kill() -> None:
            killed.append(machine.name)
            with (
                pytest.raises(HarnessError, match="'late' is not started: the run is being ended"),
                lab.boot(a_request(name="late")),
            ):
                pass

        monkeypatch.setattr(machine, "_vm", SimpleNamespace(kill=kill))

    monkeypatch.setattr(LabMachine, "_start", start)
    with lab.boot(a_request(name="gone")):
        pass

    with lab.boot(a_request(name="first")), lab.boot(a_request(name="second")):
        lab.kill_machines()

    assert sorted(killed) == ["first", "second"]
    assert list(lab.folder.iterdir()) == []


@pytest.mark.usefixtures("fake_time")
def test_lab_that_is_ending_kills_a_machine_that_waits_for_capacity(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.lab.machine._CAPACITY_S", 5)
    host = FakeHost(tmp_path)
    reports: list[str] = []

    def kill_machines(sentence: str) -> None:
        reports.append(sentence)
        lab.kill_machines()

    services = replace(lab.machines._services, broker=host.broker(2), report=kill_machines)
    monkeypatch.setattr(lab.machines, "_services", services)

    with (
        at_once(host.broker(1), "another run", mib(CAPACITY.memory_mib)),
        pytest.raises(
            HarnessError, match=r"^Machine 'node' was killed, since the run is being ended"
        ),
        lab.boot(a_request()),
    ):
        pass

    assert len(reports) == 1
    assert list(lab.folder.iterdir()) == []


def test_lab_that_is_ending_makes_no_checkpoint(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BuiltImageSource, "disk_sha256", lambda _: "2" * 64)
    lab.kill_machines()

    with pytest.raises(HarnessError, match=r"^The run is being ended"):
        lab.ensure_checkpoint(booted(an_image()))

    assert lab.checkpoints.ls() == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (HarnessError("It did not boot."), "It did not boot."),
        (WaitTimeoutError("apt was awaited for 60 s."), "apt was awaited for 60 s."),
        (AssertionError("1 == 2"), "AssertionError('1 == 2')"),
    ],
    ids=["harness", "wait", "assertion"],
)
def test_console_log_is_kept_if_a_saved_state_cannot_be_made(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    """The user's function that makes the state may raise any exception."""

    def make(machine: LabMachine) -> NoReturn:
        (machine.folder / "serial.log").write_text("Kernel panic")
        raise error

    monkeypatch.setattr("harness.lab.saved_states._reserve", lambda *_: None)
    monkeypatch.setattr(LabMachine, "_start", lambda _: None)
    monkeypatch.setattr(BuiltImageSource, "disk_sha256", lambda _: "0" * 64)
    monkeypatch.setattr(BuiltImageSource, "wait_until_booted", staticmethod(make))
    saved_state = booted(an_image())

    with pytest.raises(HarnessError) as failure:
        lab.ensure_checkpoint(saved_state)

    kept = tmp_path / "evidence/saved-states" / saved_state.name
    assert str(failure.value) == (
        f"The saved state '{saved_state.name}' could not be made. {words} The evidence is in '{kept}'."
    )
    assert (kept / "host/serial.log").read_text() == "Kernel panic"


def test_cloud_image_machine_that_cannot_start_leaves_no_machine_folder(
    lab: Lab, tmp_path: Path
) -> None:
    (tmp_path / "our.qcow2").write_bytes(IMAGE)
    image = lab.cloud_image(str(tmp_path / "our.qcow2"))
    assert (image.name, image.digest) == ("our", f"sha256:{DIGEST}")

    with (
        pytest.raises(RequirementError, match="qemu-that-is-not-there"),
        lab.boot_cloud_image(image),
    ):
        pass

    assert list(lab.folder.iterdir()) == []


def test_provisioner_with_user_data_needs_cloud_init(lab: Lab) -> None:
    mine = Provisioner(
        name="mine", source="/p/mine.yaml", run=["/opt/mine"], user_data={"packages": ["jq"]}
    )
    request = a_request(provisioner=mine, skip_cloud_init=True)

    with (
        pytest.raises(BadInputError, match=r"/p/mine\.yaml: key 'user_data': .*'skip_cloud_init'"),
        lab.boot(request),
    ):
        pass
