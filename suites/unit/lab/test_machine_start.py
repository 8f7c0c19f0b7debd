"""How a machine starts, on a VM driver that starts nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.errors import HarnessError
from harness.evidence import state_capture
from harness.lab.machine import LabMachine
from harness.lab.machine_bundle import read_bundle
from harness.machine.capacity.broker import Demand
from harness.settings import GpuSource
from suites.unit.gpu.models import a_model
from suites.unit.lab.bundle_folder import a_bundle
from suites.unit.lab.fake_pool import ANY, sources
from suites.unit.lab.fake_vm import PID
from suites.unit.lab.stage import Stage, a_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.gpu import GpuModel
    from harness.gpu.server import DeviceServer
    from harness.machine import Machine


def test_booting_machine_has_its_gpus_from_the_start(stage: Stage) -> None:
    machine = stage.machine(gpus=[a_model(), a_model()])

    with machine:
        assert machine.gpus.plugged == ("gpu0", "gpu1")
        assert machine.vm is cast("Machine", stage.driver.vms[0])
        assert stage.noted == [
            ("reserve", "node", Demand(memory_mib=1536 + 128, cpus=1), 900),
            ("start", stage.folder, ["gpu0", "gpu1"], b"agent"),
            ("used by", PID),
            ("entrance",),
        ]


def test_entrance_is_opened_with_the_folder_and_identity_and_gpus_and_deadline_of_the_machine(
    stage: Stage,
) -> None:
    services = stage.services()

    with LabMachine(
        stage.machine(gpus=[a_model()], kept_until=1234.5).description, services
    ) as machine:
        assert stage.entrances == [
            {
                "vm": machine.vm,
                "folder": stage.folder,
                "identity": services.identity,
                "roster": services.roster,
                "gpus": ["h100"],
                "until": 1234.5,
            }
        ]


def test_machine_on_another_host_reserves_its_vcpus_without_a_process_id(stage: Stage) -> None:
    stage.driver.pid = None

    with stage.machine(cpus=2):
        assert stage.noted[0] == ("reserve", "node", Demand(memory_mib=1536 + 128, cpus=2), 900)
        assert "used by" not in stage.names


def test_gpus_are_served_until_the_vm_has_ended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest whose GPU vanishes earlier would log unrelated errors."""
    machine = stage.machine(gpus=[a_model()])
    close = machine.gpus.close

    def noted_close() -> None:
        stage.noted.append(("gpus closed",))
        close()

    monkeypatch.setattr(machine.gpus, "close", noted_close)

    with machine:
        stage.noted.clear()

    assert stage.names.index("end") < stage.names.index("gpus closed")


def test_failure_to_serve_a_gpu_ends_the_servers_of_earlier_gpus(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = stage.machine(gpus=[a_model(), a_model()])
    serve, closed = machine.gpus.serve, list[str]()

    def serve_one(model: GpuModel) -> DeviceServer[Any]:
        if machine.gpus.emulated:
            raise HarnessError("No socket is left.")
        server = serve(model)
        with_end = contextlib.ExitStack()
        with_end.callback(server.close)
        with_end.callback(closed.append, server.device_id)
        monkeypatch.setattr(server, "close", with_end.close)
        return server

    monkeypatch.setattr(machine.gpus, "serve", serve_one)

    with pytest.raises(HarnessError, match="No socket is left"), machine:
        pass

    assert closed == ["gpu0"]


def test_gpus_are_plugged_into_a_clone_after_its_state_is_restored(stage: Stage) -> None:
    checkpoint = a_checkpoint()

    with stage.machine(
        gpus=[a_model(), a_model()], checkpoint=checkpoint, hostname="mine"
    ) as machine:
        # The agent of a clone has answered already, so this use of the agent does not wait.
        _ = machine.agent
        assert stage.noted[1:] == [
            ("start", stage.folder, [], b"agent"),
            ("used by", PID),
            ("entrance",),
            ("restore", checkpoint.state),
            ("settle", 90, "mine"),
            ("plug", "gpu0"),
            ("plug", "gpu1"),
        ]


def test_clone_whose_memory_has_another_nonce_is_refused(stage: Stage) -> None:
    for nonce in ("another guest's", None):
        stage.agent.nonce = nonce

        with (
            pytest.raises(
                HarnessError,
                match=r"'/checkpoints/ready-0123'.*random number.*harness checkpoints gc --all",
            ),
            stage.machine(checkpoint=a_checkpoint()),
        ):
            pass

        assert stage.names[-3:] == ["entrance closed", "end", "release"], nonce


def test_resumed_machine_uses_the_agent_of_its_bundle(stage: Stage) -> None:
    bundle_folder = a_bundle(stage.folder / "checkpoint")
    (bundle_folder / "agent.pyz").write_bytes(b"older agent")
    bundle = read_bundle(bundle_folder)

    with stage.machine(gpus=[a_model()], bundle=bundle) as machine:
        assert stage.noted[1:] == [
            ("start", stage.folder, [], b"older agent"),
            ("used by", PID),
            ("entrance",),
            ("restore whole", bundle.memory),
            ("settle", 3, None),
            ("plug", "gpu0"),
        ]
        stage.noted.clear()
        _ = machine.agent
        assert stage.noted == []


def test_agent_of_a_resumed_guest_is_awaited_if_the_guest_hung_when_it_was_saved(
    stage: Stage,
) -> None:
    bundle_folder = a_bundle(stage.folder / "checkpoint")
    (bundle_folder / "agent.pyz").write_bytes(b"older agent")
    stage.agent.hangs = True

    with stage.machine(bundle=read_bundle(bundle_folder)) as machine:
        stage.agent.hangs = False
        _ = machine.agent
        # The agent did not answer when the machine was resumed, so this use waits for the agent.
        assert stage.noted[-1] == ("ready", 90)


def test_machine_that_was_killed_is_not_started(stage: Stage) -> None:
    """The machine waits neither for capacity nor for GPUs of the host."""
    for source in (GpuSource.EMULATED, GpuSource.HOST):
        stage.sources, pool = sources(source, "0000:65:00.0")
        machine = stage.machine(gpus=[ANY])
        machine.kill()

        with (
            pytest.raises(
                HarnessError, match=r"^Machine 'node' was killed, since the run is being ended\.$"
            ),
            machine,
        ):
            pass

        assert "start" not in stage.names
        assert pool.holders == []


def test_start_of_a_machine_ends_when_the_machine_is_killed(stage: Stage) -> None:
    machine = stage.machine(checkpoint=a_checkpoint())
    stage.driver.on_start = machine.kill

    with pytest.raises(HarnessError, match="was killed, since the run is being ended"), machine:
        pass

    assert "restore" not in stage.names
    assert stage.names[-3:] == ["entrance closed", "end", "release"]


def test_keyboard_interrupt_during_the_start_releases_the_reserved_capacity(stage: Stage) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    stage.driver.on_start = interrupt

    with pytest.raises(KeyboardInterrupt), stage.machine():
        pass

    assert stage.names[-1] == "release"


def test_machine_reports_that_it_waits_for_gpus_and_for_capacity(stage: Stage) -> None:
    stage.sources, _ = sources(GpuSource.HOST, "0000:65:00.0")

    with stage.machine(gpus=[ANY]) as machine:
        assert stage.said == ["waiting", "waits for capacity"]
        assert machine.gpus.provided[0].title == "host 0000:65:00.0"


def test_machine_reserves_no_capacity_while_it_waits_for_host_gpus(stage: Stage) -> None:
    """A machine with capacity and a machine with GPUs could wait for each other for ever."""
    stage.sources, _ = sources(GpuSource.HOST)

    with pytest.raises(HarnessError, match="1 GPUs are wanted"), stage.machine(gpus=[ANY]):
        pass

    assert stage.names == []


def test_machine_that_was_not_started_has_no_vm(stage: Stage) -> None:
    machine = stage.machine()

    assert not machine.has_vm
    assert machine.last_state is None
    with pytest.raises(HarnessError, match=r"^Machine 'node' has not been started\.$"):
        _ = machine.vm
    with machine:
        assert machine.has_vm


def test_last_state_is_the_most_recently_captured_state(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = iter(["first", "second"])
    monkeypatch.setattr(state_capture, "take_state", lambda *_, **_named: next(taken))

    with stage.machine() as machine:
        found: list[object] = [machine.state(), machine.state(), machine.last_state]

    assert found == ["first", "second", "second"]


def test_first_use_of_the_agent_waits_until_the_agent_is_ready(stage: Stage) -> None:
    with stage.machine() as machine:
        stage.noted.clear()
        stage.agent.hangs = True
        with pytest.raises(HarnessError, match="does not answer"):
            _ = machine.agent
        stage.agent.hangs = False

        _ = machine.agent
        _ = machine.agent

        assert stage.noted == [("ready", 90)]


def test_blocked_gpu_is_reported_as_the_reason_for_a_delay_or_a_failure_of_the_guest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def report(patience_s: float) -> str | None:
        asked.append(patience_s)
        return f"blocked for {patience_s} s"

    with stage.machine() as machine:
        monkeypatch.setattr(machine.gpus, "stall_report", report)
        explain = cast("Callable[[], str | None]", stage.agent.link.explain_delay)

        assert explain() == "blocked for 1.0 s"
        assert machine.failure() == "blocked for 60.0 s"
        monkeypatch.setattr(machine.gpus, "stall_report", lambda _: None)
        stage.driver.vms[0].reason = "QEMU ended"
        assert machine.failure() == "QEMU ended"
