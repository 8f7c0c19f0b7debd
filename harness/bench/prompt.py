"""How long a person waits for the prompt of `harness shell`, and a script for a command in it."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import sys
import time
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.provisioning.command import end, spawn
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LIMIT_S = 300.0
_END_S = 60.0
_READ_BYTES = 4096
#: The end of root's prompt.
_PROMPT = b"# "
#: What the last lines of an error have.
_SHOWN = 2000


def seconds_to_prompt(words: Sequence[str]) -> float:
    """Return the seconds from the start of `harness shell`, with these options, to its prompt.

    Raises HarnessError with what it printed where it shows none, or fails afterwards.
    """
    started = time.monotonic()
    with _started(words) as terminal:
        _read_until(terminal, _PROMPT)
        taken_s = time.monotonic() - started
        os.write(terminal, b"exit\n")
        _read_until(terminal, None)
    return taken_s


def seconds_of_command(words: Sequence[str]) -> float:
    """Return the seconds that `harness shell -- true`, with these options, takes as a whole.

    Raises HarnessError with what it printed where it fails.
    """
    started = time.monotonic()
    with _started([*words, "--", "true"]) as terminal:
        _read_until(terminal, None)
    return time.monotonic() - started


@contextlib.contextmanager
def _started(words: Sequence[str]) -> Iterator[int]:
    """Start `harness shell` in a terminal, and end it; it has to end well within the context."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0):  # noqa: PTH123 - of a descriptor
        try:
            argv = [sys.executable, "-m", "harness.cli", "shell", *words]
            process = spawn(argv, stdin=theirs, stdout=theirs, stderr=theirs)
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


def _read_until(terminal: int, awaited: bytes | None) -> None:
    """Read until the output ends with `awaited`, or to the end of the output where that is None.

    Raises HarnessError with the output where that does not come.
    """
    deadline, printed = Deadline.after(_LIMIT_S), b""
    poll = select.poll()
    poll.register(terminal, select.POLLIN)
    while awaited is None or not printed.endswith(awaited):
        chunk = b""
        if poll.poll(deadline.remaining_s() * 1000):
            # At its end, a terminal gives an error.
            with contextlib.suppress(OSError):
                chunk = os.read(terminal, _READ_BYTES)
            if not chunk and awaited is None:
                return
        if not chunk:
            raise HarnessError(
                f"`harness shell` was expected to go on, but it ended or hangs after "
                f"{printed[-_SHOWN:].decode(errors='replace')!r}."
            )
        printed += chunk
