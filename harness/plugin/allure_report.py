"""Adds steps, names, suites, machines, categories and the environment to Allure's results."""

from __future__ import annotations

import contextlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import allure_commons
import pytest
from allure_commons.logger import AllureFileLogger
from allure_commons.model2 import Label, Parameter, Status
from allure_commons.types import LabelType, Severity
from allure_commons.utils import md5

from harness import steps
from harness.errors import BadInputError, listed
from harness.plugin.allure_files import AllureFiles
from harness.plugin.allure_results import (
    docstring_of,
    history_id,
    severity_of,
    shown_parameters,
    suites_of,
    words_of,
)
from harness.plugin.allure_steps import AllureSteps
from harness.plugin.node_ids import shown_id
from harness.plugin.tested_machines import facts_of
from harness.plugin.unwritten import note_unwritten, reason_of
from harness.plugin.verdicts import is_broken
from harness.provisioning.command import CommandError, LocalRunner
from harness.settings import APPLICATION, MachineDriver
from harness.sharding.report_file import write_report
from harness.visible_text import visible

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from allure_commons.model2 import TestResult, TestResultContainer

    from harness.settings import Settings

SEVERITIES_INI = "allure_severity"
ENVIRONMENT = "environment.properties"
CATEGORIES = "categories.json"

#: The time limit of a command that prints a version.
_VERSION_S = 10.0
_CARRIED = "harness_allure_environment"
_UNWRITTEN = "harness_allure_unwritten"
_LISTENER = "allure_listener"
_SUITE_LABELS = (LabelType.PARENT_SUITE, LabelType.SUITE, LabelType.SUB_SUITE)
#: Allure puts a result into the first category that matches the result.
_CATEGORIES = (
    {
        "name": "The host lacks something",
        "matchedStatuses": [Status.BROKEN, Status.SKIPPED],
        "messageRegex": "(?s).*RequirementError.*",
    },
    {"name": "The node is wrong", "matchedStatuses": [Status.FAILED]},
    {"name": "The harness could not tell", "matchedStatuses": [Status.BROKEN]},
)


def register(config: pytest.Config, settings: Settings) -> None:
    """Register the plug-in that completes Allure's results, if this run writes Allure results.

    Raises BadInputError for an unknown severity.
    """
    folder = config.getoption("allure_report_dir", None)
    if not folder or config.option.collectonly:
        return
    report = AllureReport(config, settings, Path(folder).absolute(), _severities(config))
    config.pluginmanager.register(report, "harness-allure-report")


def _severities(config: pytest.Config) -> dict[str, str]:
    known = [each.value for each in Severity]
    found: dict[str, str] = {}
    for line in config.getini(SEVERITIES_INI):
        place, _, severity = line.rpartition(":")
        if not place.strip() or severity.strip() not in known:
            raise BadInputError(
                f"'{line}' is not a folder with a severity, such as 'suites/e2e/record: "
                f"critical'; severities are {listed(known)}.",
                source=str(config.inipath or "the configuration of pytest"),
                key=SEVERITIES_INI,
            )
        found[place.strip().rstrip("/")] = severity.strip()
    return found


# Instances compare by identity, because pytest keeps plugins in sets.
class AllureReport:
    """Completes each result just before Allure writes it, and describes the run after the last result.

    Only the run's controller writes the files about the run; workers of xdist send the facts about
    their machines to the controller.
    """

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        folder: Path,
        severities: Mapping[str, str],
    ) -> None:
        self._config = config
        self._settings = settings
        self._folder = folder
        self._severities = severities
        self._item: pytest.Item | None = None
        self._status: str | None = None
        self._environment: dict[str, set[str]] = {}
        self._listening: contextlib.ExitStack | None = None
        self._files: AllureFiles | None = None
        self._own_files: list[AllureFileLogger] = []
        self._unwritten: str | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        listener = self._config.pluginmanager.getplugin(_LISTENER)
        if listener is None:
            return
        self._listening = contextlib.ExitStack()
        self._listening.enter_context(steps.listening(AllureSteps(listener.allure_logger)))
        self._listening.enter_context(_digests_of_any_text())
        plugins = allure_commons.plugin_manager
        self._own_files = [
            each for each in plugins.get_plugins() if isinstance(each, AllureFileLogger)
        ]
        for each in self._own_files:
            plugins.unregister(each)
        self._files = AllureFiles(self._folder)
        plugins.register(self._files)
        plugins.register(self)

    # Allure's plugin needs Allure's own writer again at the end of the run. This hook runs first,
    # so that the writer is restored even if a later hook fails.
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._listening is None or self._files is None:
            return
        self._listening.close()
        for plugin in (self, self._files):
            allure_commons.plugin_manager.unregister(plugin)
        for each in self._own_files:
            allure_commons.plugin_manager.register(each)
        if self._files.error is not None:
            name, error = self._files.error
            self._unwritten = self._unwritten or f"{name}: {reason_of(error)}"
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_CARRIED] = {name: sorted(values) for name, values in self._environment.items()}
            output[_UNWRITTEN] = self._unwritten
            return
        try:
            self._describe_run()
        except OSError as error:
            self._unwritten = self._unwritten or reason_of(error)
        if self._unwritten is not None:
            note_unwritten(session, self._folder, self._unwritten)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Store a worker's facts about machines, and its error about a file that it could not write."""
        self._unwritten = self._unwritten or getattr(node, "workeroutput", {}).get(_UNWRITTEN)
        for name, values in getattr(node, "workeroutput", {}).get(_CARRIED, {}).items():
            self._environment.setdefault(name, set()).update(values)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._item, self._status = item, None
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and self._status is None:
            self._status = Status.BROKEN if is_broken(report) else Status.FAILED
        return report

    @allure_commons.hookimpl(tryfirst=True)
    def report_result(self, result: TestResult) -> None:
        """Complete a test's result before AllureFiles writes the result."""
        item = self._item
        if item is None or result.fullName is None:
            return
        node_id = shown_id(item.nodeid)
        result.fullName = shown_id(result.fullName)
        result.testCaseId = md5(result.fullName)  # type: ignore[no-untyped-call]
        if result.status in {Status.FAILED, Status.BROKEN} and self._status is not None:
            # Allure gives the status 'broken' to every exception group.
            result.status = self._status
        self._name(result, item)
        facts = facts_of(item)
        self._set_parameters(result, item, facts)
        given = [(label.name, label.value) for label in result.labels]
        labels = self._labels(given, node_id, facts)
        result.labels = [Label(name=name, value=value) for name, value in labels]
        for name, value in facts.items():
            self._environment.setdefault(name, set()).add(value)

    @allure_commons.hookimpl(tryfirst=True)
    def report_container(self, container: TestResultContainer) -> None:
        """Name a fixture's teardown after the fixture, without the function name from allure-pytest."""
        ends = [each for each in container.afters if each.status is not None]
        for each in ends:
            each.name = each.name.partition("::")[0]
        container.afters = ends

    def _name(self, result: TestResult, item: pytest.Item) -> None:
        docstring = docstring_of(item)
        words = words_of(docstring, _case(item))
        # Titles and descriptions that a test sets by Allure's own decorators stay.
        if result.name == item.name and words.title is not None:
            result.name = words.title
        if result.description == docstring:
            result.description = words.description

    def _set_parameters(
        self, result: TestResult, item: pytest.Item, facts: Mapping[str, str]
    ) -> None:
        given = dict(getattr(getattr(item, "callspec", None), "params", {}))
        shown = shown_parameters(given, case=_case(item), root=item.config.rootpath)
        for parameter in result.parameters:
            if parameter.name in shown:
                parameter.value = shown[parameter.name]
        present = {parameter.name for parameter in result.parameters}
        for name, value in facts.items():
            if name not in present:
                # In Allure's history, a test under another VM driver is another test, but a test on
                # another host is the same test.
                is_variant = name == "machine_driver" and value != MachineDriver.QEMU.value
                result.parameters.append(
                    Parameter(name=name, value=value, excluded=None if is_variant else True)
                )
        result.historyId = history_id(
            result.fullName,
            ((each.name, each.value) for each in result.parameters if not each.excluded),
        )

    def _labels(
        self, labels: Sequence[tuple[str, str]], node_id: str, facts: Mapping[str, str]
    ) -> list[tuple[str, str]]:
        path, _, names = node_id.partition("::")
        classes = names.partition("[")[0].split("::")[:-1]
        *folders, file = path.split("/")
        by_default = {
            LabelType.PARENT_SUITE: ".".join(folders),
            LabelType.SUITE: file.rpartition(".")[0] or file,
            LabelType.SUB_SUITE: " > ".join(classes),
        }
        is_default = all(
            by_default[name] == value for name, value in labels if name in _SUITE_LABELS
        )
        wanted = {**facts}
        if is_default:
            labels = [each for each in labels if each[0] not in _SUITE_LABELS]
            wanted.update(suites_of(node_id))
        severity = severity_of(path, self._severities)
        if severity is not None:
            wanted[LabelType.SEVERITY] = severity
        present = {name for name, _ in labels}
        return [*labels, *((name, value) for name, value in wanted.items() if name not in present)]

    def _describe_run(self) -> None:
        if not self._folder.is_dir():
            return
        environment = {
            "host": platform.node(),
            "host_kernel": platform.release(),
            "host_machine": platform.machine(),
            "python": platform.python_version(),
            "pytest": pytest.__version__,
            "harness": version(APPLICATION),
            "machine_driver": self._settings.machine_driver.value,
            **{name: ", ".join(sorted(values)) for name, values in self._environment.items()},
        }
        if self._environment and self._settings.machine_driver is MachineDriver.QEMU:
            with contextlib.suppress(CommandError):
                answer = LocalRunner().run(
                    [self._settings.qemu, "--version"], timeout_s=_VERSION_S
                )
                environment["qemu"] = answer.stdout.partition("\n")[0]
        lines = [f"{name}={_escaped(value)}\n" for name, value in environment.items()]
        _write(self._folder / ENVIRONMENT, "".join(lines))
        _write(self._folder / CATEGORIES, json.dumps(_CATEGORIES, indent=1) + "\n")


@contextlib.contextmanager
def _digests_of_any_text() -> Iterator[None]:
    """Let Allure accept parameters with a lone surrogate, for which Allure's digest function fails.

    As in Allure's own function, the `repr` of an object that is not a string is digested.
    """

    def md5_of_bytes(*parts: object) -> str:
        return str(
            md5(  # type: ignore[no-untyped-call]
                *(
                    part
                    if isinstance(part, bytes)
                    else (part if isinstance(part, str) else repr(part)).encode(
                        errors="surrogatepass"
                    )
                    for part in parts
                )
            )
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("allure_pytest.utils.md5", md5_of_bytes)
        yield


def _case(item: pytest.Item) -> str | None:
    return getattr(getattr(item, "callspec", None), "id", None)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _write(path: Path, text: str) -> None:
    write_report(path, visible(text).encode())
