"""Expectations on units: each refuses a wrong node, and is unknown without a needed timestamp."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.evidence.units import SHOWN_UNITS, UNIT_JOBS, unit_commands
from suites.unit.evidence.folders import EvidenceFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.evidence import Evidence

PLUGIN, DCGM, KUBELET = "plugin.service", "dcgm.service", "kubelet.service"


def unit(
    name: str,
    started: int = 0,
    ready: int = 0,
    *,
    active: str = "active",
    enablement: str = "enabled",
    commands: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
) -> str:
    lines = [f"ExecStart={{ path=x ; argv[]={each} ; ignore_errors=no ; }}" for each in commands]
    return "\n".join(
        [
            *lines,
            *([f"Names={' '.join((name, *names))}"] if names else []),
            f"Id={name}\nLoadState=loaded\nActiveState={active}\nUnitFileState={enablement}",
            f"InactiveExitTimestampMonotonic={started}\nActiveEnterTimestampMonotonic={ready}\n",
        ]
    )


def evidence(folder: Path, *units: str, jobs: str = "") -> Evidence:
    return (
        EvidenceFolder(folder)
        .command(SHOWN_UNITS, "\n".join(units))
        .command(UNIT_JOBS, jobs)
        .evidence
    )


def test_unit_that_was_ready_before_the_other_unit_started_is_accepted(
    tmp_path: Path,
) -> None:
    seen = evidence(tmp_path, unit(PLUGIN, 100, 200), unit(KUBELET, 201, 300))

    expect.unit_ready_before(seen, PLUGIN, KUBELET)
    with pytest.raises(ExpectationError, match=r"but it became ready 0\.000 s after"):
        expect.unit_ready_before(seen, KUBELET, PLUGIN)


@pytest.mark.parametrize("started", [200, 150])
def test_unit_that_was_ready_after_the_other_unit_started_is_refused(
    tmp_path: Path, started: int
) -> None:
    seen = evidence(tmp_path, unit(PLUGIN, 100, 200), unit(KUBELET, started, 300))

    with pytest.raises(
        ExpectationError, match=r"'plugin\.service' was expected to be ready before"
    ):
        expect.unit_ready_before(seen, PLUGIN, KUBELET)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (unit(PLUGIN, 100, 0, active="activating"), unit(KUBELET, 201, 300)),
        (unit(PLUGIN, 100, 200), unit(KUBELET, 0, 0, active="inactive")),
    ],
)
def test_start_order_of_units_without_a_timestamp_is_unknown(
    tmp_path: Path, first: str, then: str
) -> None:
    with pytest.raises(HarnessError, match="systemd has no timestamp of when the unit"):
        expect.unit_ready_before(evidence(tmp_path, first, then), PLUGIN, KUBELET)


@pytest.mark.parametrize(
    "dcgm",
    [
        unit(DCGM, 100, 301),
        unit(DCGM, 100, 0, active="activating"),
        # It was ready once, before the start that goes on.
        unit(DCGM, 100, 50, active="activating"),
    ],
)
def test_unit_that_is_still_starting_was_not_awaited(tmp_path: Path, dcgm: str) -> None:
    expect.unit_not_awaited(evidence(tmp_path, dcgm, unit(KUBELET, 200, 300)), DCGM, by=KUBELET)


@pytest.mark.parametrize("ready", [150, 300])
def test_expectation_unit_not_awaited_refuses_a_unit_that_was_ready_before_the_other_unit(
    tmp_path: Path, ready: int
) -> None:
    seen = evidence(tmp_path, unit(DCGM, 100, ready), unit(KUBELET, 200, 300))

    with pytest.raises(
        ExpectationError, match=r"'kubelet\.service' was expected to be ready before"
    ):
        expect.unit_not_awaited(seen, DCGM, by=KUBELET)


@pytest.mark.parametrize(
    ("dcgm", "kubelet", "words"),
    [
        (unit(DCGM), unit(KUBELET, 200, 300), "'dcgm.service' started"),
        (unit(DCGM, 100, 0, active="failed"), unit(KUBELET, 200, 300), "'dcgm.service' became"),
        (unit(DCGM, 100, 400), unit(KUBELET, 200, 0), "'kubelet.service' became ready"),
        (unit(DCGM, 301, 400), unit(KUBELET, 200, 300), "started only after"),
    ],
)
def test_verdict_on_an_unawaited_unit_is_unknown_if_a_start_is_missing_or_too_late(
    tmp_path: Path, dcgm: str, kubelet: str, words: str
) -> None:
    with pytest.raises(HarnessError, match=words):
        expect.unit_not_awaited(evidence(tmp_path, dcgm, kubelet), DCGM, by=KUBELET)


def test_state_of_a_unit_that_was_not_gathered_is_unknown(tmp_path: Path) -> None:
    seen = evidence(tmp_path, unit(PLUGIN, 100, 200))

    with pytest.raises(HarnessError, match=r"commands=unit_commands\('kubelet.service'\)"):
        expect.unit_ready_before(seen, PLUGIN, KUBELET)
    with pytest.raises(HarnessError, match=r"commands=unit_commands\('plugin.service'\)"):
        expect.unit_runs(EvidenceFolder(tmp_path / "empty").evidence, PLUGIN, "x")


def test_job_of_another_kind_than_the_expected_kind_is_refused(tmp_path: Path) -> None:
    seen = evidence(tmp_path, jobs="7 dcgm.service start running\n")

    expect.unit_job(seen, DCGM, "start")
    expect.unit_job(seen, KUBELET, None)
    for name, kind in ((DCGM, "restart"), (DCGM, None), (KUBELET, "start")):
        with pytest.raises(ExpectationError, match=r"jobs are: \{'dcgm.service': 'start'\}"):
            expect.unit_job(seen, name, kind)


def test_unit_file_in_another_enablement_state_than_expected_is_refused(tmp_path: Path) -> None:
    seen = evidence(tmp_path, unit(DCGM, enablement="masked"))

    expect.unit_enablement(seen, DCGM, "masked")
    with pytest.raises(ExpectationError, match="expected to be 'enabled', but is 'masked'"):
        expect.unit_enablement(seen, DCGM, "enabled")


@pytest.mark.parametrize("commands", [("a", "a --x"), ("a --xy",), ()])
def test_unit_with_another_command_or_several_commands_is_refused(
    tmp_path: Path, commands: tuple[str, ...]
) -> None:
    with pytest.raises(ExpectationError, match="expected to run 'a --x' alone"):
        expect.unit_runs(evidence(tmp_path, unit(DCGM, commands=commands)), DCGM, "a --x")


def test_unit_with_the_expected_single_command_is_accepted(tmp_path: Path) -> None:
    expect.unit_runs(evidence(tmp_path, unit(DCGM, commands=("a --x",))), DCGM, "a --x")


@pytest.mark.parametrize(
    "listed", ["other.service loaded active running O\n", f"{KUBELET} not-found inactive dead x\n"]
)
def test_unloaded_unit_is_inactive_only_if_its_unit_file_exists(
    tmp_path: Path, listed: str
) -> None:
    """The list has a unit that does not exist if another unit names it."""
    folder = EvidenceFolder(tmp_path).command("units", listed)

    with pytest.raises(HarnessError, match=r"commands=unit_commands\('kubelet.service'\)"):
        expect.unit_state(folder.evidence, KUBELET, active="inactive")
    folder.command(SHOWN_UNITS, unit(KUBELET, active="inactive"))
    expect.unit_state(folder.evidence, KUBELET, active="inactive")
    with pytest.raises(
        ExpectationError, match="but is 'inactive', and its load state is 'loaded'"
    ):
        expect.unit_state(folder.evidence, KUBELET, active="active")
    folder.command(SHOWN_UNITS, unit(KUBELET, active="inactive").replace("=loaded", "=not-found"))
    with pytest.raises(ExpectationError, match="its load state is 'not-found'"):
        expect.unit_state(folder.evidence, KUBELET, active="inactive")


@pytest.mark.parametrize("started", [299, 300])
def test_unit_was_not_awaited_if_it_was_ready_later_than_the_other_unit(
    tmp_path: Path, started: int
) -> None:
    seen = evidence(tmp_path, unit(DCGM, started, 301), unit(KUBELET, 200, 300))

    expect.unit_not_awaited(seen, DCGM, by=KUBELET)


def test_verdict_on_an_unawaited_unit_is_unknown_if_it_restarted_after_the_other_was_ready(
    tmp_path: Path,
) -> None:
    again = unit(DCGM, 301, 0, active="activating")

    with pytest.raises(HarnessError, match="started only after"):
        expect.unit_not_awaited(
            evidence(tmp_path, again, unit(KUBELET, 200, 300)), DCGM, by=KUBELET
        )


@pytest.mark.parametrize("order", [1, -1])
def test_only_the_timestamps_of_the_given_units_are_compared(tmp_path: Path, order: int) -> None:
    names = ("dcgm.service", "dcgm@1.service", "dcgm@11.service")
    shown = [unit(name, 100 * n + 100, 100 * n + 150) for n, name in enumerate(names)]
    seen = evidence(tmp_path, *shown[::order])

    for first, then in itertools.pairwise(names):
        expect.unit_ready_before(seen, first, then)
        with pytest.raises(ExpectationError, match="was expected to be ready before"):
            expect.unit_ready_before(seen, then, first)


def test_state_of_a_unit_is_found_by_an_alias_of_the_unit(tmp_path: Path) -> None:
    """Systemd lists only the main name: `ssh.service`, whose alias is `sshd.service`."""
    folder = EvidenceFolder(tmp_path)
    folder.command("units", "ssh.service loaded active running S\n")
    folder.command(SHOWN_UNITS, unit("ssh.service", 1, 2, names=("sshd.service",)))

    for name in ("ssh.service", "sshd.service"):
        expect.unit_state(folder.evidence, name, active="active")
        expect.unit_enablement(folder.evidence, name, "enabled")
    with pytest.raises(ExpectationError, match="but is 'active', and its load state is 'loaded'"):
        expect.unit_state(folder.evidence, "sshd.service", active="failed")


@pytest.mark.parametrize(
    "expectation",
    [
        lambda seen, name: expect.unit_state(seen, name, active="inactive"),
        lambda seen, name: expect.unit_state(seen, name, active="active"),
        lambda seen, name: expect.unit_job(seen, name, None),
        lambda seen, name: expect.unit_enablement(seen, name, ""),
        lambda seen, name: expect.unit_ready_before(seen, name, KUBELET),
        lambda seen, name: expect.unit_not_awaited(seen, KUBELET, by=name),
        lambda _, name: unit_commands(KUBELET, name),
    ],
    ids=["inactive", "active", "job", "enablement", "order", "awaited", "gathering"],
)
def test_invalid_name_of_a_unit_is_refused(
    tmp_path: Path, expectation: Callable[[Evidence, str], object]
) -> None:
    """No unit has such a name, so an expectation of absence would always be met."""
    seen = evidence(tmp_path, unit(KUBELET, 100, 200))

    for name in ("kubelet", "kubelet.", "kubelet.servce", "", "a b.service"):
        with pytest.raises(BadInputError, match=f"'{name}' is not the full name of a unit"):
            expectation(seen, name)


def test_jobs_of_other_units_are_ignored(tmp_path: Path) -> None:
    jobs = "7 dcgm@1.service start waiting\n8 nvidia-dcgm.service stop running\n"
    seen = evidence(tmp_path, jobs=jobs)

    expect.unit_job(seen, "dcgm@1.service", "start")
    expect.unit_job(seen, "nvidia-dcgm.service", "stop")
    for name in ("dcgm.service", "dcgm@.service", "dcgm@11.service"):
        expect.unit_job(seen, name, None)
        for kind in ("start", "stop"):
            with pytest.raises(ExpectationError, match=f"a job '{kind}', but systemd's jobs are"):
                expect.unit_job(seen, name, kind)


def test_error_says_that_the_job_queue_is_empty(tmp_path: Path) -> None:
    with pytest.raises(ExpectationError, match=r"systemd's jobs are: none\."):
        expect.unit_job(evidence(tmp_path), DCGM, "start")


@pytest.mark.parametrize("seen", ["enabled-runtime", ""])
def test_similar_enablement_state_is_refused(tmp_path: Path, seen: str) -> None:
    with pytest.raises(ExpectationError, match=f"to be 'enabled', but is '{seen}'"):
        expect.unit_enablement(evidence(tmp_path, unit(DCGM, enablement=seen)), DCGM, "enabled")


@pytest.mark.parametrize("listed", ["active", "activating"])
def test_state_of_a_listed_unit_comes_from_the_list(tmp_path: Path, listed: str) -> None:
    """The output of `systemctl show` is used only for a unit that is not in the list."""
    folder = EvidenceFolder(tmp_path).command("units", f"{KUBELET} loaded {listed} x K\n")
    folder.command(SHOWN_UNITS, unit(KUBELET, active="inactive"))

    with pytest.raises(ExpectationError, match=f"to be 'inactive', but is '{listed}'"):
        expect.unit_state(folder.evidence, KUBELET, active="inactive")


@pytest.mark.parametrize("active", ["failed", "active"])
def test_state_of_a_unit_that_is_not_listed_comes_from_systemctl_show(
    tmp_path: Path, active: str
) -> None:
    folder = EvidenceFolder(tmp_path).command("units", "other.service loaded active running O\n")
    folder.command(SHOWN_UNITS, unit(KUBELET, active=active))

    with pytest.raises(
        ExpectationError, match=f"to be 'inactive', but is '{active}', and its load state is"
    ):
        expect.unit_state(folder.evidence, KUBELET, active="inactive")
