"""The event files that the guest agent sends to the cloud, and the log lines that operators count."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.evidence import RECORD_PATH
from harness.gpu.script import GpuScript
from harness.provisioner.gpu_node import EVENTS_FOLDER
from suites.e2e.guest_script import TAG_AS_GRID, shell
from suites.e2e.promises import promise
from suites.e2e.services.units import MANAGED, NO_SERVICES
from suites.e2e.teardown.node import CUSTOMER

if TYPE_CHECKING:
    from harness.evidence import Evidence
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_journal.py"
_FIELDS = (
    *("Timestamp", "OperationId", "Version", "TaskName", "EventLevel", "Message"),
    *("EventPid", "EventTid"),
)
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")
LOG = "/var/log/azure/cluster-provision.log"
ENSURE = "AKS.CSE.ensureGPUDrivers"
VALIDATE = f"{ENSURE}.validateGPUDrivers"
MANAGED_GROUP = "AKS.CSE.configureManagedGPUExperience"


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event file; times are in milliseconds since the epoch."""

    file_ms: int
    task: str
    began_ms: int
    ended_ms: int

    def spans(self, other: Event) -> bool:
        return self.began_ms <= other.began_ms and other.ended_ms <= self.ended_ms


def _milliseconds(stamp: str) -> int:
    assert _STAMP.fullmatch(stamp), f"'%F %T.%3N' was expected, but the stamp is '{stamp}'."
    moment = dt.datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=dt.timezone.utc)
    return round(moment.timestamp() * 1000)


def read_event(path: str, text: str) -> Event:
    """Read an event file, and check that each field has the form in the contract."""
    name = re.fullmatch(rf"{EVENTS_FOLDER}/(\d+)\.json", path)
    assert name, f"The guest agent does not read '{path}', whose name is not digits alone."
    fields = json.loads(text)
    assert tuple(fields) == _FIELDS
    assert (fields["Version"], fields["EventLevel"]) == ("1.23", "Informational")
    assert (fields["EventPid"], fields["EventTid"]) == ("0", "0")
    assert re.fullmatch(r"Completed: \S.*", fields["Message"])
    return Event(
        file_ms=int(name[1]),
        task=fields["TaskName"],
        began_ms=_milliseconds(fields["Timestamp"]),
        ended_ms=_milliseconds(fields["OperationId"]),
    )


def events_of(evidence: Evidence) -> dict[str, Event]:
    """Return the events by task; check that each task has one event, and check the events' times."""
    files = evidence.event_files
    events = [read_event(path, text) for path, text in files.items()]
    counts = Counter(event.task for event in events)
    assert not [task for task, count in counts.items() if count > 1], counts
    for event in events:
        assert event.began_ms <= event.ended_ms
        assert 0 <= event.file_ms - event.began_ms < len(events)
    return {event.task: event for event in events}


@promise(section="5, 12", unit=UNIT, each_change=True)
def test_ready_node_has_an_event_for_each_step_and_each_group(start_validated: StartNode) -> None:
    """There is one event for each step that ran and for each group; a group spans its steps.

    No event is lost, although groups that begin together would get the same file name: the
    millisecond of their start.
    """
    node = start_validated("events", config=MANAGED)

    evidence = node.evidence()

    expect.provisioned(evidence)
    events = events_of(evidence)
    starts = [
        f"AKS.CSE.start.{unit}"
        for unit in ("nvidia-device-plugin", "nvidia-dcgm", "nvidia-dcgm-exporter")
    ]
    services, packages = (
        "AKS.CSE.startNvidiaManagedExpServices",
        "AKS.CSE.installNvidiaManagedExpPkgFromCache",
    )
    inside = {
        ENSURE: (VALIDATE, f"{ENSURE}.nvidia-modprobe"),
        MANAGED_GROUP: (packages, services),
        services: starts,
    }
    assert sorted(events) == sorted(
        {*inside, *(task for each in inside.values() for task in each)}
    )
    for group, tasks in inside.items():
        for task in tasks:
            assert events[group].spans(events[task]), f"'{group}' does not span '{task}'."
    assert events[ENSURE].began_ms == events[VALIDATE].began_ms
    assert events[ENSURE].ended_ms <= events[MANAGED_GROUP].began_ms
    stamps = [events[task].began_ms for task in (packages, *starts)]
    assert stamps == sorted(stamps)


@promise(section="12", unit=UNIT)
def test_failed_run_writes_events_only_for_work_that_it_began(start_validated: StartNode) -> None:
    """Open groups end at the failure; the event level is the same as in a successful run."""
    node = start_validated(
        "failed", config=MANAGED, gpu_scripts={"gpu0": GpuScript(is_inforom_corrupted=True)}
    )

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=87)
    events = events_of(evidence)
    assert sorted(events) == [ENSURE, VALIDATE]
    assert events[ENSURE].spans(events[VALIDATE])


@promise(section="12", unit=UNIT)
def test_second_run_adds_its_events_to_those_of_the_first(start_validated: StartNode) -> None:
    """A run never overwrites an existing event file."""
    node = start_validated("twice", gpu_scripts={"gpu0": GpuScript(is_inforom_corrupted=True)})
    first = node.evidence()
    node.provision("boot")

    evidence = node.evidence()

    before, both = first.event_files, evidence.matching(f"{EVENTS_FOLDER}/*")
    assert {path: both.get(path) for path in before} == before
    assert sorted(events_of(evidence)) == [ENSURE, VALIDATE]
    assert len(both) == 2 * len(before)


@promise(section="12", unit=UNIT)
def test_node_gets_ready_although_events_cannot_be_written(
    start_validated: StartNode,
) -> None:
    """A full disk must not prevent services from starting; the log cannot be written either."""
    folder = EVENTS_FOLDER.rpartition("/")[0]
    block = f"rm -rf {LOG} {folder}; mkdir -p {LOG}; touch {folder}"
    node = start_validated("no-events", before=[NO_SERVICES, shell(block)])

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.log_line(evidence, f"The event '{ENSURE}' cannot be written")
    expect.log_line(evidence, f"The log '{LOG}' cannot be written")
    assert evidence.event_files == {}


@promise(section="12", unit="suites/unit/provisioning/test_facts.py")
@pytest.mark.parametrize(
    ("before", "is_marked", "action", "reason"),
    [
        pytest.param("true", "true", "install-skip-build", "ok", id="of the wanted kind"),
        pytest.param(f"rm {RECORD_PATH}", "false", "install", "no_record", id="absent"),
    ],
)
def test_readiness_line_reports_whether_there_was_a_record(
    start_validated: StartNode,
    before: str,
    is_marked: str,
    action: str,
    reason: str,
) -> None:
    """The record is checked before anything is installed, together with the decision."""
    node = start_validated("marker", before=[NO_SERVICES, shell(before)])

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.decided(evidence, action, reason=reason)
    expect.prebake_line(evidence, event="decision", action=action, reason=reason)
    expect.prebake_line(
        evidence,
        event="managed_gpu",
        driver_type="cuda-lts",
        marker_present=is_marked,
        driver_kind_match=is_marked,
    )
    line = f"event=decision action={action} reason={reason}"
    assert line in (evidence.file(LOG) or ""), f"'{line}' was expected in '{LOG}'."


@pytest.mark.slow
@promise(section="6, 12", unit="suites/unit/provisioning/test_facts.py")
def test_readiness_line_reports_a_record_of_another_kind(start_validated: StartNode) -> None:
    """A GRID node with a CUDA bake removes the baked driver, builds its own, and logs a mismatch.

    The built driver and the package caches stay. No driver counts as the customer's on such a
    node.
    """
    cached = "/opt/dcgm-exporter/x"
    change = f"{TAG_AS_GRID}; {CUSTOMER}; mkdir -p {cached.rpartition('/')[0]}; echo x >{cached}"
    node = start_validated(
        "grid", config={"gpu_driver_type": "grid"}, before=[NO_SERVICES, shell(change)]
    )

    evidence = node.evidence(files=[cached])

    expect.provisioned(evidence)
    expect.decided(evidence, "teardown-install", reason="kind")
    expect.prebake_line(evidence, event="teardown", status="cleaned", gpu_node="true")
    events = [line.get("event") for line in evidence.prebake_lines]
    assert events.index("grid_cuda_prebake_teardown") < events.index("teardown")
    assert cached in evidence.paths, f"'{cached}' was expected to stay, but it is gone."
    expect.driver_installed(evidence)
    expect.gpu_bound(evidence, device="2330")
    expect.events_recorded(
        evidence, ENSURE, f"{ENSURE}.cleanUpGridNodeCudaPrebake", f"{ENSURE}.configGPUDrivers"
    )
    expect.prebake_line(
        evidence,
        event="grid_cuda_prebake_teardown",
        driver_type="grid",
        marker_kind="cuda",
        node_kind="grid",
        action="teardown",
    )
    expect.prebake_line(
        evidence,
        event="managed_gpu",
        driver_type="grid",
        marker_present="true",
        driver_kind_match="false",
    )


@promise(section="6", unit="suites/unit/provisioning/test_driver.py")
@pytest.mark.parametrize(
    ("kind", "is_counted"),
    [
        pytest.param("cuda", True, id="another kind"),
        pytest.param("grid", False, id="another version"),
    ],
)
def test_grid_node_logs_the_teardown_of_a_cuda_driver_but_not_of_another_grid_version(
    start_validated: StartNode, kind: str, *, is_counted: bool
) -> None:
    """A GRID driver of another version is also removed, but does not count as a CUDA bake."""
    node = start_validated(
        "grid-plan",
        config={"gpu_driver_type": "grid", "gpu_driver_version": "580.126.0"},
        before=[shell(f"sed -i s/^driver_kind=.*/driver_kind={kind}/ {RECORD_PATH}")],
        command="plan",
    )

    evidence = node.result()

    expect.provisioned(evidence)
    expect.decided(evidence, "teardown-install", reason="kind" if is_counted else "version")
    expect.log_line(evidence, "tear-down-driver")
    expect.log_line(evidence, "rm -rf /var/lib/dkms/nvidia")
    planned = "event=grid_cuda_prebake_teardown" in evidence.log
    assert planned == is_counted, (
        f"The line 'grid_cuda_prebake_teardown' was expected to be planned: {is_counted}; "
        f"but it was: {planned}."
    )
