"""A node on its machine, and the evidence of the node, on a fake VM driver that starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.cloudinit import FINISHED, GuestFile
from harness.errors import HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH, Evidence
from harness.evidence.request import AdditionalEvidence
from harness.lab import evidence_collection
from harness.lab.node import Node
from harness.lab.node_request import all_files
from harness.provisioner import RUNNER_PATH, Provisioner
from harness.provisioner.outcome import LogPatterns, OutcomeDeclaration
from harness.steps import listening
from suites.unit.gpu.models import a_model
from suites.unit.lab.builders import (
    a_cloud_image,
    a_prepared_image,
    a_provisioner,
    a_request,
)
from suites.unit.lab.stage import RESULT, a_checkpoint
from suites.unit.lab.step_titles import Titles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.machine.checkpoint.store import Checkpoint
    from suites.unit.lab.stage import Stage

#: The provisioner's time limit in seconds, multiplied by the patience of the stage.
LIMIT_S = round(a_provisioner().timeout_s * 3)


def a_node(stage: Stage, provisioner: Provisioner | None = None, **changes: Any) -> Node:
    machine = stage.machine(gpus=changes.get("gpus", ()), slots=4)
    return Node(a_request(**changes), machine, provisioner=provisioner or a_provisioner())


@pytest.fixture
def node(stage: Stage) -> Iterator[Node]:
    with a_node(stage) as running:
        yield running


# -- the machine of a node ---------------------------------------------------------------------------


def test_running_node_plugs_and_unplugs_a_gpu(stage: Stage) -> None:
    with a_node(stage, gpus=[a_model()]) as node:
        assert node.hot_plug(a_model()) == "gpu1"
        assert node.gpu() is node.machine.gpu("gpu0")
        assert node.gpu("gpu1") is node.machine.gpu("gpu1")
        node.mark("now")
        assert node.machine.gpu_traces()["gpu0"].find_mark("now")

        node.hot_unplug("gpu1")

        assert ("unplug", "gpu1", 30) in stage.noted
        assert node.machine.gpus.plugged == ("gpu0",)


def test_gpu_in_use_is_unplugged_only_on_request(stage: Stage) -> None:
    stage.agent.answers["users"] = "7\t/dev/nvidia0\ttrain"
    with a_node(stage, gpus=[a_model()]) as node:
        with pytest.raises(HarnessError, match="'train'"):
            node.hot_unplug("gpu0")

        node.hot_unplug("gpu0", in_use=True)

        assert node.machine.gpus.plugged == ()


def test_seed_is_plugged_into_a_clone_after_the_clone_lists_its_gpus(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.lab.machine_gpus._PLACED_KVM_S", 0.0)
    machine = stage.machine(gpus=[a_model()], checkpoint=a_checkpoint())

    with Node(a_request(gpus=[a_model()]), machine, provisioner=a_provisioner()):
        names = stage.names
        waited = names.index("run")
        assert names.index("plug") < waited < names.index("plug seed")
        assert ("plug seed", stage.folder / "seed.iso") in stage.noted


@pytest.mark.parametrize("checkpoint", [a_checkpoint(), None], ids=["clone", "cold"])
def test_node_that_skips_cloud_init_gets_its_files_and_commands_from_the_agent(
    stage: Stage, checkpoint: Checkpoint | None
) -> None:
    stage.agent.answers["sh"] = RESULT
    mine = GuestFile(path="/etc/mine", content=b"mine", mode=0o600)
    request = a_request(
        skip_cloud_init=True, files=[mine], early=[["early"]], before=[["before", "it"]]
    )
    machine = stage.machine(checkpoint=checkpoint)
    stage.driver.lines = [FINISHED]

    with Node(request, machine, provisioner=a_provisioner()) as node:
        assert stage.driver.vms[0].console.lines == ([] if checkpoint is None else [FINISHED])
        written = [each[1:3] for each in stage.noted if each[0] == "write"]
        assert (written[0], written[-1]) == ((RUNNER_PATH, 0o755), ("/etc/mine", 0o600))
        assert stage.agent.files["/etc/mine"] == b"mine"
        assert [each[1:] for each in stage.noted[-2:]] == [("early",), ("before", "it")]

        node.wait_until_provisioned()

    expected = a_provisioner().guest_command("boot", output=CLOUD_INIT_OUTPUT_PATH)
    assert stage.agent.commands()[-1] == tuple(expected)


def test_node_that_can_not_be_prepared_ends_its_machine(stage: Stage) -> None:
    stage.agent.refused.add("tool")
    machine = stage.machine(checkpoint=a_checkpoint())
    request = a_request(skip_cloud_init=True, before=[["tool"]])

    with (
        pytest.raises(HarnessError, match="tool"),
        Node(request, machine, provisioner=a_provisioner()),
    ):
        pass

    assert stage.names[-1] == "release"


def test_power_off_waits_until_the_machine_has_ended(stage: Stage, node: Node) -> None:
    node.power_off()

    assert stage.agent.commands()[-1] == ("systemctl", "--no-block", "poweroff")
    assert stage.noted[-1] == ("power off", 45)


# -- provisioning ------------------------------------------------------------------------------------


def test_command_of_the_provisioner_writes_to_the_cloud_init_output_log(
    stage: Stage, node: Node
) -> None:
    stage.agent.refused.add("sh")
    report = Titles()

    with listening(report):
        result = node.provision("boot")

    assert not result.ok
    assert report.titles == [
        "Provision node 'node': command 'boot'",
        "Wait for the agent of machine 'node'",
    ]
    expected = a_provisioner().guest_command("boot", output=CLOUD_INIT_OUTPUT_PATH)
    assert stage.agent.commands()[-1] == tuple(expected)
    assert stage.agent.limits_s[tuple(expected)] == LIMIT_S
    # While a node makes progress, its deadline is extended up to three times the limit.
    assert stage.agent.timeouts_s[tuple(expected)] == LIMIT_S * 30
    assert "is provisioned by command 'boot'" in [event.message for event in stage.events]


def provisioned(stage: Stage, node: Node, *lines: str) -> list[str]:
    """Let the console show these lines until cloud-init has finished, and return the progress."""
    stage.agent.answers["sh"] = RESULT
    seen: list[str] = []
    with node:
        stage.driver.vms[0].console.lines = [*lines, FINISHED]
        node.wait_until_provisioned(seen.append)
    return seen


@pytest.mark.parametrize("step", [None, r"^did (\w+)"])
def test_progress_shows_stages_and_steps_of_the_console(stage: Stage, step: str | None) -> None:
    log = None if step is None else LogPatterns(step=step)
    mine = Provisioner(
        name="mine", run=["/opt/mine"], timeout_s=70, outcome=OutcomeDeclaration(log=log)
    )
    report = Titles()

    with listening(report):
        seen = provisioned(stage, a_node(stage, mine), "running 'modules:final'", "did driver")

    assert seen == ["running 'modules:final'", "did driver", FINISHED]
    assert "Provision node 'node' by cloud-init" in report.titles
    waits = stage.driver.vms[0].console.waits
    assert {limit_s for _, limit_s, _, _ in waits} == {210}
    assert all((r"did (\w+)" in pattern) is (step is not None) for pattern, *_ in waits)


@pytest.mark.parametrize(
    "image",
    [a_cloud_image(), a_prepared_image()],
    ids=["cloud image", "image prepared from a cloud image"],
)
def test_first_boot_of_a_cloud_image_has_a_longer_time_limit(stage: Stage, image: Any) -> None:
    with a_node(stage, image=image) as node:
        node.provision("boot")

    assert max(stage.agent.limits_s.values()) == LIMIT_S + 270


# -- evidence ----------------------------------------------------------------------------------------


class Gathering:
    """Replaces the functions that collect evidence, and records their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[object, ...]] = []

        def note(name: str) -> Any:
            def collect(machine: object, *where: Path, **how: object) -> Evidence:
                self.asked.append((name, machine, *where, how))
                return Evidence(*where) if where else Evidence(self.folder)

            return collect

        for name in ("collect", "collect_result", "collect_available"):
            monkeypatch.setattr(evidence_collection, name, note(name))

    folder: Path


@pytest.fixture
def gathering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gathering:
    made = Gathering(monkeypatch)
    made.folder = tmp_path / "available"
    return made


def test_evidence_of_the_node_has_its_kernels_and_provisioner(
    node: Node, gathering: Gathering
) -> None:
    first = node.evidence(files=["/etc/a"])
    second = node.evidence(commands={"links": ["ip", "link"]})
    node.collect_available()

    everything = {"kernels": ["6.1.0-55", "6.1.0-56"], "provisioner": node.provisioner}
    files = AdditionalEvidence(files=["/etc/a"])
    commands = AdditionalEvidence(commands={"links": ["ip", "link"]})
    assert gathering.asked == [
        ("collect", node.machine, node.folder / "evidence-1", {**everything, "additional": files}),
        (
            *("collect", node.machine, node.folder / "evidence-2"),
            {**everything, "additional": commands},
        ),
        (
            *("collect_available", node.machine),
            {**everything, "additional": files.merged(commands)},
        ),
    ]
    assert node.gathered == (first, second)


def test_result_and_full_evidence_are_gathered_into_separate_folders(
    node: Node, gathering: Gathering
) -> None:
    result = node.result()
    node.evidence()

    assert gathering.asked[0] == (
        *("collect_result", node.machine, node.folder / "evidence-1"),
        {"provisioner": node.provisioner},
    )
    assert gathering.asked[1][2] == node.folder / "evidence-2"
    assert result.folder == node.folder / "evidence-1"
    assert result not in node.gathered


def test_guest_lists_the_kernels_of_a_cloud_image_node(stage: Stage, gathering: Gathering) -> None:
    with a_node(stage, image=a_cloud_image()) as node:
        node.collect(stage.folder / "kept")

    (asked,) = gathering.asked
    assert asked[-1] == {
        "kernels": None,
        "provisioner": node.provisioner,
        "additional": AdditionalEvidence(),
    }


# -- requests ----------------------------------------------------------------------------------------


def test_guest_files_are_ordered_provisioner_then_stand_ins_then_request() -> None:
    request = a_request(
        stand_ins={"nvidia-dcgm": {"START_RESULT": "fail"}},
        files=[GuestFile(path="/etc/mine", content=b"mine")],
        spare_slots=2,
        gpus=[a_model()],
    )

    paths = [file.path for file in all_files(request, a_provisioner())]
    assert paths[-2:] == ["/etc/gpu-node/stand-ins/nvidia-dcgm.env", "/etc/mine"]
    assert len(paths) == len(set(paths)) > 3
    assert request.slots == 3
