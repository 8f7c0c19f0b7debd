"""Jobs: requests that the agent does not answer at once."""

from __future__ import annotations

from .frames import CREDIT, DATA, ERROR, RESULT, encode, encode_message, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .loop import Loop
    from .port import Port
    from .processes import Processes

#: Consumed bytes are reported in steps of this size, which is much smaller than any stream's
#: window.
_CREDIT_STEP = 64 << 10


class Answers:
    """The resources that jobs use: the loop, the port to the host, and processes."""

    def __init__(self, loop: Loop, port: Port, processes: Processes) -> None:
        self.loop = loop
        self.port = port
        self.processes = processes
        self.jobs: dict[int, Job] = {}


class Job:
    """A request that is in progress. Most methods of this base class do nothing."""

    def __init__(self, answers: Answers, request: int) -> None:
        self.answers = answers
        self.request = request
        self._consumed = 0
        answers.jobs[request] = self

    # Methods that the server calls for frames from the host

    def feed(self, chunk: bytes) -> None:
        """Receive a part of the input stream that the host sends for this request."""

    def feed_end(self) -> None:
        """Receive the end of the input stream that the host sends for this request."""

    def credit(self, count: int) -> None:
        """Record that the host has consumed `count` more bytes."""

    def signal(self, number: int) -> None:
        """Send a signal to the command that this request has started."""

    def resize(self, size: tuple[int, int]) -> None:
        """Set the rows and columns of the command's terminal."""

    def cancel(self) -> None:
        """Stop the job, and answer that the job was cancelled."""
        self.finish({"cancelled": True})

    # Other methods that the server calls

    def resume(self) -> None:
        """Continue the paused job, because the port's queue has room or the host accepts more output."""

    def drop(self) -> None:
        """Release all resources of this job, without an answer to the host."""

    # Methods that the job itself calls

    def output(self, kind: int, chunk: bytes) -> None:
        self.answers.port.output(encode(kind, self.request, chunk))

    def give_credit(self, count: int) -> None:
        """Report to the host how many bytes were consumed, in steps of at least `_CREDIT_STEP` bytes."""
        self._consumed += count
        if self._consumed >= _CREDIT_STEP:
            frame = encode(CREDIT, self.request, self._consumed.to_bytes(4, "big"))
            self._consumed = 0
            self.answers.port.answer(frame)

    def report_progress(self, seen: dict[str, object]) -> None:
        """Send an observation to the host.

        The host shows the last observation if the wait's deadline passes.
        """
        self.output(DATA, to_json(seen))

    def finish(self, result: dict[str, object]) -> None:
        """Send `result` as the answer to the request, after all output of this job."""
        self._end(RESULT, result)

    def finish_with(self, result: bytes) -> None:
        """Answer the request with a result that is already JSON and fits into one frame."""
        if self.answers.jobs.pop(self.request, None) is not None:
            self.drop()
            self.answers.port.output(encode(RESULT, self.request, result))

    def fail(self, error: Exception) -> None:
        """Send the error as the answer to the request."""
        self._end(ERROR, {"message": describe(error)})

    def _end(self, kind: int, answer: dict[str, object]) -> None:
        if self.answers.jobs.pop(self.request, None) is None:
            return
        try:
            self.drop()
            message = encode_message(kind, self.request, to_json(answer))
        except Exception as error:
            text = to_json({"message": describe(error)})
            message = encode_message(ERROR, self.request, text)
        self.answers.port.output(message)


def describe(error: BaseException) -> str:
    """Return the text that describes an exception to the host."""
    if isinstance(error, OSError) and error.strerror:
        about = f" '{error.filename}'" if error.filename else ""
        return f"{error.strerror}{about}"
    return f"{type(error).__name__}: {error}"
