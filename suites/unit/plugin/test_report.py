"""When and where the evidence of a test is kept, and what the summary counts."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import ExpectationError, HarnessError
from harness.plugin import live_machines
from harness.plugin.report import Reporter, _names, _point, kept_on_failure, shell_before
from harness.plugin.verdicts import is_broken
from harness.settings import EvidenceMode, MachineKeep, MachineShell, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class FakeSource:
    """A fake node; a part of its evidence was in the folder `origin` before it was kept."""

    name: str = "node"
    origin: Path = Path("/run/evidence")
    error: Exception | None = None
    gathered: list[tuple[Path, BaseException | None]] = field(default_factory=list)

    def gather(self, folder: Path, error: BaseException | None) -> Iterator[tuple[Path, Path]]:
        self.gathered.append((folder, error))
        yield self.origin, folder
        if self.error is not None:
            raise self.error


def an_item(**fields: Any) -> Any:
    config = SimpleNamespace(getoption=lambda *_: None)
    return SimpleNamespace(**{"nodeid": "a.py::test_x", "config": config, **fields})


def a_call(when: str, error: BaseException | None = None) -> Any:
    raised: Any = (type(error), error, None)
    excinfo = None if error is None else pytest.ExceptionInfo.from_exc_info(raised)
    return SimpleNamespace(when=when, excinfo=excinfo)


SKIPPED = pytest.skip.Exception("x")
XFAILED = pytest.xfail.Exception("x")
WRONG = AssertionError()


def test_evidence_is_kept_after_a_failed_test_or_as_the_settings_require() -> None:
    on_failure, always, none = EvidenceMode.ON_FAILURE, EvidenceMode.ALWAYS, MachineKeep.NONE
    rows: list[tuple[EvidenceMode, MachineKeep, str, BaseException | None, bool]] = [
        (on_failure, none, "call", WRONG, True),
        (on_failure, none, "setup", WRONG, True),
        (on_failure, none, "call", None, False),
        (on_failure, MachineKeep.ALL, "call", None, True),
        (on_failure, none, "call", SKIPPED, False),
        (on_failure, none, "call", XFAILED, False),
        (always, none, "call", None, True),
        (always, none, "setup", None, False),
        (always, none, "teardown", WRONG, False),
    ]
    for mode, keep, when, error, is_wanted in rows:
        reporter = Reporter(Settings(evidence=mode, machine_keep=keep))

        assert reporter._is_wanted(a_call(when, error)) is is_wanted, (mode, keep, when, error)


def test_evidence_sources_of_the_same_name_have_their_own_folders() -> None:
    sources = [FakeSource(name) for name in ("node", "node", "node-2", "other", "node")]

    assert _names(sources) == ["node", "node-2", "node-2-2", "other", "node-3"]


def test_evidence_of_other_sources_is_kept_if_one_source_fails(tmp_path: Path) -> None:
    reporter = Reporter(Settings(evidence_folder=tmp_path))
    broken, sound = FakeSource("one", error=OSError("full")), FakeSource("two")
    reporter.add(broken)
    reporter.add(sound)

    first, second = reporter._keep(an_item(), WRONG)

    folder = tmp_path / "a.py-test_x"
    assert first.sentence == f"not kept completely in '{folder}/one': OSError('full')"
    assert second.sentence == f"kept in '{folder}/two'"
    assert sound.gathered == [(folder / "two", WRONG)]
    assert second.moved == {Path("/run/evidence"): folder / "two"}


def test_repeated_test_keeps_the_evidence_of_each_run(tmp_path: Path) -> None:
    reporter = Reporter(Settings(evidence_folder=tmp_path))
    reporter.add(FakeSource())

    folders = [
        reporter._keep(an_item(execution_count=count), None)[0].folder.parent for count in (1, 2)
    ]

    assert folders[0].name == "a.py-test_x"
    assert folders[1].name.startswith("a.py-test_x-run-2-")


def test_error_refers_to_the_folder_to_which_its_evidence_was_moved(tmp_path: Path) -> None:
    reporter = Reporter(Settings(evidence_folder=tmp_path))
    reporter.add(FakeSource())
    inner = ExpectationError("x", evidence=Path("/run/evidence"))
    outer = HarnessError("y", evidence=Path("/elsewhere"))
    outer.__cause__ = inner

    _point(outer, reporter._keep(an_item(), outer))

    assert inner.evidence == tmp_path / "a.py-test_x/node"
    assert outer.evidence == Path("/elsewhere")


@dataclass
class FakeMachineSource(FakeSource):
    """A fake node that has a machine."""

    machine: Any = None


def test_failed_save_of_one_machine_does_not_prevent_other_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (when, is_saved) in enumerate(
        (("call", True), ("setup", True), ("teardown", False))
    ):
        folder = tmp_path / str(number)

        def save(machine: Any, folder: Path, *_: object, **_named: object) -> Any:
            if machine == "broken":
                raise ValueError(machine)
            return live_machines.SavedMachine(
                sentence=f"{machine} in {folder.name}", kept="enter it"
            )

        monkeypatch.setattr(live_machines, "save_machine", save)
        reporter = Reporter(Settings(evidence_folder=folder))
        for source in (
            FakeMachineSource("one", machine="broken"),
            FakeSource("log"),
            FakeMachineSource("two", machine="sound"),
        ):
            reporter.add(source)
        kept = reporter._keep(an_item(), WRONG)

        reporter._save_machines(an_item(), a_call(when, WRONG), kept, has_failed=True)

        of_broken = "the machine could not be saved: ValueError('broken')"
        saved = [of_broken, None, "sound in two"] if is_saved else [None] * 3
        assert [one.saved for one in kept] == saved, when
        assert [one.kept for one in kept] == [None, None, "enter it" if is_saved else None], when


def a_config(reporter: Reporter, **options: Any) -> Any:
    manager = SimpleNamespace(getplugin=lambda _: reporter)
    return SimpleNamespace(pluginmanager=manager, getoption=options.get)


def test_evidence_source_is_used_only_within_its_with_block(tmp_path: Path) -> None:
    reporter = Reporter(Settings(evidence_folder=tmp_path))
    one, two = FakeSource("one"), FakeSource("two")
    until = [contextlib.ExitStack() for _ in (one, two)]

    for source, stack in zip((one, two), until, strict=True):
        stack.enter_context(kept_on_failure(a_config(reporter), source))
        reporter._keep(an_item(), None)
    # A session fixture may add its source after a module fixture, and discard it later.
    for stack in until:
        with contextlib.suppress(AssertionError), stack:
            raise AssertionError
        reporter._keep(an_item(), None)
    assert (len(one.gathered), len(two.gathered)) == (2, 2)


def a_report(**fields: Any) -> pytest.TestReport:
    usual: dict[str, Any] = {
        "nodeid": "a.py::x", "location": ("a.py", 1, "x"), "keywords": {}, "outcome": "failed",
        "longrepr": None, "when": "call", "user_properties": [],
    }  # fmt: skip
    return pytest.TestReport(**{**usual, **fields})


LOOKUP = pytest.FixtureLookupError.__new__(pytest.FixtureLookupError)
BROKEN, KEPT = ("harness_could_not_tell", "true"), ("evidence", "/kept/a.py-test_x/node")


def test_properties_of_a_test_have_the_kind_of_error_and_the_evidence_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """JUnit's file shows the properties of a test; the summary counts the properties of a phase."""
    rows: list[tuple[str, Any, Any, Any]] = [
        ("call", ExpectationError("x"), [KEPT], [("cause", "x"), KEPT]),
        ("call", HarnessError("x"), [BROKEN, KEPT], [("cause", "x"), BROKEN, KEPT]),
        ("setup", KeyError("x"), [BROKEN, KEPT], [BROKEN, KEPT]),
        ("setup", LOOKUP, [KEPT], [("miswritten_test", "true"), KEPT]),
        ("teardown", HarnessError("x"), [BROKEN], [("cause", "x"), BROKEN]),
        ("call", SKIPPED, [], []),
        ("call", XFAILED, [], []),
        ("call", None, [], []),
        ("call", "passed against a strict xfail", [KEPT], [KEPT]),
        ("teardown", "passed against a strict xfail", [], []),
    ]
    for when, error, of_test, of_phase in rows:
        monkeypatch.setattr("harness.plugin.report.hide_own_frames", lambda: None)
        reporter = Reporter(Settings(evidence_folder=Path("/kept")))
        reporter.add(FakeSource())
        item = an_item(user_properties=[], stash=pytest.Stash())
        outcome = (
            "passed" if error is None else "skipped" if error in (SKIPPED, XFAILED) else "failed"
        )
        raised = None if isinstance(error, str) else error
        hook = reporter.pytest_runtest_makereport(item, a_call(when, raised))
        next(hook)

        with pytest.raises(StopIteration) as made:
            hook.send(a_report(outcome=outcome, when=when, user_properties=[]))

        report = made.value.value
        assert (item.user_properties, report.user_properties) == (of_test, of_phase), (when, error)
        assert is_broken(report) is (BROKEN in of_phase)


def test_title_of_a_repeated_test_is_recorded_once() -> None:
    def first() -> None:
        """Boot a node."""

    item = an_item(user_properties=[], stash=pytest.Stash(), function=first)
    for when in ("setup", "call", "teardown", "setup", "call", "teardown"):
        next(Reporter(Settings()).pytest_runtest_makereport(item, a_call(when)))

    assert item.user_properties == [("title", "Boot a node")]


def test_summary_counts_unmet_expectations_and_harness_errors_separately() -> None:
    broken = [("harness_could_not_tell", "true")]
    kept = [("machine_kept", "harness shell --machine one")]
    stats = {
        "passed": [a_report(outcome="passed", user_properties=kept)],
        "failed": [a_report(), a_report(user_properties=broken), a_report(when="???")],
        "error": [a_report(when="setup", user_properties=[("miswritten_test", "true")])],
    }
    lines: list[str] = []
    options = SimpleNamespace(reportchars="")
    terminal: Any = SimpleNamespace(
        stats=stats, write_line=lines.append, config=SimpleNamespace(option=options)
    )

    Reporter(Settings())._summarize(terminal)

    assert lines == [
        "kept: harness shell --machine one",
        "expectations not met: 1; the harness could not tell: 2; tests that ask for an unknown fixture: 1",
    ]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the texts with which shells were opened."""
    words: list[str] = []
    monkeypatch.setattr(live_machines, "open_shell", lambda *arguments: words.append(arguments[2]))
    monkeypatch.setattr(live_machines, "run_command", lambda *_: 3)
    return words


def test_shell_is_opened_only_after_the_configured_phase_and_outcome(opened: list[str]) -> None:
    rows: list[tuple[MachineShell | None, str, bool, list[str]]] = [
        (MachineShell.AFTER, "call", True, ["a.py::test_x failed"]),
        (MachineShell.AFTER, "call", False, ["a.py::test_x passed"]),
        (MachineShell.AFTER, "setup", True, []),
        (MachineShell.FAILED, "setup", True, ["a.py::test_x failed"]),
        (MachineShell.FAILED, "call", False, []),
        (MachineShell.BEFORE, "call", True, []),
    ]
    for moment, when, has_failed, words in rows:
        opened.clear()
        reporter = Reporter(Settings(machine_shell=moment))
        reporter._machines = lambda: [object()]  # type: ignore[method-assign,list-item]

        reporter._open_shells(an_item(), a_call(when), has_failed=has_failed)

        assert opened == words, moment


def test_shell_is_opened_before_a_test_or_instead_of_the_test(opened: list[str]) -> None:
    rows: list[tuple[MachineShell | None, list[str], type[BaseException] | None]] = [
        (MachineShell.BEFORE, ["before the test"], None),
        (MachineShell.INSTEAD, ["instead of the test"], pytest.skip.Exception),
        (MachineShell.AFTER, [], None),
    ]
    for moment, words, ends_by in rows:
        opened.clear()
        options = {} if moment is MachineShell.INSTEAD else {"--machine-shell-command": "true"}
        config = a_config(Reporter(Settings(machine_shell=moment)), **options)
        machine: Any = SimpleNamespace(name="node")

        if ends_by is None:
            shell_before(config, machine)
        else:
            with pytest.raises(ends_by):
                shell_before(config, machine)
        assert opened == words, moment


def test_run_exits_with_the_code_of_the_command_that_runs_instead_of_a_test(
    opened: list[str],
) -> None:
    options = {"--machine-shell-command": "true"}
    config = a_config(Reporter(Settings(machine_shell=MachineShell.INSTEAD)), **options)

    with pytest.raises(pytest.exit.Exception) as ended:
        shell_before(config, SimpleNamespace(name="node"))  # type: ignore[arg-type]

    assert (ended.value.returncode, opened) == (3, [])
