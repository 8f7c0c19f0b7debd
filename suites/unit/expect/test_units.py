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


def test_unit_ready_before_refuses_a_unit_that_was_ready_after_the_other_unit_started(
    tmp_path: Path,
) -> None:
    seen = evidence(tmp_path, unit(PLUGIN, 100, 200), unit(KUBELET, 201, 300))
    expect.unit_ready_before(seen, PLUGIN, KUBELET)

    seen = evidence(tmp_path, unit(PLUGIN, 100, 200), unit(KUBELET, 200, 300))
    with pytest.raises(ExpectationError, match=r"'plugin\.service' was .* ready 0\.000 s after"):
        expect.unit_ready_before(seen, PLUGIN, KUBELET)


def test_start_order_of_units_without_a_timestamp_is_unknown(tmp_path: Path) -> None:
    for first, then in (
        (unit(PLUGIN, 100, 0, active="activating"), unit(KUBELET, 201, 300)),
        (unit(PLUGIN, 100, 200), unit(KUBELET, 0, 0, active="inactive")),
    ):
        with pytest.raises(HarnessError, match="systemd has no timestamp of when the unit"):
            expect.unit_ready_before(evidence(tmp_path, first, then), PLUGIN, KUBELET)


def test_unit_not_awaited_accepts_a_unit_that_was_ready_later_or_is_still_starting(
    tmp_path: Path,
) -> None:
    for dcgm in (
        unit(DCGM, 100, 301),
        unit(DCGM, 300, 301),
        unit(DCGM, 100, 0, active="activating"),
        # The unit was ready once, before the start that is still in progress.
        unit(DCGM, 100, 50, active="activating"),
    ):
        seen = evidence(tmp_path, dcgm, unit(KUBELET, 200, 300))
        expect.unit_not_awaited(seen, DCGM, by=KUBELET)


def test_unit_not_awaited_refuses_a_unit_that_was_ready_before_the_other_unit(
    tmp_path: Path,
) -> None:
    for ready in (150, 300):
        seen = evidence(tmp_path, unit(DCGM, 100, ready), unit(KUBELET, 200, 300))

        with pytest.raises(
            ExpectationError, match=r"'kubelet\.service' was expected to be ready before"
        ):
            expect.unit_not_awaited(seen, DCGM, by=KUBELET)


def test_unit_not_awaited_is_unknown_if_a_start_is_missing_or_too_late(
    tmp_path: Path,
) -> None:
    ready = unit(KUBELET, 200, 300)
    for dcgm, kubelet, words in (
        (unit(DCGM), ready, "'dcgm.service' started"),
        (unit(DCGM, 100, 0, active="failed"), ready, "'dcgm.service' became"),
        (unit(DCGM, 100, 400), unit(KUBELET, 200, 0), "'kubelet.service' became ready"),
        (unit(DCGM, 301, 400), ready, "started only after"),
        (unit(DCGM, 301, 0, active="activating"), ready, "started only after"),
    ):
        with pytest.raises(HarnessError, match=words):
            expect.unit_not_awaited(evidence(tmp_path, dcgm, kubelet), DCGM, by=KUBELET)


def test_state_of_a_unit_that_was_not_gathered_is_unknown(tmp_path: Path) -> None:
    seen = evidence(tmp_path, unit(PLUGIN, 100, 200))

    with pytest.raises(HarnessError, match=r"commands=unit_commands\('kubelet.service'\)"):
        expect.unit_ready_before(seen, PLUGIN, KUBELET)
    with pytest.raises(HarnessError, match=r"commands=unit_commands\('plugin.service'\)"):
        expect.unit_runs(EvidenceFolder(tmp_path / "empty").evidence, PLUGIN, "x")


def test_unit_job_refuses_a_job_of_another_kind(tmp_path: Path) -> None:
    seen = evidence(tmp_path, jobs="7 dcgm.service start running\n")

    expect.unit_job(seen, DCGM, "start")
    expect.unit_job(seen, KUBELET, None)
    for name, kind in ((DCGM, "restart"), (DCGM, None), (KUBELET, "start")):
        with pytest.raises(ExpectationError, match=r"jobs are: \{'dcgm.service': 'start'\}"):
            expect.unit_job(seen, name, kind)
    with pytest.raises(ExpectationError, match=r"systemd's jobs are: none\."):
        expect.unit_job(evidence(tmp_path), DCGM, "start")


def test_unit_enablement_refuses_another_enablement_state(tmp_path: Path) -> None:
    for state in ("masked", "enabled-runtime", ""):
        seen = evidence(tmp_path, unit(DCGM, enablement=state))

        expect.unit_enablement(seen, DCGM, state)
        with pytest.raises(ExpectationError, match=f"to be 'enabled', but is '{state}'"):
            expect.unit_enablement(seen, DCGM, "enabled")


def test_unit_with_another_command_or_several_commands_is_refused(tmp_path: Path) -> None:
    expect.unit_runs(evidence(tmp_path, unit(DCGM, commands=("a --x",))), DCGM, "a --x")

    for commands in (("a", "a --x"), ("a --xy",), ()):
        with pytest.raises(ExpectationError, match="expected to run 'a --x' and no other command"):
            expect.unit_runs(evidence(tmp_path, unit(DCGM, commands=commands)), DCGM, "a --x")


def test_unloaded_unit_is_inactive_only_if_its_unit_file_exists(tmp_path: Path) -> None:
    """The list has a unit that does not exist if another unit names it."""
    folder = EvidenceFolder(tmp_path)
    for listed in (
        f"{KUBELET} not-found inactive dead x\n",
        "other.service loaded active running O\n",
    ):
        folder.command("units", listed)
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


def test_unit_ready_before_compares_only_units_with_the_exact_names(tmp_path: Path) -> None:
    names = ("dcgm.service", "dcgm@1.service", "dcgm@11.service")
    shown = [unit(name, 100 * n + 100, 100 * n + 150) for n, name in enumerate(names)]
    seen = evidence(tmp_path, *reversed(shown))

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


def test_invalid_name_of_a_unit_is_refused(tmp_path: Path) -> None:
    """No unit has such a name, so an expectation of absence would always be met."""
    seen = evidence(tmp_path, unit(KUBELET, 100, 200))
    uses: tuple[Callable[[str], object], ...] = (
        lambda name: expect.unit_state(seen, name, active="inactive"),
        lambda name: expect.unit_state(seen, name, active="active"),
        lambda name: expect.unit_job(seen, name, None),
        lambda name: expect.unit_enablement(seen, name, ""),
        lambda name: expect.unit_ready_before(seen, name, KUBELET),
        lambda name: expect.unit_not_awaited(seen, KUBELET, by=name),
        lambda name: unit_commands(KUBELET, name),
    )

    for name in ("kubelet", "kubelet.", "kubelet.servce", "", "a b.service"):
        for use in uses:
            with pytest.raises(BadInputError, match=f"'{name}' is not the full name of a unit"):
                use(name)


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


def test_unit_state_prefers_the_list_of_units_to_systemctl_show(tmp_path: Path) -> None:
    """The output of `systemctl show` is used only for a unit that is not in the list."""
    folder = EvidenceFolder(tmp_path).command("units", f"{KUBELET} loaded activating x K\n")
    folder.command(SHOWN_UNITS, unit(KUBELET, active="inactive"))

    with pytest.raises(ExpectationError, match="to be 'inactive', but is 'activating'"):
        expect.unit_state(folder.evidence, KUBELET, active="inactive")


def test_state_of_a_unit_that_is_not_listed_comes_from_systemctl_show(tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path).command("units", "other.service loaded active running O\n")
    folder.command(SHOWN_UNITS, unit(KUBELET, active="failed"))

    with pytest.raises(
        ExpectationError, match="to be 'inactive', but is 'failed', and its load state is"
    ):
        expect.unit_state(folder.evidence, KUBELET, active="inactive")
