"""A node waits for the device plugin and the DRA driver, which allocate GPUs to pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness import expect
from suites.e2e.any_provisioner import expect_run_ended_at, is_own
from suites.e2e.promises import promise
from suites.e2e.services.units import (
    BRIEF,
    DCGM,
    DRA,
    DRA_PROGRAM,
    EXPORTER,
    FAILS,
    HANGS,
    KUBELET,
    MANAGED,
    MARKER,
    MONITORING_PACKAGES,
    PLUGIN,
    SLOW,
    TAG,
    UNIT,
    evidence_of,
    expect_installed,
    expect_property,
    fill_caches,
    make_program,
    name_of,
    remove_unit,
    unit_file,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.api import Argv
    from harness.lab.node import Node
    from suites.e2e.conftest import StartNode

#: Kubernetes has node names only in lower case.
NODE_NAME = "GPU-Node-7"
WITH_DRA: Mapping[str, object] = {"enable_managed_gpu_dra": True}


@promise(section="7", unit=UNIT, any_provisioner=True)
def test_node_waits_for_a_slow_device_plugin(start_validated: StartNode) -> None:
    """No later unit starts before the plugin is ready."""
    node = start_validated("slow", tags=TAG, stand_ins={"nvidia-device-plugin": SLOW})

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect.unit_enablement(evidence, PLUGIN, "enabled")
    for unit in (DCGM, EXPORTER, KUBELET):
        expect.unit_ready_before(evidence, PLUGIN, unit)


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A reason why a unit never becomes ready, and the state of the unit after the run."""

    stand_in: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[Argv] = ()
    load: str = "loaded"
    active: str = "inactive"
    installed: Sequence[str] = ()
    """Packages that the run installs without making the unit ready."""


TROUBLES = {
    "failing": Trouble(stand_in=FAILS, active="failed"),
    "hanging": Trouble(stand_in=HANGS, active="activating"),
    "masked": Trouble(before=[["systemctl", "mask", PLUGIN]], load="masked"),
    "absent": Trouble(
        before=[
            remove_unit(PLUGIN),
            fill_caches(*MONITORING_PACKAGES, name_of(PLUGIN)),
        ],
        load="not-found",
        installed=[name_of(PLUGIN)],
    ),
}


@promise(section="7", unit=UNIT, any_provisioner=("failing", "masked"))
@pytest.mark.parametrize(
    "trouble", [pytest.param(trouble, id=name) for name, trouble in TROUBLES.items()]
)
def test_device_plugin_that_never_starts_has_its_own_exit_code(
    start_validated: StartNode, trouble: Trouble
) -> None:
    """When the time budget is used up, the run ends with 86 and starts nothing after the plugin."""
    node = start_validated(
        "plugin",
        tags=TAG,
        config=BRIEF,
        stand_ins={"nvidia-device-plugin": trouble.stand_in},
        before=trouble.before,
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence, exit_code=86)
    expect_run_ended_at(evidence, "start-device-plugin")
    if is_own(evidence.provisioner):
        expect.log_line(evidence, "The time budget of the node")
    plugin = evidence.shown_unit(PLUGIN)
    assert (plugin.load, plugin.active) == (trouble.load, trouble.active)
    if trouble.installed:
        expect_installed(node, *trouble.installed)
    expect.unit_job(evidence, PLUGIN, "start" if trouble.active == "activating" else None)
    for unit in (DCGM, EXPORTER, KUBELET):
        assert evidence.shown_unit(unit).started_us is None, f"'{unit}' was started."


def start_dra(
    start: StartNode,
    config: Mapping[str, object],
    stand_ins: Mapping[str, Mapping[str, str]],
    *before: Argv,
) -> Node:
    return start(
        "dra",
        config={**WITH_DRA, **config},
        files=[unit_file(DRA, "/bin/false")],
        before=[["hostname", NODE_NAME], make_program(DRA_PROGRAM), *before],
        stand_ins=stand_ins,
    )


@promise(section="7", unit=UNIT)
def test_dra_driver_starts_after_kubelet_is_ready(start_validated: StartNode) -> None:
    """The DRA driver replaces the device plugin and needs the node's kubelet, also at later boots.

    If the unit of a service is missing, its package is installed. The plugin's package is not
    needed.
    """
    missing = [remove_unit(EXPORTER), fill_caches(*MONITORING_PACKAGES, name_of(DRA))]
    node = start_dra(start_validated, {}, {"kubelet": SLOW}, *missing)

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect.unit_ready_before(evidence, KUBELET, DRA)
    expect.unit_state(evidence, DRA, active="active")
    expect.unit_enablement(evidence, DRA, "enabled")
    expect.unit_runs(
        evidence,
        DRA,
        f"{DRA_PROGRAM} --kubeconfig /var/lib/kubelet/kubeconfig --container-driver-root / "
        f"--image-name  --node-name={NODE_NAME.lower()}",
    )
    expect_property(node, DRA, "Requires", KUBELET)
    expect_property(node, DRA, "After", KUBELET)
    drop_in = f"/etc/systemd/system/{DRA}.d/10-dra-driver-nvidia-gpu.conf"
    expect_property(node, DRA, "DropInPaths", drop_in)
    expect_installed(node, *MONITORING_PACKAGES, name_of(DRA))
    expect.events_recorded(evidence, f"AKS.CSE.start.{name_of(DRA)}")
    assert evidence.shown_unit(PLUGIN).started_us is None, "The device plugin was started too."


@promise(section="7", unit=UNIT)
@pytest.mark.parametrize(
    ("mode", "earlier", "now"),
    [
        pytest.param(WITH_DRA, PLUGIN, DRA, id="to DRA"),
        pytest.param(MANAGED, DRA, PLUGIN, id="to the device plugin"),
    ],
)
def test_node_that_changes_its_mode_stops_the_service_of_the_earlier_mode(
    start_validated: StartNode, mode: Mapping[str, object], earlier: str, now: str
) -> None:
    """Otherwise both services would allocate the same GPU, even after a reboot.

    The monitoring services are the same in both modes.
    """
    node = start_validated(
        "changed",
        config=mode,
        files=[unit_file(DRA, DRA_PROGRAM)],
        before=[make_program(DRA_PROGRAM), ["systemctl", "enable", "--now", earlier]],
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect.unit_state(evidence, now, active="active")
    stopped = evidence.shown_unit(earlier)
    assert stopped.active == "inactive", f"'{earlier}' was expected to stop: {stopped}."
    expect.unit_enablement(evidence, earlier, "disabled")
    expect.events_recorded(evidence, f"AKS.CSE.stop.{name_of(earlier)}")
    for unit in (DCGM, EXPORTER):
        expect.unit_enablement(evidence, unit, "enabled")
        assert evidence.shown_unit(unit).started_us is not None, f"'{unit}' was not started."
    expect_property(
        node, EXPORTER, "DropInPaths", f"/etc/systemd/system/{EXPORTER}.d/10-aks-override.conf"
    )
    assert MARKER in evidence.paths
    assert "dcgm-exporter=enabled" in node.guest.output_of("cat", "/etc/default/kubelet")


@promise(section="7", unit=UNIT)
@pytest.mark.parametrize(
    ("stand_in", "active"),
    [pytest.param(FAILS, "failed", id="failing"), pytest.param(HANGS, "activating", id="hanging")],
)
def test_dra_driver_that_never_starts_has_its_own_exit_code(
    start_validated: StartNode, stand_in: Mapping[str, str], active: str
) -> None:
    """The exit code is 129, and kubelet is already ready."""
    node = start_dra(start_validated, BRIEF, {"dra-driver-nvidia-gpu": stand_in})

    evidence = evidence_of(node)

    expect.provisioned(evidence, exit_code=129)
    expect.run_ended_at(evidence, "start-dra-driver")
    expect.unit_state(evidence, DRA, active=active)
    expect.unit_state(evidence, KUBELET, active="active")


@promise(section="7", unit=UNIT, each_change=("by configuration",))
@pytest.mark.parametrize(
    ("config", "tags"),
    [
        pytest.param({**MANAGED, **WITH_DRA}, {}, id="by configuration"),
        pytest.param(WITH_DRA, TAG, id="by the tag and configuration"),
    ],
)
def test_configuration_with_both_device_plugin_and_dra_driver_is_refused(
    start_validated: StartNode, config: Mapping[str, object], tags: Mapping[str, str]
) -> None:
    """With both modes, two services would allocate the same GPU.

    The exit code is 123; no service starts.
    """
    node = start_validated("both", config=config, tags=tags)

    evidence = evidence_of(node)

    expect.provisioned(evidence, exit_code=123)
    for unit in (PLUGIN, DCGM, EXPORTER, KUBELET):
        assert evidence.shown_unit(unit).started_us is None, f"'{unit}' was started."


@promise(section="2", unit="suites/unit/provisioning/test_tags.py")
@pytest.mark.parametrize(
    ("tags", "is_on"),
    [
        pytest.param(TAG, True, id="on"),
        pytest.param({"EnableManagedGPUExperience": "false"}, False, id="off"),
        pytest.param({}, False, id="absent"),
        pytest.param({"enablemanagedgpuexperience": "TRUE"}, True, id="mixed case"),
        pytest.param({"xEnableManagedGPUExperienceY": "true"}, False, id="contains the name"),
        pytest.param({"EnableManagedGPUExperience": "untrue"}, False, id="contains the value"),
    ],
)
def test_tag_of_the_machine_turns_the_managed_services_on(
    start_validated: StartNode, tags: Mapping[str, str], *, is_on: bool
) -> None:
    """The tag's name and value are compared whole, without regard to case; `plan` and `boot` agree."""
    node = start_validated("tag", tags=tags, command="plan")

    evidence = node.evidence()

    expect.provisioned(evidence)
    steps = [line.split()[0] for line in evidence.log.splitlines() if "# failure: " in line]
    assert ("start-device-plugin" in steps, "unmark-managed-services" in steps) == (
        is_on,
        not is_on,
    )
