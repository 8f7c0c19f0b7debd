"""The timeline that is read from the evidence of a machine, and its gaps if evidence is missing."""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.evidence.gaps import NOT_COLLECTED
from harness.evidence.history import HISTORY, PACKED_JOURNAL
from harness.evidence.requested import write_request
from harness.provisioner import Provisioner
from harness.provisioner.declaration import write_declaration
from harness.provisioner.gpu_node import EVENTS_FOLDER
from harness.provisioner.outcome import EventFiles, EventFormat, OutcomeDeclaration
from harness.timeline import Lane, SpanState
from harness.timeline.reading import read_timeline
from suites.unit.evidence.folders import EvidenceFolder
from suites.unit.timeline.folders import (
    BOOTED_AT_S,
    EARLIER_BOOT,
    HistoryFolder,
    a_node_that_built,
    a_unit,
    an_entry,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.timeline import Span, Timeline

BUILD = "nvidia 580.126.09, kernel 6.1.0-56-cloud-amd64"


def by_name(timeline: Timeline) -> dict[str, Span]:
    return {span.name: span for span in timeline.spans}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Return the timeline of complete evidence."""
    return read_timeline(a_node_that_built(tmp_path_factory.mktemp("node")).write())


def test_units_and_steps_and_builds_and_containers_share_one_axis(whole: Timeline) -> None:
    """Steps and builds have wall-clock times; units have times of the monotonic clock."""
    found = by_name(whole)

    assert (found["containerd.service"].start_s, found["containerd.service"].end_s) == (72, 88)
    assert found["build-driver"].start_s == pytest.approx(146.99)
    assert found["build-driver"].end_s == pytest.approx(266.453)
    assert (found[BUILD].start_s, found[BUILD].end_s) == (164, 250)
    assert found["gpuprebuild"].start_s == pytest.approx(150)
    assert found["gpuprebuild"].end_s == pytest.approx(265.9)
    assert {span.lane for span in found.values()} == set(Lane) - {Lane.CONSOLE}


def test_complete_evidence_has_no_gap(whole: Timeline) -> None:
    assert whole.gaps == ()
    assert whole.end_s == 281.0


def test_unfinished_dkms_build_is_reported_as_a_gap(tmp_path: Path) -> None:
    node = a_node_that_built(tmp_path)
    folder = node.write()
    (log, _), *_ = node.dkms.values()
    EvidenceFolder(folder / HISTORY).file("/var/lib/dkms/nvidia/1.0/build/make.log", log)

    assert [gap.what for gap in read_timeline(folder).gaps] == ["end of DKMS nvidia 1.0"]


def test_unit_waited_for_the_predecessor_that_was_ready_last(whole: Timeline) -> None:
    """Until 71 s, the unit waited for other units too."""
    span = by_name(whole)["cloud-config.service"]

    assert span.blockers == ("containerd.service",)
    assert (span.blocked_from_s, span.blocked_s) == (71, 20)


def test_critical_path_has_the_units_before_the_goal_and_the_steps_of_the_provisioner(
    whole: Timeline,
) -> None:
    assert [span.name for span in whole.critical_path] == [
        "cloud-init.service",
        "basic.target",
        "containerd.service",
        "cloud-config.service",
        "cloud-final.service",
        "fetch-driver-image",
        "install-build-tools",
        "build-driver",
        "gpuprebuild",
        BUILD,
        "cloud-init.target",
    ]


@pytest.mark.parametrize(
    ("name", "at_s", "last"),
    [
        ("graphical.target", 275.0, "graphical.target"),
        ("multi-user.target", 99.0, "cloud-init.target"),
    ],
)
def test_critical_path_ends_at_the_goal_that_was_ready_last(
    tmp_path: Path, name: str, at_s: float, last: str
) -> None:
    node = a_node_that_built(tmp_path)
    node.units.append(a_unit(name, at_s, at_s))

    assert read_timeline(node.write()).critical_path[-1].name == last


def test_each_panic_and_the_end_of_a_machine_are_marked(tmp_path: Path) -> None:
    """Events of the machine from which the checkpoint was made are not marked."""
    folder = a_node_that_built(tmp_path).write()
    events = [("SHUTDOWN", -50), ("GUEST_PANICKED", 50), ("SHUTDOWN", 60), ("STOP", 70)]
    (folder / "host/qmp-events.json").write_text(
        json.dumps([{"name": name, "at_s": BOOTED_AT_S + at_s} for name, at_s in events])
    )

    moments = read_timeline(folder).moments

    assert [(each.at_s, each.words) for each in moments] == [(50, "panic"), (60, "power off")]


def test_timeline_extends_to_a_shutdown_after_the_last_journal_entry(
    tmp_path: Path,
) -> None:
    folder = a_node_that_built(tmp_path).write()
    (folder / "host/qmp-events.json").write_text(
        json.dumps([{"name": "SHUTDOWN", "at_s": BOOTED_AT_S + 900}])
    )

    assert read_timeline(folder).end_s == 900


def test_timeline_of_a_hanging_machine_shows_running_and_waiting_units(tmp_path: Path) -> None:
    node = a_node_that_built(tmp_path, hangs=True)
    node.evidence.file("/var/lib/cloud/instance/provisioner-runs/1/command", "bake\n")
    node.entries.insert(1, an_entry(134.0, "-- run 1 of the provisioner: bake"))

    found = by_name(read_timeline(node.write()))

    assert found["cloud-final.service"].state is SpanState.RUNNING
    assert found["cloud-init.target"].state is SpanState.WAITING
    assert found["cloud-init.target"].blockers == ("cloud-final.service",)
    assert found["gpuprebuild"].state is SpanState.RUNNING
    assert found["provisioner, step not ended"].state is SpanState.RUNNING
    assert all(
        found[name].is_critical
        for name in ("cloud-init.target", "cloud-final.service", "provisioner, step not ended")
    )


def test_steps_come_from_the_events_if_no_outcome_is_written_yet(tmp_path: Path) -> None:
    node = a_node_that_built(tmp_path, hangs=True)
    event = {
        "TaskName": "AKS.CSE.ensureGPUDrivers",
        "Timestamp": "2026-11-23 05:52:23.051",
        "OperationId": "2026-11-23 05:52:25.242",
    }
    node.evidence.file(f"{EVENTS_FOLDER}/1795413143051.json", json.dumps(event))

    span = by_name(read_timeline(node.write()))["AKS.CSE.ensureGPUDrivers"]

    assert span.start_s == pytest.approx(143.051)
    assert span.duration_s == pytest.approx(2.191)


EVENTS = "/var/log/own/events"


def declare_events(folder: Path, declared: EventFiles) -> None:
    outcome = OutcomeDeclaration(events=declared)
    write_declaration(Provisioner(name="own", run=["/opt/own"], outcome=outcome), folder)
    write_request(folder, commands={}, files=[f"{EVENTS}/*"], paths=[])


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        pytest.param(
            EventFiles(
                path=f"{EVENTS}/*",
                name="/step",
                format=EventFormat.JSON_LINES,
                started="/from",
                ended="/to",
            ),
            json.dumps({"step": "driver", "from": BOOTED_AT_S + 143, "to": BOOTED_AT_S + 145}),
            id="declared",
        ),
        pytest.param(
            EventFiles(path=f"{EVENTS}/*", name="/step", format=EventFormat.JSON_LINES),
            json.dumps(
                {
                    "step": "driver",
                    "Timestamp": "2026-11-23 05:52:23.000",
                    "OperationId": "2026-11-23 05:52:25.000",
                }
            ),
            id="as Azure's agent has them, in lines",
        ),
    ],
)
def test_vendor_events_with_begin_and_end_are_steps(
    tmp_path: Path, declared: EventFiles, text: str
) -> None:
    node = a_node_that_built(tmp_path)
    node.evidence.file(f"{EVENTS}/1", f"{text}\n")
    folder = node.write()
    declare_events(folder, declared)

    timeline = read_timeline(folder)

    (span,) = (span for span in timeline.spans if span.lane is Lane.STEPS)
    assert span.name == "driver"
    assert span.start_s == pytest.approx(143.0)
    assert span.duration_s == pytest.approx(2.0)
    assert span.is_critical


def test_events_without_times_are_not_shown_as_steps(tmp_path: Path) -> None:
    node = a_node_that_built(tmp_path)
    node.evidence.file(f"{EVENTS}/1", '{"step": "driver"}')
    folder = node.write()
    declare_events(folder, EventFiles(path=f"{EVENTS}/*", name="/step"))

    timeline = read_timeline(folder)

    assert [span for span in timeline.spans if span.lane is Lane.STEPS] == []
    assert timeline.gaps == ()


def test_event_with_an_invalid_time_is_reported_as_a_gap(tmp_path: Path) -> None:
    node = a_node_that_built(tmp_path)
    node.evidence.file(f"{EVENTS}/1", '{"step": "driver", "from": "soon", "to": 1}')
    folder = node.write()
    declare_events(
        folder, EventFiles(path=f"{EVENTS}/*", name="/step", started="/from", ended="/to")
    )

    assert [gap.what for gap in read_timeline(folder).gaps] == ["provisioning steps"]


def continued(node: HistoryFolder, at_s: float) -> Timeline:
    """Read the timeline of a machine whose processors began to run at the given time."""
    folder = node.write()
    events = [{"name": "RESUME", "at_s": BOOTED_AT_S + at_s}, {"name": "RESUME", "at_s": 9e9}]
    (folder / "host/qmp-events.json").write_text(json.dumps(events))
    return read_timeline(folder)


def test_units_before_the_checkpoint_are_not_on_the_critical_path(tmp_path: Path) -> None:
    timeline = continued(a_node_that_built(tmp_path), 130.0)

    names = [span.name for span in timeline.critical_path]
    assert "containerd.service" not in names
    assert {"cloud-final.service", "build-driver", BUILD} <= set(names)
    (moment,) = (one for one in timeline.moments if one.words == "continued from a checkpoint")
    assert moment.at_s == pytest.approx(130.0)


def test_steps_are_the_critical_path_if_all_units_belong_to_the_checkpoint(tmp_path: Path) -> None:
    node = a_node_that_built(tmp_path)
    node.units[:] = [a_unit("cloud-init.target", 20.0, 21.0, after="")]

    timeline = continued(node, 100.0)

    assert "cloud-init.target" not in [span.name for span in timeline.critical_path]
    assert "build-driver" in [span.name for span in timeline.critical_path]


def test_continuation_from_a_checkpoint_is_within_the_timeline_despite_a_wrong_clock(
    tmp_path: Path,
) -> None:
    """All journal entries come from the checkpoint, which was made long before."""
    timeline = continued(a_node_that_built(tmp_path), 5000.0)

    (moment,) = (one for one in timeline.moments if one.words == "continued from a checkpoint")
    assert moment.at_s == timeline.end_s == 281.0
    assert timeline.critical_path == ()


def test_machine_that_booted_is_not_marked_as_continued_from_a_checkpoint(tmp_path: Path) -> None:
    """QEMU also sends RESUME for a machine that boots."""
    timeline = continued(a_node_that_built(tmp_path), 1.0)

    assert "containerd.service" in [span.name for span in timeline.critical_path]
    assert not [one for one in timeline.moments if "checkpoint" in one.words]


def test_dkms_build_before_the_boot_is_left_out(tmp_path: Path) -> None:
    node = a_node_that_built(tmp_path)
    path = next(iter(node.dkms))
    node.dkms[path] = (
        "DKMS make.log\nSun Nov 22 05:52:44 UTC 2026\n",
        BOOTED_AT_S - 86000.0,
    )

    assert Lane.DKMS not in {span.lane for span in read_timeline(node.write()).spans}


@pytest.mark.parametrize(
    ("wall_s", "second_boot_s"),
    [(110.0, 109), (110.0 - 3600, 99), (101.0, 100)],
    ids=["wall clock", "clock that lost an hour", "boot without a pause"],
)
def test_timeline_joins_the_boots_before_and_after_a_reboot(
    tmp_path: Path, wall_s: float, second_boot_s: float
) -> None:
    """The wall clock determines the time between the last entry of a boot and the next boot's first entry.

    A boot never begins before the end of the previous boot, even if the clock says so.
    """
    units = [
        a_unit("early.service", 13.0, 19.0),
        a_unit("second.service", 20.0, 25.0, after="early.service"),
    ]
    node = HistoryFolder(tmp_path, units=units, uptime_s=30.0)
    starting, started = "7d4958e842da4a758f6c1cdc7b36dcc5", "39f53479d3a045ac8e11786248231fbf"
    failed = "be02cf6855d2428ba40df7e9d022f03d"
    later = {"boot": "c" * 32}
    node.entries = [
        an_entry(1.0, "of the image", boot="0" * 32),
        an_entry(5.0, "Starting", boot=EARLIER_BOOT, UNIT="first.service", MESSAGE_ID=starting),
        an_entry(9.0, "Started", boot=EARLIER_BOOT, UNIT="first.service", MESSAGE_ID=started),
        an_entry(10.0, "Starting", boot=EARLIER_BOOT, UNIT="open.service", MESSAGE_ID=starting),
        an_entry(11.0, "Starting", boot=EARLIER_BOOT, UNIT="bad.service", MESSAGE_ID=starting),
        an_entry(12.0, "Failed", boot=EARLIER_BOOT, UNIT="bad.service", MESSAGE_ID=failed),
        an_entry(100.0, "Rebooting", boot=EARLIER_BOOT),
        an_entry(1.0, "Linux", wall_s=BOOTED_AT_S + wall_s, **later),
    ]
    node.host_events("RESET")

    timeline = read_timeline(node.write())

    found = by_name(timeline)
    assert [
        (found[name].start_s, found[name].end_s, found[name].state)
        for name in ("first.service", "open.service", "bad.service")
    ] == [(5, 9, SpanState.DONE), (10, 100, SpanState.RUNNING), (11, 12, SpanState.FAILED)]
    assert (found["second.service"].start_s, found["second.service"].end_s) == (
        second_boot_s + 20,
        second_boot_s + 25,
    )
    # systemd itself began after 12 s.
    assert found["second.service"].blocked_from_s == second_boot_s + 12
    assert [(moment.at_s, moment.words) for moment in timeline.moments] == [
        (second_boot_s, "reboot")
    ]


@pytest.mark.parametrize(("ahead_s", "words"), [(-259200, "+3.0 d"), (20, "-20 s")])
def test_clock_change_is_marked_and_steps_keep_their_positions(
    tmp_path: Path, ahead_s: int, words: str
) -> None:
    """A machine that continues from a checkpoint gets the time of the host."""
    node = a_node_that_built(tmp_path)
    node.entries = [
        an_entry(12.5, "booted", wall_s=BOOTED_AT_S + ahead_s + 12.5),
        an_entry(100.0, "continued"),
        an_entry(280.0, "ready"),
    ]

    timeline = read_timeline(node.write())

    assert [(m.at_s, m.words) for m in timeline.moments] == [(100, f"clock set by {words}")]
    assert by_name(timeline)["build-driver"].start_s == pytest.approx(146.99)


def test_evidence_without_a_history_has_gaps(tmp_path: Path) -> None:
    folder = a_node_that_built(tmp_path).write()
    shutil.rmtree(folder / HISTORY)
    (folder / HISTORY).mkdir()
    (folder / HISTORY / "not-collected.txt").write_text("The agent said nothing in time. More.\n")

    timeline = read_timeline(folder)

    assert {gap.what for gap in timeline.gaps} >= {"journal", "who waits for whom"}
    assert "The agent said nothing in time." in timeline.gaps[0].reason


def test_timeline_of_an_unreadable_machine_shows_its_console(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    lines = [
        {"version": 2, "width": 80, "height": 24, "timestamp": BOOTED_AT_S},
        [1.0, "o", "Linux version 6.1\r\n"],
        [3.0, "o", "Kernel panic - not syncing\r\n"],
        [7.0, "o", "\x1b[0m"],
        [40.0, "o", "Rebooting\r\n"],
    ]
    (host / "serial.cast").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    timeline = read_timeline(tmp_path)

    assert [(span.name, span.start_s, span.end_s) for span in timeline.spans] == [
        ("Kernel panic - not syncing", 1.0, 7.0),
        ("Rebooting", 40.0, 40.0),
    ]
    assert timeline.gaps


def test_folder_without_evidence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="not the evidence of a machine"):
        read_timeline(tmp_path)


def steps_of(node: HistoryFolder, *changes: Mapping[str, object]) -> Timeline:
    """Return the timeline of a node whose provisioner reports a step with each of these changes."""
    step = {"name": "build", "status": "done", "started": "2026-11-23T05:52:23Z", "duration_s": 2}
    node.evidence.outcome(steps=[{**step, **changed} for changed in changes])
    return read_timeline(node.write())


def test_names_from_a_guest_cannot_control_a_terminal(tmp_path: Path) -> None:
    shown = {"\x1b[31mred\x00\ud800": r"\x1b[31mred\x00\ud800", "  ": "(no name)"}

    timeline = steps_of(a_node_that_built(tmp_path), *({"name": name} for name in shown))

    assert set(shown.values()) <= set(by_name(timeline))


def test_title_and_gaps_cannot_control_a_terminal(tmp_path: Path) -> None:
    folder = a_node_that_built(tmp_path).write()
    shutil.rmtree(folder / HISTORY)
    (folder / NOT_COLLECTED).write_text("\x1b[2J is gone.\n")

    timeline = read_timeline(folder, title="\x1b[31mnode")

    assert timeline.title == r"\x1b[31mnode"
    assert any(r"\x1b[2J is gone." in gap.reason for gap in timeline.gaps)
    assert all(gap.reason.isprintable() for gap in timeline.gaps)


def test_step_with_an_invalid_time_is_a_gap(tmp_path: Path) -> None:
    node = a_node_that_built(tmp_path)
    for changed in ({"duration_s": math.nan}, {"started": "inf"}):
        timeline = steps_of(node, changed)
        assert [gap.what for gap in timeline.gaps] == ["provisioning steps"]


def test_steps_are_shown_with_their_state_except_skipped_steps(tmp_path: Path) -> None:
    statuses = ("done", "failed", "running", "skipped")

    timeline = steps_of(
        a_node_that_built(tmp_path), *({"name": each, "status": each} for each in statuses)
    )

    states = {name: span.state for name, span in by_name(timeline).items() if name in statuses}
    assert states == {
        "done": SpanState.DONE,
        "failed": SpanState.FAILED,
        "running": SpanState.RUNNING,
    }


def test_negative_duration_of_a_step_is_shown_as_0(tmp_path: Path) -> None:
    timeline = steps_of(a_node_that_built(tmp_path), {"duration_s": -50})

    assert by_name(timeline)["build"].duration_s == 0


def test_malformed_host_events_are_a_gap(tmp_path: Path) -> None:
    folder = a_node_that_built(tmp_path).write()
    for at in ('"x"', "null"):
        (folder / "host/qmp-events.json").write_text(f'[{{"name": "SHUTDOWN", "at_s": {at}}}]')
        assert [gap.what for gap in read_timeline(folder).gaps] == ["panics and power off"]


def test_beginning_of_a_truncated_journal_is_shown(tmp_path: Path) -> None:
    folder = a_node_that_built(tmp_path).write()
    packed = folder / HISTORY / PACKED_JOURNAL
    packed.write_bytes(packed.read_bytes()[:-20])

    timeline = read_timeline(folder)

    assert by_name(timeline)["gpuprebuild"].start_s == pytest.approx(150)
    assert [(gap.what, "is truncated" in gap.reason) for gap in timeline.gaps] == [
        ("journal", True)
    ]


def test_damaged_journal_is_a_gap_and_all_units_are_within_the_timeline(tmp_path: Path) -> None:
    folder = a_node_that_built(tmp_path).write()
    for content in (b"no gzip", b"\x1f\x8bno", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\xff"):
        (folder / HISTORY / PACKED_JOURNAL).write_bytes(content)

        timeline = read_timeline(folder)

        assert timeline.end_s == by_name(timeline)["cloud-init.target"].end_s
        assert timeline.gaps[0].what == "journal"


def test_uptime_that_is_malformed_or_too_early_is_ignored(tmp_path: Path) -> None:
    folder = a_node_that_built(tmp_path).write()
    for uptime in ("inf", "-5", "1e400", "12.0"):
        (folder / HISTORY / "files/proc/uptime").write_text(f"{uptime} 1.0\n")
        assert read_timeline(folder).end_s == 280.0


def test_invalid_timestamp_is_ignored(tmp_path: Path) -> None:
    node = a_node_that_built(tmp_path)
    node.entries.append(
        an_entry(1.0, "x").replace(b"TIMESTAMP=1000000", b"TIMESTAMP=" + b"9" * 400)
    )

    assert read_timeline(node.write()).end_s == 281.0
