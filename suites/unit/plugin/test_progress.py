"""How progress is shown without disturbing what pytest prints."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from harness.plugin import progress
from harness.plugin.progress import _OpenLine, _size_of, _write_all

if TYPE_CHECKING:
    from pathlib import Path


def test_unfinished_terminal_line_of_pytest_is_detected() -> None:
    writer = SimpleNamespace(width_of_current_line=0)
    is_open = _OpenLine(SimpleNamespace(_tw=writer))  # type: ignore[arg-type]

    seen = []
    for width in (0, 5, 5, 7, 0, 5):
        writer.width_of_current_line = width
        seen.append(is_open())

    assert seen == [False, True, False, True, False, True]


def test_text_is_written_completely_after_partial_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    file = os.open(tmp_path / "terminal", os.O_CREAT | os.O_WRONLY)

    _write_all(file, "caf\u00e9 \udce9 progress")
    os.close(file)
    _write_all(file, "nobody sees this")

    assert (tmp_path / "terminal").read_bytes() == "caf\u00e9 ? progress".encode()


def test_terminal_size_defaults_to_80_by_24(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([(120, 40), (120, 0)])

    def get_terminal_size(_descriptor: int) -> os.terminal_size:
        size = next(sizes, None)
        if size is None:
            raise OSError
        return os.terminal_size(size)

    monkeypatch.setattr(os, "get_terminal_size", get_terminal_size)

    assert [_size_of(1) for _ in range(3)] == [(120, 40), (80, 24), (80, 24)]


def test_live_rows_are_shown_only_in_a_captured_run_on_an_interactive_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"is_terminal": False}, False),
        ({"term": "dumb"}, False),
        ({"capture": "no"}, False),
        ({"is_ci": True}, False),
    ]
    for changed, is_live in rows:
        usual = {"is_terminal": True, "term": "xterm", "capture": "fd", "is_ci": False}
        case = SimpleNamespace(**{**usual, **changed})
        monkeypatch.setenv("TERM", case.term)
        monkeypatch.setattr(os, "isatty", lambda _: True)
        config: Any = SimpleNamespace(getoption=lambda *_, capture=case.capture: capture)
        reporter = progress.ProgressReporter(config, is_ci=case.is_ci)
        terminal: Any = SimpleNamespace(isatty=case.is_terminal)

        assert reporter._can_be_live(terminal) is is_live, changed
        reporter.pytest_unconfigure()


@pytest.mark.parametrize("is_shown", [True, False], ids=["shown", "before-the-first-event"])
def test_rows_stay_hidden_until_the_last_debugger_or_shell_ends(
    monkeypatch: pytest.MonkeyPatch, *, is_shown: bool
) -> None:
    paused: list[int] = []

    class FakeDisplay:
        def __init__(self, *_: object) -> None:
            self.paused = 0

        def pause(self) -> None:
            self.paused += 1

        def go_on(self) -> None:
            self.paused -= 1

        def close(self) -> None:
            paused.append(self.paused)

        def __call__(self, _event: object) -> None:
            paused.append(self.paused)

    monkeypatch.setattr(progress, "Display", FakeDisplay)
    manager = pytest.PytestPluginManager()
    config: Any = SimpleNamespace(pluginmanager=manager)
    reporter = progress.ProgressReporter(config, is_ci=False)
    manager.register(reporter, progress.PROGRESS)
    event: Any = None
    if is_shown:
        reporter.listener()(event)
    with contextlib.suppress(KeyError), progress.terminal_left(config):
        reporter.pytest_enter_pdb()
        with progress.terminal_left(config):
            pass
        reporter.listener()(event)
        reporter.pytest_leave_pdb()
        raise KeyError
    reporter.listener()(event)
    reporter.pytest_unconfigure()

    assert paused == [*([0] if is_shown else []), 2, 0, 0]


class FakeReceiver:
    """A fake receiver of the events that workers send."""

    def __init__(self, folder: Path, take: object) -> None:
        self.place, self.folder, self.take = str(folder / "progress"), folder, take
        self.closed_in: list[bool] = []

    def close(self) -> None:
        self.closed_in.append(self.folder.is_dir())


def a_worker(name: str) -> Any:
    return SimpleNamespace(workerinput={"workerid": name})


def test_workers_share_one_progress_receiver_and_rows_of_ended_workers_are_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[FakeReceiver] = []
    told: list[tuple[str, object]] = []

    def receive(folder: Path, take: object) -> FakeReceiver:
        made.append(FakeReceiver(folder, take))
        return made[-1]

    class FakeDisplay:
        def __init__(self, *_: object) -> None: ...

        def __call__(self, event: str, worker: str) -> None:
            told.append((event, worker))

        def forget(self, worker: str) -> None:
            told.append(("forget", worker))

        def close(self) -> None: ...

    monkeypatch.setattr(progress, "Receiver", receive)
    monkeypatch.setattr(progress, "Display", FakeDisplay)
    config: Any = SimpleNamespace(pluginmanager=pytest.PytestPluginManager())
    reporter = progress.ProgressReporter(config, is_ci=False)
    workers = [a_worker(f"gw{number}") for number in range(3)]
    for worker in workers:
        reporter.pytest_configure_node(worker)

    (receiver,) = made
    assert {worker.workerinput["harness_progress"] for worker in workers} == {receiver.place}
    # Events of the worker may still arrive after its end.
    reporter.pytest_testnodedown(workers[1])
    reporter._take("boots", "gw0")  # type: ignore[arg-type]
    reporter.pytest_testnodedown(workers[2])
    assert told == [("forget", "gw1"), ("boots", "gw0"), ("forget", "gw2")]
    reporter.pytest_unconfigure()
    assert receiver.closed_in == [True]
    assert not receiver.folder.exists()


def test_workers_print_progress_lines_if_there_is_no_receiver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(progress, "Receiver", refuse)
    config: Any = SimpleNamespace(pluginmanager=pytest.PytestPluginManager())
    reporter = progress.ProgressReporter(config, is_ci=False)
    worker = a_worker("gw0")

    reporter.pytest_configure_node(worker)
    reporter.pytest_unconfigure()

    assert worker.workerinput == {"workerid": "gw0"}
