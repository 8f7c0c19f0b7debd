"""A warm shell that can't start leaves nothing open."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.shell.protocol import Memory
from harness.shell.sandbox import Sandbox, SandboxKind
from harness.shell.sandbox.root_control import RootControl
from harness.shell.warm_shell.warm_shell import ShellStart, WarmShell

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeProcess:
    """A running shell."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> FakeProcess:
    process = FakeProcess()
    monkeypatch.setattr(WarmShell, "_start", lambda *_: process)
    return process


def make(folder: Path) -> WarmShell:
    start = ShellStart(cwd=folder, sandbox=Sandbox(kind=SandboxKind.OFF), path="/usr/bin")
    return WarmShell(code=(), start=start, scratch=folder, virtual=False, mocks=None)


def open_fds() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def fail() -> None:
    raise HarnessError("The throw-away root has ended.")


@pytest.mark.parametrize("step", ["_usage", "_renew"])
def test_error_in_a_step_after_the_start_ends_the_shell_and_closes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: FakeProcess, step: str
) -> None:
    before = open_fds()
    monkeypatch.setattr(WarmShell, step, lambda _: fail())

    with pytest.raises(HarnessError, match="has ended"):
        make(tmp_path)

    assert process.is_closed
    assert open_fds() <= before


@pytest.mark.parametrize("earlier", range(6))
def test_error_while_files_are_opened_closes_the_files_opened_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:
    before = open_fds()
    made: list[str] = []

    def count() -> None:
        if len(made) == earlier:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append("one")

    def make_pipe(pipe: Callable[[], tuple[int, int]] = os.pipe) -> tuple[int, int]:
        count()
        return pipe()

    def make_memory(name: str) -> Memory:
        count()
        return Memory(name)

    monkeypatch.setattr("os.pipe", make_pipe)
    monkeypatch.setattr("harness.shell.warm_shell.warm_shell.Memory", make_memory)

    with pytest.raises(OSError, match="Too many open files"):
        make(tmp_path)

    assert open_fds() <= before


def test_closed_shell_leaves_nothing_open(tmp_path: Path, process: FakeProcess) -> None:
    before = open_fds()
    shell = make(tmp_path)
    shell._files.trace.replace("+ a")

    shell.close()

    assert (process.is_closed, shell.trace) == (True, "+ a")
    assert open_fds() <= before


def test_root_whose_first_process_has_ended_is_gone(tmp_path: Path, process: FakeProcess) -> None:
    shell = make(tmp_path)
    control = RootControl()
    shell._control = control
    control.first_process = 0  # no process has this PID

    with pytest.raises(HarnessError, match="throw-away root has ended; its files are gone"):
        _ = shell.root

    control.close()
    shell.close()
    assert process.is_closed
