"""Provisioning that is killed at one of its steps, and started again.

`timeout` kills a run after fifteen minutes, the kernel kills it when memory is short, and the
guest agent starts a new run. The node must then have the same state as after one whole run, and
nothing may be compiled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from harness import expect
from suites.e2e.interruption.interrupt import (
    DONE,
    KILL,
    KILL_AND_GO_ON,
    SEEN,
    TERMINATE,
    TERMINATE_DURING_CONTAINER,
    Interruption,
    once_dkms_compiles,
)
from suites.e2e.interruption.whole_run import expect_as_whole_run
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.api import Argv, BootNode, Image
    from harness.evidence.state import NodeState
    from harness.lab.node import Node
    from harness.lab.node_request import NodeRequest

UNIT = "suites/unit/provisioning/test_properties.py"
KILLED = 137
TERMINATED = 143
NO_IMAGE = ["sh", "-euc", "ctr -n k8s.io images rm $(ctr -n k8s.io images ls -q)"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """The command at which a run is interrupted."""

    at: str
    act: str = KILL
    skip: int = 0
    before: tuple[Argv, ...] = ()

    @property
    def interruption(self) -> Interruption:
        return Interruption(at=self.at, act=self.act, skip=self.skip)


ROWS: Mapping[str, Row] = {
    "facts": Row(at="containerd config dump"),
    "wait for containerd": Row(at="ctr version"),
    "early CDI refresh": Row(at="systemctl daemon-reload"),
    "pull": Row(at="ctr -n k8s.io image pull*", before=(NO_IMAGE,)),
    "tag": Row(at="ctr -n k8s.io image tag*", before=(NO_IMAGE,)),
    "removal of the pulled name": Row(at="ctr -n k8s.io image rm*", before=(NO_IMAGE,)),
    "install": Row(at="ctr -n k8s.io run*"),
    "install goes on alone": Row(at="ctr -n k8s.io run*", act=KILL_AND_GO_ON),
    "removal of the image": Row(at="ctr -n k8s.io images rm*"),
    "probe": Row(at="nvidia-modprobe -u -c0"),
    "query": Row(at="nvidia-smi *"),
    "libraries": Row(at="ldconfig *", skip=1),
    "CDI spec": Row(at="systemctl start nvidia-cdi-refresh.service"),
    "restart of containerd": Row(at="systemctl restart containerd"),
    "modprobe unit": Row(at="systemctl restart nvidia-modprobe"),
    "device plugin": Row(at="systemctl restart nvidia-device-plugin"),
    "monitoring": Row(at="systemctl restart --no-block nvidia-dcgm-exporter"),
    "kubelet": Row(at="systemctl restart kubelet"),
    "last command": Row(at="systemctl enable kubelet"),
}
#: Rows at whose commands a killed run leaves special remains; all other rows are nightly.
EVERY_RUN = (
    "tag",
    "removal of the pulled name",
    "install goes on alone",
    "CDI spec",
    "restart of containerd",
    "last command",
)


def interrupted(boot_node: BootNode, request: NodeRequest, row: Row) -> Node:
    """Return a node whose first run was interrupted at the command of the row."""
    node = boot_node(
        replace(
            request,
            files=[*request.files, row.interruption.file],
            before=[*request.before, *row.before],
        )
    )
    assert node.guest.read_text(DONE) is not None, f"No command was '{row.at}'."
    return node


@promise(section="5", unit=UNIT)
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=name, marks=[] if name in EVERY_RUN else [pytest.mark.nightly])
        for name, row in ROWS.items()
    ],
)
def test_next_run_completes_the_work_of_a_killed_run(
    boot_node: BootNode, usual_request: NodeRequest, whole_run: NodeState, row: Row
) -> None:
    """Leftovers of a killed run neither stop the next run nor remain afterwards."""
    node = interrupted(boot_node, usual_request, row)
    killed = node.evidence()
    node.provision("boot")

    evidence = node.evidence()

    assert killed.exit_code == KILLED
    assert killed.outcome is None, "A killed run was expected to leave no outcome."
    expect.provisioned(evidence)
    expect.decided(evidence, "install-skip-build", reason="ok")
    assert expect.step_of(evidence, "install-driver").status == "skipped"
    expect_as_whole_run(whole_run, node)


@promise(section="5", unit=UNIT)
@pytest.mark.nightly
def test_node_is_completed_by_the_run_after_several_killed_runs(
    boot_node: BootNode, usual_request: NodeRequest, whole_run: NodeState
) -> None:
    """Each run is killed one step later than the run before.

    The node ends in the same state as after one complete run.
    """
    node = boot_node(replace(usual_request, command=None))
    for row in list(ROWS.values())[4::3]:
        file = row.interruption.file
        for command in row.before:
            node.guest.output_of(*command)
        node.guest.output_of("rm", "-f", DONE, SEEN)
        node.guest.write_text(file.path, file.content.decode())
        node.guest.output_of("chmod", "0755", file.path)
        node.provision("boot")
        assert node.guest.read_text(DONE) is not None, f"No command was '{row.at}'."
        node.guest.output_of("rm", file.path)
    node.provision("boot")

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect_as_whole_run(whole_run, node)


@promise(section="13", unit="suites/unit/provisioning/test_main.py", each_change=("install",))
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(Row(at="ctr -n k8s.io run*", act=TERMINATE_DURING_CONTAINER), id="install"),
        pytest.param(Row(at="systemctl restart containerd", act=TERMINATE), id="containerd"),
    ],
)
def test_terminated_run_has_the_exit_code_for_sigterm_and_the_next_run_completes_the_work(
    boot_node: BootNode, usual_request: NodeRequest, whole_run: NodeState, row: Row
) -> None:
    """SIGTERM, as sent by `timeout`, ends the running command; the run writes an outcome."""
    node = interrupted(boot_node, usual_request, row)
    containers = node.guest.output_of("ctr", "-n", "k8s.io", "containers", "ls", "-q")
    node.provision("boot")

    evidence = node.evidence()

    assert containers == "", f"The run was expected to end its containers, but left: {containers}"
    expect.provisioned(evidence, exit_code=TERMINATED, run=1)
    expect.provisioned(evidence)
    expect_as_whole_run(whole_run, node)


@promise(section="10", unit="suites/unit/provisioning/test_boot.py")
def test_containerd_restarts_with_a_configuration_that_a_killed_run_wrote(
    boot_node: BootNode, usual_request: NodeRequest
) -> None:
    """The configuration file is complete, but the running containerd has not read the file."""
    request = replace(
        usual_request,
        config={**usual_request.config, "config_gpu_driver_if_needed": False},
    )
    node = interrupted(boot_node, request, Row(at="systemctl restart containerd"))
    started = node.guest.output_of(*_CONTAINERD_STARTED)
    node.provision("boot")

    evidence = node.evidence()

    expect.provisioned(evidence)
    assert node.guest.output_of(*_CONTAINERD_STARTED) != started, (
        "containerd was expected to restart with the new configuration, but still runs."
    )


_CONTAINERD_STARTED = (
    *("systemctl", "show", "--value", "--property=ExecMainStartTimestampMonotonic"),
    "containerd",
)


@promise(section="6", unit="suites/unit/provisioning/test_teardown.py")
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(Row(at="rmmod nvidia"), id="modules"),
        pytest.param(Row(at="ldconfig *"), id="libraries"),
    ],
)
def test_next_run_completes_a_killed_teardown(
    boot_node: BootNode, usual_request: NodeRequest, row: Row
) -> None:
    """The record is removed last, so an interrupted teardown is detected."""
    request = replace(
        usual_request,
        tags={"SkipGpuDriverInstall": "true"},
        before=[["nvidia-modprobe", "-u", "-c0"]],
        command="teardown",
    )
    node = interrupted(boot_node, request, row)
    killed = node.evidence()
    node.provision("teardown")

    evidence = node.evidence()

    assert killed.exit_code == KILLED
    assert killed.record is not None, "The record was expected to go last, but it is gone."
    expect.provisioned(evidence)
    expect.no_driver_artefact(evidence)
    expect.no_record(evidence)


@promise(section="4", unit="suites/unit/provisioning/test_prebake.py")
def test_bake_killed_before_it_compiled_leaves_a_record_without_a_driver(
    boot_node: BootNode, usual_request: NodeRequest
) -> None:
    """A node would trust the record of an earlier bake; without a record, a node removes nothing."""
    request = replace(
        usual_request,
        config={**usual_request.config, "feature_flags": "NVIDIA_CUDA_PREBAKE"},
        command="bake",
    )
    node = interrupted(boot_node, request, Row(at="ctr -n k8s.io run*"))
    killed = node.evidence()
    node.provision("plan")

    evidence = node.evidence()

    assert killed.exit_code == KILLED
    expect.provisioned(evidence)
    expect.decided(evidence, "teardown-install", reason="corrupt")


@promise(section="4", unit="suites/unit/provisioning/test_main.py")
def test_bake_that_is_terminated_during_its_build_leaves_no_driver(
    boot_node: BootNode, usual_request: NodeRequest
) -> None:
    """A build machine that stops a bake in time must not leave half of a driver in the image."""
    request = replace(
        usual_request,
        config={**usual_request.config, "feature_flags": "NVIDIA_CUDA_PREBAKE"},
        command="bake",
    )
    row = Row(at="ctr -n k8s.io run*build-only", act=TERMINATE_DURING_CONTAINER)

    node = interrupted(boot_node, request, row)
    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=TERMINATED)
    expect.no_record(evidence)
    expect.no_driver_artefact(evidence)
    assert node.guest.output_of("ctr", "-n", "k8s.io", "containers", "ls", "-q") == ""


@pytest.mark.slow
@promise(section="4", unit="suites/unit/provisioning/test_prebake.py")
def test_node_whose_bake_was_killed_while_it_compiled_builds_its_driver(
    boot_node: BootNode, usual_request: NodeRequest, baked_image: Image
) -> None:
    """The partial driver has no valid record, so the node does not use it."""
    killed_while_compiling = once_dkms_compiles(
        "pkill -KILL -f ^python3.*[.]pyz; pkill -KILL -f [n]vidia-installer; pkill -KILL dkms"
    )
    request = replace(
        usual_request,
        config={**usual_request.config, "feature_flags": "NVIDIA_CUDA_PREBAKE"},
        command="bake",
        before=[*usual_request.before, ["sh", "-euc", killed_while_compiling]],
    )
    node = boot_node(request)
    killed = node.evidence()
    node.provision("boot")

    evidence = node.evidence()

    assert killed.exit_code == KILLED
    assert baked_image.driver is not None
    kernel = baked_image.newest_kernel.version
    expect.no_record(killed)
    expect.provisioned(evidence)
    expect.decided(evidence, "install", reason="no_record")
    expect.module_built_since_boot(evidence, kernel)
    expect.record_names(evidence, kernel=kernel, driver_version=baked_image.driver.version)
    expect.driver_installed(evidence)
