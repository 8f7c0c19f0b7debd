"""Measures the time until the prompt of `harness shell`, and the time that `harness shell -- CMD` takes."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.provisioning.command import end, spawn
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_LIMIT_S = 300.0
_END_S = 60.0
_READ_BYTES = 4096
#: The end of root's prompt.
_PROMPT = b"# "
#: A terminal echoes the typed command; because of the quotes, the echo differs from the answer.
_TYPED, _ANSWER = b"echo answ''ered\n", b"answered\r\n"
#: Allows Python to cache bytecode, because a person who runs the harness again has this cache.
_KEEPS_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
#: The maximum number of characters of output in an error.
_SHOWN = 2000


@dataclass(frozen=True, kw_only=True)
class PromptTimes:
    """Seconds from the start of `harness shell` to the prompt, and to the output of the typed command."""

    prompt_s: float
    answer_s: float


def measure_prompt(words: Sequence[str]) -> PromptTimes:
    """Start `harness shell` with options, type a command at the prompt, and leave the shell.

    Raises HarnessError with the shell's output if the shell shows no prompt, or fails after the
    prompt.
    """
    started = time.monotonic()
    with _started(words) as terminal:
        _read_until(terminal, lambda printed: printed.endswith(_PROMPT))
        prompt_s = time.monotonic() - started
        os.write(terminal, _TYPED)
        _read_until(terminal, lambda printed: _ANSWER in printed)
        answer_s = time.monotonic() - started
        os.write(terminal, b"exit\n")
        _read_until(terminal, None)
    return PromptTimes(prompt_s=prompt_s, answer_s=answer_s)


def seconds_of_command(words: Sequence[str]) -> float:
    """Return the seconds that `harness shell -- true` takes with the options `words`.

    Raises HarnessError with the command's output if the command fails.
    """
    started = time.monotonic()
    with _started([*words, "--", "true"]) as terminal:
        _read_until(terminal, None)
    return time.monotonic() - started


@contextlib.contextmanager
def _started(words: Sequence[str]) -> Iterator[int]:
    """Start `harness shell` in a terminal; raise HarnessError if the shell's exit code is not 0."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0):  # noqa: PTH123 - pathlib opens no descriptor
        try:
            argv = [sys.executable, "-m", "harness.cli", "shell", *words]
            process = spawn(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=_KEEPS_BYTECODE)
        finally:
            os.close(theirs)
        is_left = True
        try:
            yield ours
            is_left = False
        finally:
            code = end(process, grace_s=0.0 if is_left else _END_S)
        if code:
            raise HarnessError(
                f"`harness shell {' '.join(words)}` ended with the exit code {code}."
            )


def _read_until(terminal: int, is_over: Callable[[bytes], bool] | None) -> None:
    """Read output until `is_over` accepts the output, or to the output's end if `is_over` is None.

    Raises HarnessError with the output if the time limit passes first, or if the output ends before
    `is_over` is true.
    """
    deadline, printed = Deadline.after(_LIMIT_S), b""
    poll = select.poll()
    poll.register(terminal, select.POLLIN)
    while is_over is None or not is_over(printed):
        chunk = b""
        if poll.poll(deadline.remaining_s() * 1000):
            # A read at the end of a terminal's output raises an error.
            with contextlib.suppress(OSError):
                chunk = os.read(terminal, _READ_BYTES)
            if not chunk and is_over is None:
                return
        if not chunk:
            raise HarnessError(
                "`harness shell` was expected to continue, but it ended or hangs after "
                f"{printed[-_SHOWN:].decode(errors='replace')!r}."
            )
        printed += chunk
