"""Labels, severities, history ids and statuses of Allure's results, and the writer of the files."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import allure_commons
import pytest
from allure_commons import model2
from allure_commons.logger import AllureFileLogger
from allure_commons.types import LabelType

from harness.errors import BadInputError
from harness.plugin.allure_report import AllureReport, _severities
from harness.plugin.verdicts import mark_broken
from harness.settings import MachineDriver, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def test_default_suite_labels_of_allure_are_replaced() -> None:
    found = dict(labels([("tag", "slow"), *DEFAULT]))

    assert found["tag"] == "slow"
    assert found[LabelType.PARENT_SUITE] != "suites.e2e.record"
    assert found[LabelType.SEVERITY] == "critical"


def test_allure_labels_that_the_test_sets_are_not_replaced() -> None:
    own = [(LabelType.PARENT_SUITE, "Mine"), *DEFAULT[1:], (LabelType.SEVERITY, "trivial")]

    assert labels(own, {"tag": "x", "image": "debian-12"}) == [
        *own,
        ("tag", "x"),
        ("image", "debian-12"),
    ]


def a_config(*lines: str) -> Any:
    return SimpleNamespace(getini=lambda _: list(lines), inipath=Path("pytest.ini"))


def test_severity_setting_maps_folders_and_files_to_severities() -> None:
    assert _severities(a_config("suites/e2e/: critical", " a b:c.py :minor ")) == {
        "suites/e2e": "critical",
        "a b:c.py": "minor",
    }


def test_unknown_allure_severity_is_refused() -> None:
    for line in ("suites/e2e", "suites: worst", ": minor"):
        with pytest.raises(BadInputError, match=r"pytest\.ini: key 'allure_severity'"):
            _severities(a_config(line))


def test_environment_file_has_a_line_for_each_fact_with_the_values_from_all_workers(
    tmp_path: Path,
) -> None:
    config: Any = None
    settings = Settings(machine_driver=MachineDriver.LIBVIRT)
    report = AllureReport(config, settings, tmp_path, {})
    for facts in ({"image": ["b", "c"], "gpu": ["C:\\x\ny"]}, {"image": ["a", "b"]}, None):
        output = {} if facts is None else {"workeroutput": {"harness_allure_environment": facts}}
        report.pytest_testnodedown(SimpleNamespace(**output))

    report._describe_run()

    lines = (tmp_path / "environment.properties").read_text().splitlines()
    assert {"image=a, b, c", "gpu=C:\\\\x\\ny", "machine_driver=libvirt"} <= set(lines)


def test_history_id_depends_on_the_vm_driver_but_not_on_the_kernel() -> None:
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


def test_allure_status_comes_from_the_first_error_of_the_current_test() -> None:
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


class Listening:
    """A fake configuration of a run with Allure's plug-in: only the parts that AllureReport uses."""

    def __init__(self, **output: dict[str, Any]) -> None:
        listener = SimpleNamespace(allure_logger=SimpleNamespace(get_item=lambda _: None))
        self.pluginmanager = SimpleNamespace(getplugin={"allure_listener": listener}.get)
        vars(self).update(output)


def loggers() -> list[AllureFileLogger]:
    plugins = allure_commons.plugin_manager.get_plugins()
    return [each for each in plugins if isinstance(each, AllureFileLogger)]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[AllureFileLogger]:
    """Register only Allure's own writer, which writes into another folder."""
    before = loggers()
    for each in before:
        allure_commons.plugin_manager.unregister(each)
    mine = AllureFileLogger(tmp_path / "own")  # type: ignore[no-untyped-call]
    allure_commons.plugin_manager.register(mine)
    yield mine
    for each in loggers():
        allure_commons.plugin_manager.unregister(each)
    for each in before:
        allure_commons.plugin_manager.register(each)


def test_original_allure_logger_is_disabled_during_the_run_and_restored_afterwards(
    tmp_path: Path, own: AllureFileLogger
) -> None:
    config: Any = Listening()
    session: Any = SimpleNamespace(config=config, exitstatus=0)
    report = AllureReport(config, Settings(), tmp_path / "results", {})

    report.pytest_sessionstart()
    allure_commons.plugin_manager.hook.report_attached_data(body="x", file_name="a.txt")
    report.pytest_sessionfinish(session)

    assert loggers() == [own]
    assert report not in allure_commons.plugin_manager.get_plugins()
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert names == {"a.txt", "environment.properties", "categories.json"}
    assert not any((tmp_path / "own").iterdir())
    assert session.exitstatus == 0


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("has_environment", [False, True])
def test_run_fails_and_mentions_the_first_allure_file_that_a_worker_could_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, has_environment: bool
) -> None:
    """The run names a worker's file even if the controller could not write a file either."""
    outputs: list[dict[str, Any]] = []
    for names in (("a.txt", "b.txt"), ("c.txt",), ()):
        config: Any = Listening(workeroutput={})
        worker = AllureReport(config, Settings(), tmp_path / "results", {})
        worker.pytest_sessionstart()
        for name in names:
            (tmp_path / "results" / name).mkdir(parents=True)
            allure_commons.plugin_manager.hook.report_attached_data(body="x", file_name=name)
        worker.pytest_sessionfinish(SimpleNamespace(config=config))  # type: ignore[arg-type]
        outputs.append(config.workeroutput)
    config = Listening()
    session: Any = SimpleNamespace(config=config, exitstatus=0)
    report = AllureReport(config, Settings(), tmp_path / "results", {})
    if not has_environment:
        (tmp_path / "results/environment.properties").mkdir()

    report.pytest_sessionstart()
    for output in outputs:
        report.pytest_testnodedown(SimpleNamespace(workeroutput=output))
    report.pytest_sessionfinish(session)

    assert session.exitstatus == pytest.ExitCode.INTERNAL_ERROR
    assert "a.txt: Is a directory" in capsys.readouterr().err
