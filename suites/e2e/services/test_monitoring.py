"""A node never waits for DCGM and the DCGM exporter; even if both fail, the node gets ready.

On each node, both services succeed, hang or fail alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import expect
from suites.e2e.any_provisioner import is_own
from suites.e2e.interruption.interrupt import DONE, FAIL, Interruption
from suites.e2e.promises import promise
from suites.e2e.services.units import (
    DCGM,
    EXPORTER,
    FAILS,
    HANGS,
    KUBELET,
    MANAGED,
    MONITORING_PACKAGES,
    TAG,
    UNIT,
    drop_in,
    evidence_of,
    expect_installed,
    fill_caches,
    name_of,
    remove_unit,
    unit_file,
)

if TYPE_CHECKING:
    from harness.evidence import Evidence
    from suites.e2e.conftest import StartNode

WARNINGS = {
    DCGM: "warning: nvidia-dcgm could not be enqueued; GPU monitoring will start asynchronously",
    EXPORTER: "warning: nvidia-dcgm-exporter could not be enqueued; GPU metrics will start "
    "asynchronously",
}

#: The image's exporter starts after DCGM; this exporter does not depend on DCGM.
INDEPENDENT = unit_file(EXPORTER, "/usr/bin/dcgm-exporter")


def expect_no_warning(evidence: Evidence) -> None:
    found = [line for line in evidence.log.splitlines() if line.startswith("warning: ")]
    assert found == [], (
        f"No warning was expected of jobs that systemd took, but there are {found}."
    )


@promise(section="7", unit=UNIT, each_change=True, any_provisioner=True)
def test_slow_monitoring_is_not_awaited(start_validated: StartNode) -> None:
    """Both services get ready only after kubelet, so a wait for them would never end."""
    wait = "ExecStartPre=sh -c 'until systemctl is-active -q kubelet; do sleep 0.2; done'"
    node = start_validated(
        "slow",
        tags=TAG,
        files=[INDEPENDENT, *(drop_in(unit, wait) for unit in WARNINGS)],
    )
    until = (
        "until systemctl is-active -q nvidia-dcgm && systemctl is-active -q nvidia-dcgm-exporter"
    )
    node.guest.output_of("sh", "-c", f"{until}; do sleep 0.2; done")

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect_no_warning(evidence)
    for unit in WARNINGS:
        expect.unit_not_awaited(evidence, unit, by=KUBELET)
        expect.unit_state(evidence, unit, active="active")
        expect.unit_enablement(evidence, unit, "enabled")


@promise(section="7", unit=UNIT, any_provisioner=True)
def test_hanging_monitoring_does_not_delay_the_node(start_validated: StartNode) -> None:
    """The jobs are still queued in systemd after provisioning has ended."""
    hang = {name_of(unit): HANGS for unit in WARNINGS}
    node = start_validated("hangs", tags=TAG, stand_ins=hang, files=[INDEPENDENT])

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect_no_warning(evidence)
    expect.unit_state(evidence, KUBELET, active="active")
    for unit in WARNINGS:
        expect.unit_state(evidence, unit, active="activating")
        expect.unit_job(evidence, unit, "start")
        expect.unit_not_awaited(evidence, unit, by=KUBELET)
    if is_own(evidence.provisioner):
        for step in ("start-dcgm", "start-dcgm-exporter"):
            ignored = expect.step_of(evidence, step).detail
            assert ignored is None, f"A command of '{step}' failed: {ignored}"


@promise(section="7", unit=UNIT, any_provisioner=True)
def test_failing_monitoring_has_its_own_exit_code(start_validated: StartNode) -> None:
    """Provisioning gives no warning, since systemd accepted the jobs.

    The units show the failure.
    """
    node = start_validated(
        "fails", tags=TAG, stand_ins={name_of(unit): FAILS for unit in WARNINGS}
    )
    until = (
        "until systemctl is-failed -q nvidia-dcgm && systemctl is-failed -q nvidia-dcgm-exporter"
    )
    node.guest.output_of("sh", "-c", f"{until}; do sleep 0.2; done")

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect_no_warning(evidence)
    expect.unit_state(evidence, KUBELET, active="active")
    for unit in WARNINGS:
        expect.unit_state(evidence, unit, active="failed")


@promise(section="7", unit=UNIT)
def test_masked_monitoring_gives_a_warning(start_validated: StartNode) -> None:
    """The mask of an administrator is respected: a warning, and no attempt to install."""
    node = start_validated("masked", config=MANAGED, before=[["systemctl", "mask", *WARNINGS]])

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect.unit_state(evidence, KUBELET, active="active")
    for unit, warning in WARNINGS.items():
        expect.log_line(evidence, warning)
        expect.unit_enablement(evidence, unit, "masked")


@promise(section="7", unit=UNIT)
def test_absent_monitoring_gives_a_warning(start_validated: StartNode) -> None:
    """The second attempt installs the cached packages, but they lack the units, so the run warns."""
    fails_once = Interruption(at="apt-get install -y --no-install-recommends *", act=FAIL).file
    node = start_validated(
        "absent",
        config=MANAGED,
        files=[fails_once],
        before=[
            remove_unit(*WARNINGS),
            fill_caches(*MONITORING_PACKAGES, "nvidia-device-plugin"),
        ],
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    assert node.guest.read_text(DONE) is not None, (
        "No command installed packages without a question, and those alone."
    )
    expect_installed(node, *MONITORING_PACKAGES)
    expect.unit_state(evidence, KUBELET, active="active")
    for unit, warning in WARNINGS.items():
        expect.log_line(evidence, warning)
        assert evidence.shown_unit(unit).load == "not-found"
