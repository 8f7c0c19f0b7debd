"""Reports what each machine of this process does and, during long waits, its console output."""

from __future__ import annotations

import contextlib
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.progress import ProgressEvent, ProgressListener, Stage, deadline_words
from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.provisioning.wait import Clock, Deadline

#: Seconds between two reports about the same wait.
_REPORT_S = 60.0
_LOOK_S = 5.0
_CLOSE_S = 5.0
#: How many bytes of a console's latest output are kept between two reports.
_KEPT_BYTES = 8192
_SHOWN_LINES = 5
_LINE_LENGTH = 160
#: Colours, cursor movements, and all control characters except tab and newline.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class _Doing:
    """An activity. `since` is a monotonic time, and `until` is in seconds since the epoch."""

    what: str
    stage: Stage
    since: float
    until: float | None = None


class MachineActivity:
    """Reports what one machine does."""

    def __init__(self, subject: str, listener: ProgressListener, clock: Clock) -> None:
        self._subject = subject
        self._listener = listener
        self._clock = clock
        self._lock = threading.Lock()
        self._doing: list[_Doing] = []
        self._printed = b""
        self._line_count = 0
        self._told = clock.monotonic()

    @contextlib.contextmanager
    def during(
        self, what: str, deadline: Deadline | None = None, *, stage: Stage = Stage.BUSY
    ) -> Iterator[None]:
        """Report the activity `what`, a phrase such as 'waits for cloud-init', while the context is open."""
        until = None
        if deadline is not None:
            until = self._clock.now().timestamp() + deadline.remaining_s()
        self._doing.append(_Doing(what, stage, self._clock.monotonic(), until))
        self._tell()
        try:
            yield
        finally:
            self._doing.pop()
            if self._doing:
                self._tell()
            else:
                self._send(Stage.ENDED, "has ended", None)

    def note(self, what: str) -> None:
        """Report that the machine now does `what`.

        The deadline of the innermost `during` context does not change.
        """
        if self._doing:
            last = self._doing[-1]
            self._doing[-1] = _Doing(what, last.stage, self._clock.monotonic(), last.until)
            self._tell()

    def hear(self, chunk: bytes) -> None:
        """Record output of the console. The thread that reads the console calls this method."""
        with self._lock:
            self._line_count += chunk.count(b"\n")
            self._printed = (self._printed + chunk)[-_KEPT_BYTES:]

    def report_if_due(self) -> None:
        """Report the console's output if the last report about the machine is at least a minute old."""
        now = self._clock.monotonic()
        doing = list(self._doing)
        if not doing or now - self._told < _REPORT_S:
            return
        self._told = now
        with self._lock:
            printed, count = self._printed, self._line_count
            self._printed, self._line_count = b"", 0
        since, until = now - doing[-1].since, doing[-1].until
        words = f"{doing[-1].what} for {since:.0f} s{deadline_words(until, self._clock.now().timestamp())}"
        self._send(Stage.CONSOLE, f"{words}; {_render_console(printed, count)}", until)

    def _tell(self) -> None:
        doing = self._doing[-1]
        self._told = self._clock.monotonic()
        self._send(doing.stage, doing.what, doing.until)

    def _send(self, stage: Stage, message: str, until: float | None) -> None:
        # The message may contain text from a guest.
        shown = _CONTROL.sub("", message)
        self._listener(
            ProgressEvent(subject=self._subject, stage=stage, message=shown, until=until)
        )


def _render_console(printed: bytes, count: int) -> str:
    # If the guest overwrites a line, such as a percentage, each version of the line is shown.
    text = _CONTROL.sub("", printed.decode(errors="replace").replace("\r", "\n"))
    lines = [line.rstrip()[:_LINE_LENGTH] for line in text.splitlines() if line.strip()]
    if not lines:
        return "its console has printed nothing since"
    last = "".join(f"\n  | {line}" for line in lines[-_SHOWN_LINES:])
    return f"its console has printed {max(count, 1)} lines since, the last of them:{last}"


class Activities:
    """The activities of all machines of this process."""

    def __init__(self, listener: ProgressListener, clock: Clock = SYSTEM_CLOCK) -> None:
        self._listener = listener
        self._clock = clock

    def of(self, subject: str) -> MachineActivity:
        """Return the activity of a new machine."""
        return MachineActivity(subject, self._listener, self._clock)


@contextlib.contextmanager
def watched(activity: MachineActivity) -> Iterator[None]:
    """Send each due report about the machine, from a thread, until the context ends."""
    has_ended = threading.Event()

    def watch() -> None:
        while not has_ended.wait(_LOOK_S):
            activity.report_if_due()

    thread = threading.Thread(target=watch, name="activity", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join(_CLOSE_S)
