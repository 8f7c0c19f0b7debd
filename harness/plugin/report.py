"""What a report says: evidence kept and attached, and the two error families counted apart."""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import allure
import pytest
from allure_commons.types import AttachmentType

from harness.errors import evidenced_in

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from pathlib import Path

    from harness.settings import Settings

#: The name by which the plugin registers its Reporter.
REPORTER = "harness-reporter"

_XDIST_GROUP = re.compile(r"@[^@/\]]+$")
_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")
#: Node ids that keep apart as folder names: `::`, `/` and brackets alone become '-'.
_PLAIN = re.compile(
    r"(?=.{1,150}$)[A-Za-z0-9_][A-Za-z0-9._=/-]*(::[A-Za-z0-9._=-]+)*(\[[A-Za-z0-9._=-]+\])?"
)
_NAME_LENGTH = 150
#: What says that the node is wrong; anything else that a test raises says that nobody could
#: tell. Allure draws the same line between failed and broken.
_VERDICTS = (AssertionError, pytest.fail.Exception)
#: What a test raises that has not failed.
_NO_FAILURES = (pytest.skip.Exception, pytest.xfail.Exception)
_BROKEN = "harness_could_not_tell"
#: A worker that crashed leaves a report of none of them.
_PHASES = ("setup", "call", "teardown")

#: What people look for first in a report; everything else is in the folder beside.
_ATTACHED = (
    "host/serial.log",
    "host/argv.txt",
    "host/domain.xml",
    "host/stderr.log",
    "host/qmp-events.json",
    "host/*-trace.txt",
    "commands/journal",
    "commands/dmesg",
    "commands/lspci",
    "commands/dkms-status",
    "files/run/cloud-init/*.json",
    "files/var/log/cloud-init.log",
    "files/var/log/cloud-init-output.log",
    "files/var/lib/gpu-node/outcome.json",
    "files/var/log/azure/Microsoft.Azure.Extensions.CustomScript/events/*",
    "files/var/lib/dkms/nvidia/**/make.log",
    "files/var/log/nvidia-installer-*.log",
    "files/opt/azure/aks-gpu/dkms-marker",
    "manifest.json",
    "not-collected.txt",
)


class EvidenceSource(Protocol):
    """Something alive of which evidence can be had."""

    @property
    def name(self) -> str: ...

    def gather(self, folder: Path, error: BaseException | None) -> Iterator[tuple[Path, Path]]:
        """Write into `folder` all that can be had, in place of what an earlier run left there.

        Yield each folder of evidence as it is kept: where it was gathered, and where it lies now.
        `error` is what the test ended with, None where that passed.
        """
        ...


@dataclass
class _Kept:
    """Evidence of one source: where it lies, and what kept it from being whole."""

    folder: Path
    moved: dict[Path, Path] = field(default_factory=dict)
    trouble: str | None = None

    @property
    def sentence(self) -> str:
        if self.trouble is None:
            return f"kept in '{self.folder}'"
        return f"could not be kept whole in '{self.folder}': {self.trouble}"


class Reporter:
    """Keeps evidence of tests, while what it comes from is still alive."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sources: list[EvidenceSource] = []

    def add(self, source: EvidenceSource) -> None:
        self._sources.append(source)

    def discard(self, source: EvidenceSource) -> None:
        self._sources.remove(source)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        error = None if call.excinfo is None else call.excinfo.value
        kept = self._keep(item, error) if self._is_wanted(call) else []
        if error is not None:
            # Before anybody reads the message: what it names is gone when the test is.
            _point(error, kept)
        made = yield
        if made.failed and call.when == "call" and not kept:
            # It was expected to fail, and passed.
            kept = self._keep(item, None)
        if made.failed and error is not None and not _is_verdict(error):
            # JUnit takes its properties from the teardown's report, which copies the item's.
            item.user_properties.append((_BROKEN, "true"))
            made.user_properties.append((_BROKEN, "true"))
        for one in kept:
            item.user_properties.append(("evidence", str(one.folder)))
            made.user_properties.append(("evidence", str(one.folder)))
            made.sections.append(("evidence", one.sentence))
        return made

    def _is_wanted(self, call: pytest.CallInfo[None]) -> bool:
        if call.when == "teardown":
            return False
        if call.excinfo is not None and not call.excinfo.errisinstance(_NO_FAILURES):
            return True
        return self._settings.evidence == "always" and call.when == "call"

    def _keep(self, item: pytest.Item, error: BaseException | None) -> list[_Kept]:
        parent = self._settings.evidence_folder / folder_name(item.nodeid)
        kept: list[_Kept] = []
        for number, source in enumerate(self._sources):
            namesakes = [each.name for each in self._sources[:number]].count(source.name)
            name = f"{source.name}-{namesakes + 1}" if namesakes else source.name
            one = _Kept(parent / name)
            kept.append(one)
            try:
                for origin, place in source.gather(one.folder, error):
                    one.moved[origin] = place
                    attach(place, place.relative_to(parent).as_posix())
            except Exception as trouble:
                # A hook that raises would end the whole run, for want of some evidence.
                one.trouble = repr(trouble)
        return kept

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Count failures of the node and trouble of the harness apart."""
        reports = [
            report
            for outcome in ("failed", "error")
            for report in terminalreporter.stats.get(outcome, [])
            if isinstance(report, pytest.TestReport)
        ]
        if reports:
            broken = sum(
                (_BROKEN, "true") in report.user_properties or report.when not in _PHASES
                for report in reports
            )
            terminalreporter.write_line(
                f"expectations not met: {len(reports) - broken}; "
                f"the harness could not tell: {broken}"
            )


@contextlib.contextmanager
def kept_on_failure(config: pytest.Config, source: EvidenceSource) -> Iterator[None]:
    """Keep evidence of `source` for each test that fails until the context ends."""
    reporter = config.pluginmanager.getplugin(REPORTER)
    assert isinstance(reporter, Reporter)  # noqa: S101 - the plugin registers it
    reporter.add(source)
    try:
        yield
    finally:
        reporter.discard(source)


def _is_verdict(error: BaseException) -> bool:
    """Tell whether an error says that the node is wrong; a group does where each of it does."""
    parts = getattr(error, "exceptions", ())
    return isinstance(error, _VERDICTS) or (bool(parts) and all(map(_is_verdict, parts)))


def _point(error: BaseException, kept: Iterable[_Kept]) -> None:
    """Let an error, and what led to it, name the folders in which their evidence is kept."""
    moved = {origin: place for one in kept for origin, place in one.moved.items()}
    for each in evidenced_in(error):
        if each.evidence is not None:
            each.evidence = moved.get(each.evidence, each.evidence)


def folder_name(node_id: str) -> str:
    """Turn a test's node id into a folder name, without the group that xdist appends.

    A digest follows where the name alone would not tell two tests apart: where it had to be cut,
    or has characters that a path or a shell would take for something else.
    """
    test = _XDIST_GROUP.sub("", node_id)
    name = _UNSAFE.sub("-", test).strip("-.")[:_NAME_LENGTH]
    if name and _PLAIN.fullmatch(test):
        return name
    digest = hashlib.sha256(test.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name}-{digest}".lstrip("-")


def attach(folder: Path, prefix: str) -> None:
    """Attach the files of an evidence folder to Allure's result of the running test."""
    for pattern in _ATTACHED:
        for path in sorted(folder.glob(pattern)):
            # That QEMU said nothing is worth knowing; of other files only their content is.
            if path.is_file() and (path.stat().st_size or path.name == "stderr.log"):
                kind = AttachmentType.JSON if path.suffix == ".json" else AttachmentType.TEXT
                name = f"{prefix}: {path.relative_to(folder)}"
                allure.attach.file(  # type: ignore[no-untyped-call]
                    str(path), name=name, attachment_type=kind
                )
