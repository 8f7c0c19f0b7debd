"""A lab's machine while it runs and while it is saved, on a fake VM driver that starts nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from typing_extensions import override

from harness.cloudinit import FINISHED
from harness.errors import HarnessError
from harness.gpu.passthrough import GpuChoice
from harness.lab import guest_channels, machine_bundle
from harness.lab.machine import LabMachine
from harness.lab.machine_cloud_init import START_CLOUD_INIT
from harness.lab.saved_states import BuiltImageSource, naming_seed
from harness.machine.channels.guest import UNTIL_LISTED
from harness.machine.description.spec import DirectKernel, Firmware
from harness.settings import GpuSource
from suites.unit.gpu.models import a_model
from suites.unit.lab.fake_pool import ADDRESS, sources
from suites.unit.lab.stage import RESULT, Stage, a_checkpoint

if TYPE_CHECKING:
    from harness.lab.base_images import BaseImage
    from harness.machine import Machine
    from suites.fakes.clock import FakeClock


def with_kernel(machine: LabMachine, kernel: DirectKernel | Firmware, stage: Stage) -> LabMachine:
    """Return a copy of the machine that boots this kernel or firmware."""
    spec = replace(machine.spec, kernel=kernel, extra_append=())
    return LabMachine(replace(machine.description, spec=spec), stage.services())


def by_firmware(stage: Stage) -> LabMachine:
    return with_kernel(stage.machine(), Firmware(), stage)


def with_kernel_of_a_cloud_image(stage: Stage) -> LabMachine:
    machine = stage.machine()
    assert isinstance(machine.spec.kernel, DirectKernel)
    return with_kernel(machine, replace(machine.spec.kernel, is_verbatim=True), stage)


def test_time_limit_for_an_agent_that_cloud_init_installs_is_longer(stage: Stage) -> None:
    for boot in (by_firmware, with_kernel_of_a_cloud_image):
        with boot(stage) as machine:
            _ = machine.agent

            assert stage.noted[-1] == ("ready", 270)


def test_seed_is_plugged_and_seen_by_the_guest_before_cloud_init_runs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.agent.answers["cat /run/cloud-init/result.json"] = RESULT
    with stage.machine(checkpoint=a_checkpoint()) as machine:
        stage.driver.vms[0].console.lines = ["running 'modules:final'", FINISHED]
        stage.agent.answers["sh"] = RESULT
        stage.noted.clear()

        result = machine.run_cloud_init(naming_seed("mine"))

        seed = stage.folder / "seed.iso"
        assert b"mine" in seed.read_bytes()
        assert stage.noted[:3] == [
            ("plug seed", seed),
            ("file", "/dev/disk/by-label/CIDATA", 30),
            ("run", "sh", "-c", START_CLOUD_INIT),
        ]
        assert list(result.errors) == []
        waits = stage.driver.vms[0].console.waits
        assert [wait[1] for wait in waits] == [90, 90]
        # The wait ends if a GPU blocks the guest.
        monkeypatch.setattr(machine.gpus, "stall_report", lambda _: "blocked on gpu0")
        assert [failure() for *_, failure in waits] == ["blocked on gpu0"] * 2


def test_wait_for_cloud_init_continues_while_the_console_shows_new_lines(
    stage: Stage, fake_time: FakeClock
) -> None:
    stage.agent.answers["sh"] = RESULT
    with stage.machine(checkpoint=a_checkpoint()) as machine:
        console = stage.driver.vms[0].console
        console.lines = [FINISHED]
        machine.run_cloud_init(naming_seed("mine"))
        waits = [
            machine.deadline(30),
            *console.deadlines,
            machine.deadline(30, follows_progress=True),
        ]
        fake_time.sleep(89)
        console.shows(b"a line\n")
        fake_time.sleep(2)

        assert [wait.remaining_s() for wait in waits] == [0, 43, 43]


def test_cloud_init_of_a_cloud_image_has_a_longer_time_limit(stage: Stage) -> None:
    stage.agent.answers["sh"] = RESULT
    with by_firmware(stage) as machine:
        machine.run_cloud_init(naming_seed("mine"))

        assert stage.agent.limits_s[stage.agent.commands()[-1]] == 270
        # The console of a cloud image may show any text, so the harness does not search the console.
        assert stage.driver.vms[0].console.waits == []


def test_wait_for_gpus_waits_for_the_expected_number_of_gpus_per_pci_id(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.lab.machine_gpus._PLACED_KVM_S", 0.0)
    other = replace(a_model(), name="other", pci=replace(a_model().pci, device=0x20B5))
    with stage.machine(gpus=[a_model(), other, a_model()], slots=4) as machine:
        stage.noted.clear()
        machine.wait_for_gpus()
        machine.wait_for_gpu(other)
        machine.wait_for_gpu(other, count=3)

    waits = [each for each in stage.agent.commands() if UNTIL_LISTED in each]
    assert [each[4:] for each in waits] == [
        ("0x10de:0x2330", "2"),
        ("0x10de:0x20b5", "1"),
        ("0x10de:0x20b5", "1"),
        ("0x10de:0x20b5", "3"),
    ]


def test_unplugged_gpu_is_no_longer_listed_but_its_trace_is_kept(
    stage: Stage,
) -> None:
    with stage.machine() as machine:
        machine.hot_plug(a_model())
        machine.hot_plug(a_model())
        machine.mark("before")
        stage.noted.clear()

        machine.hot_unplug("gpu0", in_use=True)

        assert stage.noted == [("unplug", "gpu0", 30)]
        assert machine.gpus.plugged == ("gpu1",)
        assert machine.gpu_traces()["gpu0"].find_mark("before")
    name = a_model().name
    assert stage.shown_gpus == [[name], [name, name], [name]]


def test_emulated_gpu_that_cannot_be_plugged_does_not_stay_in_the_machine(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plug(_: object) -> None:
        raise HarnessError("All 4 root ports are in use.")

    with stage.machine() as machine:
        monkeypatch.setattr(stage.driver.vms[0], "plug", plug)

        with pytest.raises(HarnessError, match="All 4 root ports are in use"):
            machine.hot_plug(a_model())

        assert (machine.gpus.plugged, machine.gpus.emulated) == ((), ())


class FakeSsh:
    """Fake SSH access, which records its arguments and the time limits of its connections."""

    opened: list[dict[str, object]]
    limits_s: list[float]
    closed: int

    def __init__(self, **how: object) -> None:
        self.opened.append(how)

    def connect(self, deadline: Any) -> None:
        self.limits_s.append(round(deadline.remaining_s()))

    def close(self) -> None:
        type(self).closed += 1


def test_ssh_is_opened_once_and_ends_with_the_machine(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeSsh.opened, FakeSsh.limits_s, FakeSsh.closed = [], [], 0
    monkeypatch.setattr(guest_channels, "SshRunner", FakeSsh)
    with stage.machine() as machine:
        assert FakeSsh.opened == []
        assert machine.ssh() is machine.ssh()
        services = stage.services()
        assert FakeSsh.opened == [
            {
                "name": "node",
                "port": 2222,
                "identity": services.identity(),
                "folder": stage.folder,
            }
        ]
        assert (FakeSsh.limits_s, FakeSsh.closed) == ([30], 0)

    assert FakeSsh.closed == 1


def test_next_use_of_ssh_connects_again_after_a_failed_connection(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(FakeSsh):
        @override
        def connect(self, deadline: Any) -> None:
            raise HarnessError("Connection refused.")

    Refusing.opened, Refusing.closed = [], 0
    monkeypatch.setattr(guest_channels, "SshRunner", Refusing)
    with stage.machine() as machine:
        for _ in range(2):
            with pytest.raises(HarnessError, match="refused"):
                machine.ssh()

    assert (len(Refusing.opened), Refusing.closed) == (2, 2)


# -- bundles -------------------------------------------------------------------------------------


@pytest.fixture
def bundles(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the function that saves a bundle, and return the arguments of its calls."""
    made: list[dict[str, Any]] = []

    def save(vm: Machine, savable: object, folder: Path, **how: object) -> SimpleNamespace:
        made.append({"vm": vm, "savable": savable, "folder": folder, **how})
        return SimpleNamespace(folder=folder)

    monkeypatch.setattr(machine_bundle, "save_machine", save)
    monkeypatch.setattr(BuiltImageSource, "disk_sha256", lambda _: "12" * 32)
    return made


def test_machine_is_saved_without_devices_and_the_bundle_lists_its_gpus(
    stage: Stage, bundles: list[dict[str, Any]]
) -> None:
    with stage.machine(gpus=[a_model(), a_model()]) as machine:
        _ = machine.agent
        stage.noted.clear()

        bundle = machine.save_bundle(Path("/bundle"), purpose="test_boots")

        assert bundle.folder == Path("/bundle")
        assert stage.noted == [
            ("ping", 3),
            ("unplug", "gpu0", 30),
            ("unplug", "gpu1", 30),
            ("unplug seed", 30),
        ]
        (asked,) = bundles
        vm = stage.driver.vms[0]
        assert (asked["vm"], asked["savable"]) == (vm, vm)
        assert asked["gpus"] == ["h100", "h100"]
        assert (asked["seed"], asked["purpose"]) == (None, "test_boots")
        assert (asked["agent_program"], asked["base"]) == (
            b"agent",
            machine.description.source.disk,
        )
        base = cast("BaseImage", asked["base_image"])
        assert (base.name, base.digest) == ("debian-12", "12" * 32)
        assert base.folder == "/images/debian-12"


def test_bundle_lists_emulated_gpus_but_no_host_gpus(
    stage: Stage, bundles: list[dict[str, Any]]
) -> None:
    stage.sources, pool = sources(GpuSource.EMULATED, ADDRESS)
    with stage.machine(checkpoint=a_checkpoint()) as machine:
        for gpu in (GpuChoice(address=ADDRESS), a_model()):
            machine.hot_plug(gpu)

        machine.save_bundle(Path("/bundle"), purpose="test_boots")

        assert ([asked["gpus"] for asked in bundles], pool.held) == ([["h100"]], [])


def test_hanging_guest_is_saved_without_unplugging_its_seed(
    stage: Stage, bundles: list[dict[str, Any]]
) -> None:
    seed = stage.folder / "seed.iso"
    with stage.machine() as machine:
        stage.agent.hangs = True

        machine.save_bundle(Path("/bundle"), purpose="test_boots")
        seed.touch()
        machine.save_bundle(Path("/bundle"), purpose="test_boots")

        assert [asked["seed"] for asked in bundles] == [None, seed]
        assert "unplug seed" not in stage.names


def test_hanging_guest_with_a_gpu_cannot_be_saved(
    stage: Stage, bundles: list[dict[str, Any]]
) -> None:
    with stage.machine(gpus=[a_model()]) as machine:
        stage.agent.hangs = True

        with pytest.raises(
            HarnessError, match=r"can't be saved while it has 'gpu0'.* The agent does not answer"
        ):
            machine.save_bundle(Path("/bundle"), purpose="test_boots")

    assert bundles == []


def test_machine_that_has_ended_or_whose_vm_driver_cannot_save_machines_is_not_saved(
    stage: Stage, bundles: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage.machine() as machine:
        stage.driver.vms[0].is_running = False
        with pytest.raises(
            HarnessError, match=r"^Machine 'node' has ended, and its memory is gone"
        ):
            machine.save_bundle(Path("/bundle"), purpose="test_boots")

        monkeypatch.setattr(machine, "_vm", SimpleNamespace(spec=machine.spec))
        with pytest.raises(
            HarnessError, match=r"^The VM driver of machine 'node' can't save running machines\.$"
        ):
            machine.save_bundle(Path("/bundle"), purpose="test_boots")

    assert bundles == []


# -- checkpoints ---------------------------------------------------------------------------------


def test_guest_unplugs_its_seed_and_syncs_its_disks_and_is_idle_before_its_state_is_saved(
    stage: Stage,
) -> None:
    with stage.machine() as machine:
        _ = machine.agent
        stage.noted.clear()

        machine.save(Path("/made/state"), "a nonce")

        names = [each[:2] for each in stage.noted]

    order = [
        ("unplug seed", 30),
        ("run", "systemctl"),
        ("run", "sync"),
        ("idle", 120),
        ("remember", "a nonce"),
        ("save", Path("/made/state")),
    ]
    assert [each for each in names if each in order] == order
    assert names[-1] == order[-1]


def test_machine_with_a_gpu_cannot_be_saved_as_a_checkpoint(stage: Stage) -> None:
    with (
        stage.machine(gpus=[a_model()]) as machine,
        pytest.raises(HarnessError, match=r"has the GPU 'gpu0'; unplug that GPU first"),
    ):
        machine.save(Path("/made/state"), "a nonce")

    assert "save" not in stage.names


# -- reboots -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fake_time")
def test_reboot_ends_when_the_guest_has_another_boot_id(stage: Stage) -> None:
    boots = iter(["first", "first", "second"])
    with by_firmware(stage) as machine:
        stage.agent.answers = cast("dict[str, str]", _Answers(boots))

        machine.reboot(machine.deadline(30))

        assert ("systemctl", "--no-block", "reboot") in stage.agent.commands()
    assert list(boots) == []


class _Answers:
    """A guest whose boot id changes."""

    def __init__(self, boots: Any) -> None:
        self._boots = boots

    def __contains__(self, word: str) -> bool:
        return word.endswith("boot_id")

    def __getitem__(self, _: str) -> str:
        return str(next(self._boots))


def test_guest_that_powers_off_during_a_reboot_is_an_error(stage: Stage) -> None:
    stage.agent.answers["/proc/sys/kernel/random/boot_id"] = "first"
    with by_firmware(stage) as machine:
        stage.driver.vms[0].is_running = False

        with pytest.raises(
            HarnessError, match="'node' did not come back from its reboot: QEMU has ended"
        ):
            machine.reboot(machine.deadline(30))
