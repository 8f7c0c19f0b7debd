"""Which labels and severities Allure's results have."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from allure_commons import model2
from allure_commons.types import LabelType

from harness.errors import BadInputError
from harness.plugin.allure_report import AllureReport, _severities
from harness.plugin.verdicts import mark_broken
from harness.settings import MachineDriver, Settings

NODE = "suites/e2e/record/test_boot.py::TestBoot::test_x[a::b]"
DEFAULT = [
    (LabelType.PARENT_SUITE, "suites.e2e.record"),
    (LabelType.SUITE, "test_boot"),
    (LabelType.SUB_SUITE, "TestBoot"),
]


def labels(
    given: list[tuple[str, str]], facts: dict[str, str] | None = None, **severities: str
) -> list[tuple[str, str]]:
    config: Any = None
    known = {"suites/e2e/record": "critical", "suites/e2e": "minor", **severities}
    report = AllureReport(config, Settings(), Path("results"), known)
    return report._labels(given, NODE, facts or {})


def test_labels_that_allure_made_of_the_path_become_ours() -> None:
    found = dict(labels([("tag", "slow"), *DEFAULT]))

    assert found["tag"] == "slow"
    assert found[LabelType.PARENT_SUITE] != "suites.e2e.record"
    assert found[LabelType.SEVERITY] == "critical"


def test_labels_that_a_test_states_itself_stay() -> None:
    own = [(LabelType.PARENT_SUITE, "Mine"), *DEFAULT[1:], (LabelType.SEVERITY, "trivial")]

    assert labels(own, {"tag": "x", "image": "debian-12"}) == [
        *own,
        ("tag", "x"),
        ("image", "debian-12"),
    ]


def a_config(*lines: str) -> Any:
    return SimpleNamespace(getini=lambda _: list(lines), inipath=Path("pytest.ini"))


def test_severities_are_read_by_folder() -> None:
    assert _severities(a_config("suites/e2e/: critical", " a b:c.py :minor ")) == {
        "suites/e2e": "critical",
        "a b:c.py": "minor",
    }


@pytest.mark.parametrize("line", ["suites/e2e", "suites: worst", ": minor"])
def test_severity_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(BadInputError, match=r"pytest\.ini: key 'allure_severity'"):
        _severities(a_config(line))


def test_run_is_described_by_the_machines_of_all_workers_in_a_line_each(tmp_path: Path) -> None:
    config: Any = None
    settings = Settings(machine_driver=MachineDriver.LIBVIRT)
    report = AllureReport(config, settings, tmp_path, {})
    for facts in ({"image": ["b", "c"], "gpu": ["C:\\x\ny"]}, {"image": ["a", "b"]}, None):
        output = {} if facts is None else {"workeroutput": {"harness_allure_environment": facts}}
        report.pytest_testnodedown(SimpleNamespace(**output))

    report._describe_run()

    lines = (tmp_path / "environment.properties").read_text().splitlines()
    assert {"image=a, b, c", "gpu=C:\\\\x\\ny", "machine_driver=libvirt"} <= set(lines)


def test_only_another_vm_driver_makes_another_test_of_it() -> None:
    config: Any = None
    report = AllureReport(config, Settings(), Path("results"), {})
    item: Any = SimpleNamespace(config=SimpleNamespace(rootpath=Path("/root")))
    ids = []
    for driver in ("libvirt", "qemu", None):
        result = model2.TestResult(fullName="a.py::x", parameters=[])
        facts = {} if driver is None else {"machine_driver": driver, "kernel": f"6.1-{driver}"}
        report._set_parameters(result, item, facts)
        ids.append(result.historyId)

    assert ids[0] != ids[1] == ids[2]


def test_status_is_of_the_first_error_of_the_present_test() -> None:
    config: Any = None
    report = AllureReport(config, Settings(), Path("results"), {})
    found = []
    for phases in (["passed", "broken", "failed"], ["failed", "broken"], ["passed"]):
        item: Any = SimpleNamespace(nodeid="a.py::x")
        next(report.pytest_runtest_protocol(item))
        for phase in phases:
            made: Any = SimpleNamespace(failed=phase != "passed")
            if phase == "broken":
                mark_broken(made)
            hook = report.pytest_runtest_makereport()
            next(hook)
            with contextlib.suppress(StopIteration):
                hook.send(made)
        found.append(report._status)

    assert found == ["broken", "failed", None]
