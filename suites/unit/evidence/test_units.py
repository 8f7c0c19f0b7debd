"""Units from `systemctl show`, and systemd's queue of jobs; the output is from systemd 252."""

from __future__ import annotations

import pytest

from harness.errors import HarnessError
from harness.evidence.units import (
    SHOWN_UNITS,
    UNIT_JOBS,
    parse_shown_units,
    parse_unit_jobs,
    unit_commands,
)

EXPORTER = """\
ExecStart={ path=/usr/bin/dcgm-exporter ; argv[]=/usr/bin/dcgm-exporter -f /etc/c.csv --address :19400 \
; ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }
Id=nvidia-dcgm-exporter.service
Names=nvidia-dcgm-exporter.service dcgm.service
LoadState=loaded
ActiveState=activating
UnitFileState=enabled
InactiveExitTimestampMonotonic=92320066
ActiveEnterTimestampMonotonic=0
"""
ABSENT_UNIT = "dra-driver-nvidia-gpu.service"
ABSENT = f"""\
Id={ABSENT_UNIT}
LoadState=not-found
ActiveState=inactive
UnitFileState=
InactiveExitTimestampMonotonic=0
ActiveEnterTimestampMonotonic=0
"""


def test_line_separator_inside_a_unit_command_does_not_start_a_property() -> None:
    text = EXPORTER.replace("--address", "\u2028ActiveState=active\x85--address")
    unit, _ = parse_shown_units("\n".join([*text.split("\n")[1:-1], text.split("\n")[0]])).values()

    assert unit.active == "activating"


def test_each_shown_unit_is_listed_under_each_of_its_names() -> None:
    units = parse_shown_units(f"{EXPORTER}\n{ABSENT}")

    exporter, other, absent = units.values()
    assert list(units) == ["nvidia-dcgm-exporter.service", "dcgm.service", ABSENT_UNIT]
    assert other is exporter
    assert exporter.commands == ("/usr/bin/dcgm-exporter -f /etc/c.csv --address :19400",)
    assert (exporter.load, exporter.active, exporter.enablement) == (
        "loaded",
        "activating",
        "enabled",
    )
    assert (absent.load, absent.active, absent.enablement) == ("not-found", "inactive", "")
    assert absent.commands == ()
    assert (exporter.started_us, exporter.ready_us) == (92320066, None)


def test_each_command_of_a_unit_is_read() -> None:
    line = EXPORTER.splitlines()[0]

    unit, _ = parse_shown_units(f"{line}\n{EXPORTER}").values()

    assert len(unit.commands) == 2


def test_line_breaks_in_a_command_of_a_unit_are_preserved() -> None:
    """`systemctl show` prints arguments unchanged, including their line breaks."""
    for script in (
        "a\nb",
        "a\n\nb=1\n\n\nc",
        "\n  a ; exit\n",
        "set -e\nPATH=/sbin:$PATH\n\nGPU=/dev/nvidia0\nId=$GPU",
        "a ; ignore_errors=no\nb",
    ):
        text = f"{EXPORTER}\n{ABSENT}".replace("-f /etc/c.csv --address :19400 ", f"-f {script} ")

        units = parse_shown_units(text)

        assert units["dcgm.service"].commands == (
            f"/usr/bin/dcgm-exporter -f {script}".strip(),
        ), script
        assert units["dcgm.service"].active == "activating", script
        assert ABSENT_UNIT in units, script


def test_malformed_units_are_refused() -> None:
    for text in (
        EXPORTER.replace("LoadState=loaded\n", ""),
        f"{EXPORTER}{ABSENT}",
        EXPORTER.replace("=92320066", "=soon"),
        EXPORTER.replace("; argv[]=", "; "),
        EXPORTER.replace("; argv[]=", "argv[]=" * 40_000).replace("ignore_errors", ""),
        "Failed to connect to bus: No such file or directory\n",
    ):
        with pytest.raises(HarnessError, match="printed a unit in an unknown format"):
            parse_shown_units(text)


def test_kind_of_each_queued_job_is_read() -> None:
    text = (
        "  386 nvidia-dcgm.service start running\n390 nvidia-dcgm-exporter.service start waiting\n"
    )

    assert parse_unit_jobs(text) == {
        "nvidia-dcgm.service": "start",
        "nvidia-dcgm-exporter.service": "start",
    }
    assert parse_unit_jobs("") == {}
    assert parse_unit_jobs("No jobs running.\n") == {}


def test_malformed_queue_is_refused() -> None:
    with pytest.raises(HarnessError, match="unknown line: 'Failed to list jobs'"):
        parse_unit_jobs("Failed to list jobs\n")


def test_one_command_queries_all_units() -> None:
    commands = unit_commands("a.service", "b.service")
    stamps = ("InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic")
    properties = ("Id", "Names", "LoadState", "ActiveState", "UnitFileState", *stamps, "ExecStart")

    assert commands[SHOWN_UNITS] == [
        "systemctl",
        "show",
        f"--property={','.join(properties)}",
        "a.service",
        "b.service",
    ]
    assert commands[UNIT_JOBS] == ["systemctl", "list-jobs", "--no-legend", "--plain"]
