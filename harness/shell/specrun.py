"""Runs the cases of one spec file in a shell that forks for each of them.

The shell walks the file once, top to bottom, and asks which case comes next; what a group sets
up is therefore paid once, and a case costs one fork. Going back, or a case that ran too long,
costs a fresh shell.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.provisioning.command import spawn
from harness.shell.expectation import (
    PATH_FLAGS,
    Facts,
    PathFact,
    SentenceError,
    SubjectKind,
    VariableFact,
    parse_sentence,
    subject_value,
)
from harness.shell.sandbox import TOO_MANY_PROCESSES
from harness.shell.verdict import (
    Outcome,
    Problem,
    Streams,
    Told,
    ToldSentence,
    Verdict,
    judge,
    shorten,
)
from harness.shell.wire import Memory, RecordReader, send

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

    from harness.shell.expectation import Sentence
    from harness.shell.specfile import Case, SpecFile

RUNTIME = Path(__file__).with_name("spec_runtime.sh")
_FIRST_FD = 190
_PROCESS_LOOK_S = 0.25
_LEAVING_S = 10.0
_FINISH = 2147483647


@dataclass(frozen=True, kw_only=True)
class ShellSetting:
    """What a spec's shell starts with, the same for all files of a run."""

    argv: tuple[str, ...] = ("bash",)
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    output_limit_bytes: int = 1 << 30


@dataclass(frozen=True)
class _Files:
    """The anonymous files through which shell and harness pass text."""

    script: Memory
    out: Memory
    err: Memory
    stray_err: Memory
    stray_out: Memory
    hook_err: Memory
    stdin: Memory
    target: Memory
    preserved: Memory
    clock: Memory
    sleeps: Memory
    group_out: Memory
    group_err: Memory

    @classmethod
    def create(cls) -> _Files:
        return cls(*(Memory(name) for name in cls.__dataclass_fields__))

    def close(self) -> None:
        for name in self.__dataclass_fields__:
            memory: Memory = getattr(self, name)
            memory.close()


class SpecRun:
    """A spec file's shell; use it as a context manager."""

    def __init__(self, spec: SpecFile, setting: ShellSetting) -> None:
        self.spec = spec
        self.setting = setting
        self.late_problems: list[Problem] = []
        self._files = _Files.create()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: RecordReader | None = None
        self._control = -1
        self._idle = -1
        self._expected: int | None = None
        self._position = -1
        self._group_err_seen = 0
        self._doomed: dict[int, str] = {}
        self._doom: str | None = None

    def __enter__(self) -> SpecRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._kill()
        self._files.close()

    # --- running -------------------------------------------------------------------------

    def run(self, case: Case) -> Verdict:
        """Run one case; those before it that did not run are passed over."""
        started = time.monotonic()
        verdict = self._static_verdict(case) or self._run(case, started + self.setting.timeout_s)
        return Verdict(
            outcome=verdict.outcome,
            reason=verdict.reason,
            problems=verdict.problems,
            stray_stdout=verdict.stray_stdout,
            duration_s=time.monotonic() - started,
        )

    def expect_next(self, case: Case | None) -> None:
        """Tell the shell what comes next, so that it goes on while others are busy here."""
        if self._process is None or self._expected is not None:
            return
        if case is None:
            self._send_target(_FINISH)
        elif self._position < case.number and self._static_verdict(case) is None:
            self._send_target(case.number)

    def finish(self) -> list[Problem]:
        """Let the shell come to the end of the file; return what its last hooks complained of."""
        if self._process is not None and self._expected in {None, _FINISH}:
            if self._expected is None:
                self._send_target(_FINISH)
            told = Told()
            self._converse(_FINISH, told, time.monotonic() + self.setting.timeout_s)
        self._kill()
        problems, self.late_problems = self.late_problems, []
        return problems

    def _static_verdict(self, case: Case) -> Verdict | None:
        if case.is_skipped:
            return Verdict(outcome=Outcome.SKIPPED, reason="Temporarily skipped")
        if case.todo:
            return Verdict(outcome=Outcome.PENDING, reason="Not yet implemented")
        doom = self._doomed.get(case.number, self._doom)
        if doom is not None:
            return _failure(doom)
        return None

    def _run(self, case: Case, deadline: float) -> Verdict:
        if self._process is None or not self._is_ahead(case):
            self._kill()
            self._start()
        if self._expected != case.number:
            self._send_target(case.number)
        told = Told()
        ending = self._converse(case.number, told, deadline)
        self._position = case.number
        self._expected = None
        if ending is not None:
            return _failure(ending)
        verdict = judge(self.spec, case, told, self._streams())
        complaint = self._group_complaint()
        if complaint and not told.exit_status > 128:
            problem = Problem(line=0, text=f"A group wrote to stderr:\n{complaint}")
            return Verdict(outcome=Outcome.FAILED, problems=(*verdict.problems, problem))
        return verdict

    def _is_ahead(self, case: Case) -> bool:
        if self._expected is not None:
            return self._expected == case.number
        return self._position < case.number

    def _streams(self) -> Streams:
        files = self._files
        return Streams(
            stdout=files.out.text,
            stderr=files.err.text,
            stdout_bytes=files.out.size(),
            stderr_bytes=files.err.size(),
            stray_stdout=files.stray_out.text(),
            stray_stderr=files.stray_err.text(),
        )

    def _group_complaint(self) -> str:
        size = self._files.group_err.size()
        if size <= self._group_err_seen:
            return ""
        text = self._files.group_err.text(start=self._group_err_seen)
        self._group_err_seen = size
        return shorten(text.rstrip())

    # --- the conversation ----------------------------------------------------------------

    def _converse(self, number: int, told: Told, deadline: float) -> str | None:
        """Listen until case `number` has ended; return why it cannot, if it cannot."""
        assert self._reader is not None
        facts = Facts()
        while True:
            record = self._reader.next_record()
            if record is None:
                ending = self._wait_for_words(deadline)
                if ending is not None:
                    return ending
                continue
            name, fields = record
            if name == "end" and int(fields[0]) == number:
                told.exit_status = int(fields[1])
                return None
            if name == "eof":
                return None if number == _FINISH else self._not_reached()
            if name == "missed" and int(fields[0]) == number:
                return self._not_reached()
            if name == "lost":
                first, last = int(fields[0]), int(fields[1])
                why = self._lost_group(int(fields[2]))
                self._doomed.update(dict.fromkeys(range(first, last + 1), why))
                if first <= number <= last:
                    return why
            elif name == "the":
                self._hear(told, facts, fields)
                facts = Facts()
            elif name == "ask":
                self._answer(told, fields, deadline)
                facts = Facts()
            else:
                self._note(name, fields, told, facts)

    def _not_reached(self) -> str:
        return (
            "The example did not run: the statements around it, an 'if' or an 'exit', left it out."
        )

    def _lost_group(self, status: int) -> str:
        text = self._files.group_err.text(start=self._group_err_seen).rstrip()
        self._group_err_seen = self._files.group_err.size()
        shown = f" It wrote to stderr:\n{shorten(text)}" if text else ""
        return (
            f"A statement of the group around this example ended its shell with exit code "
            f"{status}, so its examples did not run.{shown}"
        )

    def _hear(self, told: Told, facts: Facts, fields: Sequence[str]) -> None:
        told.spoke = True
        told.sentences.append(
            ToldSentence(line=int(fields[0]), words=tuple(fields[1:]), facts=facts)
        )

    def _note(self, name: str, fields: Sequence[str], told: Told, facts: Facts) -> None:
        if name == "when":
            told.when, told.status = int(fields[0]), int(fields[1])
        elif name == "variable":
            facts.variable = VariableFact(
                value=fields[3] if fields[1] == "set" else None, attributes=fields[2]
            )
        elif name == "path":
            facts.path = PathFact(path=fields[0], flags=fields[1])
        elif name == "contents" and facts.path is not None:
            facts.path = PathFact(
                path=facts.path.path, flags=facts.path.flags, contents=fields[0]
            )
        elif name == "result":
            facts.result = fields[2].rstrip("\n") if fields[0] == "0" else None
            facts.complaints.extend(fields[1:2] if fields[1] else [])
        elif name == "answer":
            facts.answer = fields[0] == "0"
            facts.complaints.extend(fields[1:2] if fields[1] else [])
        elif name == "skip":
            told.skip_reason = fields[0] or "Temporarily skipped"
        elif name == "pending":
            told.pending_reason = fields[0] or "Temporarily pended"
            told.pending_after = len(told.problems)
        elif name == "misuse":
            told.spoke = True
            told.add_problem(int(fields[0]), fields[1])
        elif name == "assert":
            self._note_assertion(fields, told)
        elif name == "hook":
            self._note_hook(fields, told)
        elif name == "vanished":
            told.spoke = True
            told.add_problem(0, _deleted(fields[0]))
        elif name == "broken":
            told.add_problem(0, f"{fields[0]}, so the example did not run.")
        elif name == "repeated":
            self._doom = "The file repeats a block, as a loop around it would; a block runs once."
        elif name == "precheck":
            self._doom = f"The precheck of '{fields[0]}' failed ({fields[1]}): {fields[2]}"

    def _note_assertion(self, fields: Sequence[str], told: Told) -> None:
        told.spoke = True
        line, status, complaint = int(fields[0]), int(fields[1]), fields[2]
        shown = f"\n  stderr: {complaint.rstrip()}" if complaint else ""
        if status:
            told.add_problem(line, f"{self.spec.line(line)}\n  status: {status}{shown}")
        elif complaint:
            told.add_problem(line, f"{self.spec.line(line)}{shown}", is_warning=True)

    def _note_hook(self, fields: Sequence[str], told: Told) -> None:
        kind, code, status, complaint = fields
        name = "".join(part.capitalize() for part in kind.split("_"))
        shown = f"\n  stderr: {shorten(complaint.rstrip())}" if complaint else ""
        text = f"{name} '{code}' failed with status {status}.{shown}"
        told.spoke = True
        if kind in {"before_all", "after_all"}:
            self.late_problems.append(Problem(line=0, text=text))
        else:
            told.add_problem(0, text)

    # --- expectations that need the shell ------------------------------------------------

    def _answer(self, told: Told, fields: Sequence[str], deadline: float) -> None:
        """Ask the shell for what a sentence looks at, and let it run a matcher of its own."""
        facts = Facts()
        words = tuple(fields[1:])
        try:
            sentence = parse_sentence(words)
        except SentenceError:
            sentence = None
        if sentence is not None:
            self._gather(sentence, words, told, facts, deadline)
        self._request("done", "")
        self._hear(told, facts, fields)

    def _gather(
        self, sentence: Sentence, words: tuple[str, ...], told: Told, facts: Facts, deadline: float
    ) -> None:
        subject = sentence.subject
        if told.when:
            facts.stdout, facts.stderr = self._files.out.text(), self._files.err.text()
            facts.status = told.status
        if sentence.has_modifier("result") and told.when:
            self._ask("result", subject.argument, "result", told, facts, deadline)
        elif subject.kind is SubjectKind.VARIABLE:
            self._ask("variable", subject.argument, "variable", told, facts, deadline)
        elif subject.kind is SubjectKind.PATH:
            self._ask("path", subject.argument, "path", told, facts, deadline)
        value = None
        if sentence.has_modifier("contents", "entire contents") or (
            sentence.matcher.name in PATH_FLAGS and facts.path is None
        ):
            path = subject_value(sentence_without_modifiers(sentence), facts) or ""
            self._ask("path", path, "path", told, facts, deadline)
            if facts.path is not None and "r" in facts.path.flags and "d" not in facts.path.flags:
                self._ask("contents", path, "contents", told, facts, deadline)
        if sentence.matcher.is_custom:
            value = subject_value(sentence, facts)
            if value is not None:
                self._request("value", value)
            place = len(words) - len(sentence.matcher.arguments) + 2
            if sentence.matcher.name == "satisfy":
                self._ask("satisfy", str(place), "answer", told, facts, deadline)
            else:
                kind = "custom_not" if sentence.negated else "custom"
                self._ask(kind, str(place - 1), "answer", told, facts, deadline)

    def _request(self, operation: str, argument: str) -> None:
        send(self._control, f"{operation}\0{argument}\0")

    def _ask(
        self, operation: str, argument: str, answer: str, told: Told, facts: Facts, deadline: float
    ) -> None:
        assert self._reader is not None
        self._request(operation, argument)
        while True:
            record = self._reader.next_record()
            if record is None:
                if self._wait_for_words(deadline) is not None:
                    return
                continue
            self._note(*record, told, facts)
            if record[0] in {answer, "unknown"}:
                return

    # --- the process ---------------------------------------------------------------------

    def _start(self) -> None:
        files = self._files
        files.script.replace(self.spec.script)
        for memory in (
            files.group_out, files.group_err, files.preserved, files.clock, files.sleeps
        ):  # fmt: skip
            memory.replace("")
        self._group_err_seen = 0
        record_read, record_write = os.pipe()
        control_read, control_write = os.pipe()
        idle_read, idle_write = os.pipe()
        numbers = [
            record_write, control_read, files.out.fd, files.err.fd, files.stray_err.fd,
            files.stray_out.fd, files.hook_err.fd, files.stdin.fd, files.target.fd,
            files.preserved.fd, files.clock.fd, idle_read, files.sleeps.fd,
        ]  # fmt: skip
        env = {
            **self.setting.env,
            "BASH_ENV": str(RUNTIME),
            "HX_FDS": " ".join(map(str, numbers)),
        }
        try:
            self._process = spawn(
                self.setting.argv,
                stdin=files.script.fd,
                stdout=files.group_out.fd,
                stderr=files.group_err.fd,
                pass_fds=numbers,
                env=env,
                cwd=self.setting.cwd,
            )
        finally:
            for fd in (record_write, control_read, idle_read):
                os.close(fd)
            self._idle = idle_write
        self._reader = RecordReader(record_read)
        self._control = control_write
        self._position = -1
        self._expected = None

    def _send_target(self, number: int) -> None:
        if self._files.clock.size():  # each example begins with a clock at which nobody slept
            self._files.clock.replace("")
        self._expected = number
        send(self._control, f"{number}\n")

    def _wait_for_words(self, deadline: float) -> str | None:
        """Wait until the shell says more; return why it never will, if so."""
        assert self._reader is not None
        assert self._process is not None
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                self._kill()
                return (
                    f"The example ran longer than {self.setting.timeout_s:g} s; "
                    "it was ended with all that it had started."
                )
            if self._reader.wait(min(left, _PROCESS_LOOK_S)):
                if self._reader.read():
                    return None
                return self._died()
            if self._process.poll() is not None and not self._reader.wait(0):
                return self._died()

    def _died(self) -> str:
        assert self._process is not None
        with contextlib.suppress(Exception):
            self._process.wait(timeout=_LEAVING_S)
        code = self._process.poll()
        text = self._files.group_err.text(start=self._group_err_seen).rstrip()
        self._kill()
        why = f"The shell of this file ended early, with exit code {code}."
        if code == TOO_MANY_PROCESSES:
            why = (
                "There were more processes than an example may start, by this one or left behind "
                "by one before it; all of them were ended."
            )
        if text:
            why += f" It wrote to stderr:\n{shorten(text)}"
        if "syntax error" in text or "unexpected EOF" in text:
            self._doom = why
        return why

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        for fd in (self._control, self._idle):
            if fd >= 0:
                os.close(fd)
        self._control = self._idle = -1
        self._expected = None


def sentence_without_modifiers(sentence: Sentence) -> Sentence:
    return type(sentence)(sentence.subject, (), sentence.negated, sentence.matcher)


def _deleted(path: str) -> str:
    return (
        f"The code under test deleted {path}, a directory the system needs. In the sandbox that "
        "harmed only the rest of this file."
    )


def _failure(text: str) -> Verdict:
    return Verdict(outcome=Outcome.FAILED, problems=(Problem(line=0, text=text),))


__all__ = ["RUNTIME", "ShellSetting", "SpecRun"]
