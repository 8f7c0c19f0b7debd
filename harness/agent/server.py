"""Answers the requests of the host, all in one thread."""

from __future__ import annotations

import functools
import time

from . import PROTOCOL, frames
from .commands import Command, Sink
from .files import FileRead, FileWait, FileWrite, RangesRead
from .frames import parse
from .jobs import Answers, Job, describe
from .loop import NOBODY, Loop
from .port import Port
from .units import UnitWait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .port import PortDevice
    from .processes import Processes
    from .system import System

_NO_REQUEST = 0


class Server:
    """The agent, which answers the frames that arrive at its port."""

    def __init__(
        self, device: PortDevice, *, processes: Processes, system: System, digest: str
    ) -> None:
        self.loop = Loop(self._on_error)
        self._system = system
        self._digest = digest
        self._boot_id = system.boot_id()
        self._session = ""
        self._set_nonce(None)
        self._parts: dict[int, bytes] = {}
        self._port = Port(
            self.loop,
            device,
            on_frame=self._on_frame,
            on_stream_error=self._on_stream_error,
            on_room=self._on_room,
        )
        self._answers = Answers(self.loop, self._port, processes)
        self._jobs = self._answers.jobs
        self._verbs: dict[int, Callable[[int, bytes], None]] = {
            frames.HELLO: self._hello,
            frames.PING: self._ping,
            frames.REMEMBER: self._remember,
            frames.SETTLE: self._settle,
            frames.RUN: self._run,
            frames.SIGNAL: self._signal,
            frames.CANCEL: self._cancel,
            frames.RESIZE: self._resize,
            frames.READ: self._read,
            frames.WRITE: self._write,
            frames.WAIT_FILE: self._wait_file,
            frames.WAIT_UNIT: self._wait_unit,
            frames.READ_RANGES: self._read_ranges,
            frames.MORE: self._more,
            frames.DATA: self._data,
            frames.DATA_END: self._data_end,
            frames.CREDIT: self._credit,
        }

    def serve(self) -> None:
        """Answer requests in an endless loop."""
        while True:
            self.loop.run_once()

    # Input

    def _on_frame(self, kind: int, request: int, payload: bytes) -> None:
        verb = self._verbs.get(kind)
        if verb is None:
            # The host expects no answer: the frame is for the loader, or is itself an answer.
            return
        parts = self._parts.pop(request, None)
        if parts is not None and kind != frames.MORE:
            payload = parts + payload
        elif parts is not None:
            self._parts[request] = parts
        loop = self.loop
        loop.owner = request
        try:
            verb(request, payload)
        except Exception as error:
            if request in self._jobs:
                self._on_error(request, error)
            else:
                self._answer(frames.ERROR, request, {"message": describe(error)})
        loop.owner = NOBODY

    def _on_error(self, request: int, error: Exception) -> None:
        """Report an error of one request to the host. Other requests continue."""
        if request == NOBODY:
            # An error of the port ends the agent, and systemd starts a new agent.
            raise error
        job = self._jobs.get(request)
        if job is not None:
            job.fail(error)

    def _on_stream_error(self, message: str) -> None:
        self._answer(frames.ERROR, _NO_REQUEST, {"message": message})

    def _on_room(self) -> None:
        for request, job in list(self._jobs.items()):
            self.loop.owner = request
            try:
                job.resume()
            except Exception as error:
                self._on_error(request, error)

    def _answer(self, kind: int, request: int, answer: dict[str, object]) -> None:
        self._port.answer(frames.encode_message(kind, request, frames.to_json(answer)))

    def _result(self, request: int, result: dict[str, object]) -> None:
        self._answer(frames.RESULT, request, result)

    # Sessions

    def _hello(self, request: int, payload: bytes) -> None:
        session = str(parse(payload)["session"])
        if session != self._session:
            # The client that started these jobs is gone.
            for job in list(self._jobs.values()):
                job.drop()
            self._jobs.clear()
            self._parts.clear()
            self._port.drop_output()
            self._session = session
        # The answer repeats the request's JSON with more keys, so it needs no encoder in a new
        # clone.
        answer = payload.rstrip()[:-1] + self._welcome
        self._port.answer(frames.SYNC_FRAME + frames.encode(frames.RESULT, request, answer))

    def _ping(self, request: int, _payload: bytes) -> None:
        self._port.answer(frames.encode(frames.RESULT, request, b"{}"))

    def _remember(self, request: int, payload: bytes) -> None:
        self._set_nonce(str(parse(payload)["nonce"]))
        self._system.prepare()
        # The host saves a checkpoint after this request. Import the modules that every clone would
        # have to import.
        import ctypes  # noqa: F401, PLC0415
        import socket  # noqa: F401, PLC0415

        from . import terminal  # noqa: F401, PLC0415

        self._result(request, {})

    def _set_nonce(self, nonce: str | None) -> None:
        welcome = {
            "protocol": PROTOCOL,
            "digest": self._digest,
            "boot_id": self._boot_id,
            "has_nonce": nonce is not None,
        }
        self._welcome = b"," + frames.to_json(welcome)[1:]
        self._nonce = b"null" if nonce is None else frames.to_json(nonce)

    def _settle(self, request: int, payload: bytes) -> None:
        asked = parse(payload)
        before = self._system.wall_ns()
        self._system.set_wall_ns(asked["wall_ns"])
        self._system.add_entropy(bytes.fromhex(asked["entropy"]))
        if asked.get("hostname") is not None:
            self._system.set_hostname(asked["hostname"])
        if asked.get("instance_id") is not None:
            self._system.set_instance_id(asked["instance_id"])
        answer = b'{"nonce":%b,"before_ns":%d,"wall_ns":%d}' % (
            self._nonce,
            before,
            self._system.wall_ns(),
        )
        self._port.answer(frames.encode(frames.RESULT, request, answer))

    # Commands

    def _run(self, request: int, payload: bytes) -> None:
        head, _, stdin = payload.partition(b"\n")
        RunJob(self._answers, request, parse(head), stdin)

    def _signal(self, request: int, payload: bytes) -> None:
        job = self._jobs.get(request)
        if job is not None:
            job.signal(int(payload))

    def _cancel(self, request: int, _payload: bytes) -> None:
        job = self._jobs.get(request)
        if job is not None:
            job.cancel()

    def _resize(self, request: int, payload: bytes) -> None:
        job = self._jobs.get(request)
        if job is not None:
            from .terminal import size_of  # noqa: PLC0415 - only terminals need this module

            job.resize(size_of(parse(payload)))

    # Streams

    def _more(self, request: int, payload: bytes) -> None:
        parts = self._parts.pop(request, b"") + payload
        if len(parts) > frames.MAX_MESSAGE:
            raise frames.ProtocolError(
                f"A request has more than {frames.MAX_MESSAGE} bytes, not counting its streams."
            )
        self._parts[request] = parts

    def _data(self, request: int, payload: bytes) -> None:
        job = self._jobs.get(request)
        if job is not None:
            job.feed(payload)

    def _data_end(self, request: int, _payload: bytes) -> None:
        job = self._jobs.get(request)
        if job is not None:
            job.feed_end()

    def _credit(self, request: int, payload: bytes) -> None:
        job = self._jobs.get(request)
        if job is not None:
            job.credit(int.from_bytes(payload, "big"))

    # Files and units

    def _read(self, request: int, payload: bytes) -> None:
        FileRead(self._answers, request, parse(payload)["path"])

    def _read_ranges(self, request: int, payload: bytes) -> None:
        asked = parse(payload)
        RangesRead(self._answers, request, asked["path"], asked["ranges"])

    def _write(self, request: int, payload: bytes) -> None:
        head, _, content = payload.partition(b"\n")
        asked = parse(head)
        job = FileWrite(self._answers, request, asked["path"], asked["mode"])
        if content:
            job.feed(content)
        if not asked["has_more"]:
            job.feed_end()

    def _wait_file(self, request: int, payload: bytes) -> None:
        FileWait(self._answers, request, parse(payload)["path"])

    def _wait_unit(self, request: int, payload: bytes) -> None:
        asked = parse(payload)
        UnitWait(self._answers, request, asked["unit"], asked["active"])


class RunJob(Job, Sink):
    """A command whose output is sent to the host as soon as the command writes it."""

    def __init__(
        self, answers: Answers, request: int, asked: dict[str, object], stdin: bytes
    ) -> None:
        Job.__init__(self, answers, request)
        self._window = frames.OUTPUT_WINDOW
        self._started = time.monotonic()
        # "none", "all" (the request contains all of stdin) or "more" (more frames with stdin
        # follow).
        self._stdin_form = asked["stdin"]
        self._command: Command | None = None
        argv, env, limit_s = asked["argv"], asked.get("env"), asked["limit_s"]
        if not isinstance(argv, list) or not argv or not isinstance(limit_s, (int, float)):
            raise frames.ProtocolError("A command needs 'argv' and 'limit_s', a limit in seconds.")
        start: Callable[..., Command] = Command
        terminal = asked.get("terminal")
        if terminal is not None:
            from .terminal import TerminalCommand, size_of  # noqa: PLC0415 - rarely needed

            fallback = asked.get("fallback")
            start = functools.partial(
                TerminalCommand,
                size=size_of(terminal),
                fallback=fallback if isinstance(fallback, list) else None,
            )
        command = start(
            answers.loop,
            answers.processes,
            self,
            argv,
            env=env if isinstance(env, dict) else None,
            limit_s=max(0.0, limit_s),
            stdin=None if self._stdin_form == "none" else stdin,
            has_more_stdin=self._stdin_form == "more",
        )
        self._command = command

    # Sink

    def has_room(self) -> bool:
        return self._window > 0 and self.answers.port.has_room

    def write(self, kind: int, chunk: bytes) -> None:
        self._window -= len(chunk)
        self.output(kind, chunk)

    def took_stdin(self, count: int) -> None:
        if self._stdin_form == "more":
            self.give_credit(count)

    def ended(self, exit_code: int, *, timed_out: bool) -> None:
        # No answer is more frequent, so its JSON is written without an encoder.
        self.finish_with(
            b'{"exit_code":%d,"timed_out":%b,"duration_s":%.6f}'
            % (
                exit_code,
                b"true" if timed_out else b"false",
                time.monotonic() - self._started,
            )
        )

    # Job

    def feed(self, chunk: bytes) -> None:
        if self._command is not None:
            self._command.feed(chunk)

    def feed_end(self) -> None:
        if self._command is not None:
            self._command.feed_end()

    def credit(self, count: int) -> None:
        self._window += count
        self.resume()

    def resume(self) -> None:
        if self._command is not None:
            self._command.resume()

    def signal(self, number: int) -> None:
        if self._command is not None:
            self._command.signal(number)

    def resize(self, size: tuple[int, int]) -> None:
        if self._command is not None:
            self._command.resize(size)

    def drop(self) -> None:
        if self._command is not None:
            self._command.kill()
