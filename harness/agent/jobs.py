"""What a request that is not answered at once is to the server."""

from __future__ import annotations

from .frames import CREDIT, DATA, ERROR, RESULT, encode, encode_message, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .loop import Loop
    from .port import Port
    from .processes import Processes

#: Consumed bytes are told in sums of about this, well below any window.
_CREDIT_STEP = 64 << 10


class Answers:
    """The way back to the host, and what jobs work with."""

    def __init__(self, loop: Loop, port: Port, processes: Processes) -> None:
        self.loop = loop
        self.port = port
        self.processes = processes
        self.jobs: dict[int, Job] = {}


class Job:
    """A request that goes on. Its methods ignore what it has no use for."""

    def __init__(self, answers: Answers, request: int) -> None:
        self.answers = answers
        self.request = request
        self._consumed = 0
        answers.jobs[request] = self

    # What the host says

    def feed(self, chunk: bytes) -> None:
        """Take more of what the host streams."""

    def feed_end(self) -> None:
        """Learn that the host streams no more."""

    def credit(self, count: int) -> None:
        """Learn that the host has consumed `count` bytes more."""

    def signal(self, number: int) -> None:
        """Take a signal for a command."""

    def cancel(self) -> None:
        """Stop, and say so."""
        self.finish({"cancelled": True})

    # What the server does

    def resume(self) -> None:
        """Go on, where there was no room before."""

    def drop(self) -> None:
        """Let go of everything; nobody is told."""

    # What a job does

    def output(self, kind: int, chunk: bytes) -> None:
        self.answers.port.output(encode(kind, self.request, chunk))

    def give_credit(self, count: int) -> None:
        """Tell the host in steps how much was consumed."""
        self._consumed += count
        if self._consumed >= _CREDIT_STEP:
            frame = encode(CREDIT, self.request, self._consumed.to_bytes(4, "big"))
            self._consumed = 0
            self.answers.port.answer(frame)

    def tell_progress(self, seen: dict[str, object]) -> None:
        """Say what was seen last, for the sentence that the host would raise at its deadline."""
        self.output(DATA, to_json(seen))

    def finish(self, result: dict[str, object]) -> None:
        """Answer, after all of this job's output."""
        self._end(RESULT, result)

    def finish_with(self, result: bytes) -> None:
        """Answer with what is JSON already, and short."""
        if self.answers.jobs.pop(self.request, None) is not None:
            self.drop()
            self.answers.port.output(encode(RESULT, self.request, result))

    def fail(self, error: Exception) -> None:
        """Answer why it could not be done."""
        self._end(ERROR, {"message": describe(error)})

    def _end(self, kind: int, answer: dict[str, object]) -> None:
        if self.answers.jobs.pop(self.request, None) is None:
            return
        try:
            self.drop()
            message = encode_message(kind, self.request, to_json(answer))
        except Exception as error:
            told = to_json({"message": describe(error)})
            message = encode_message(ERROR, self.request, told)
        self.answers.port.output(message)


def describe(error: BaseException) -> str:
    """Return an error as a person reads it."""
    if isinstance(error, OSError) and error.strerror:
        about = f" '{error.filename}'" if error.filename else ""
        return f"{error.strerror}{about}"
    return f"{type(error).__name__}: {error}"
