"""Runs the cases of one spec file in a shell that forks for each case.

The shell runs the spec file once, from top to bottom, and asks the harness for the next case. The
set-up of a group runs only once, and each case costs one fork. The harness starts a new shell to
run a case before the shell's position in the file, and after a case that exceeded the time limit.

The module is long because sending, reading and answering share the state of the conversation with
the shell.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.shell.lexer import quote_on_lines
from harness.shell.process import (
    OutputFiles,
    ShellFiles,
    ShellProcess,
    ShellSetting,
    name_signal,
)
from harness.shell.protocol import make_pipes, records_in, send
from harness.shell.spec.record_handlers import EVENTS, FACTS
from harness.shell.spec.sentences import (
    PATH_FLAGS,
    Facts,
    SentenceError,
    SubjectKind,
    parse_sentence,
    subject_value,
)
from harness.shell.spec.spec_file import NOT_IMPLEMENTED
from harness.shell.spec.verdict import (
    ExampleRecord,
    Outcome,
    Problem,
    RecordedSentence,
    Streams,
    Verdict,
    judge,
    shorten,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.shell.spec.sentences import Sentence
    from harness.shell.spec.spec_file import Case, SpecFile

RUNTIME = Path(__file__).with_name("spec_runtime.sh")
POSIX_RUNTIME = Path(__file__).with_name("posix") / "runtime.sh"
_POSIX_PIPES = 18
_FINISH = 2147483647
_SENT_AHEAD = 2
_SET_DISTANCE = 11
"""The difference between descriptor numbers of the first and the second set of outputs."""
_SPOKE = (
    "The code under test wrote to a descriptor of the harness, 190 or above; the code and all "
    "its processes were ended."
)
_NOT_REACHED = (
    "The example did not run: a statement around it, such as an 'if' or an 'exit', skipped it."
)
_FIRST_RECORDS = 209
"""The descriptor for records of an example that writes to the first set of outputs."""
_TRACE = re.compile(r"^(--- .*\n)?(\++)(?=\+ )", re.MULTILINE)
_TRACE_END = re.compile(
    r"^\++ (?:__hx_status=\d+|case .* in|(?:builtin )?set \+x)\n", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class _Target:
    """A case that was sent to the shell, and the set of output files to which the case writes."""

    number: int
    output_set: int


class _UnansweredError(Exception):
    """The example's shell ended before it answered.

    `ending` is the reason why the shell of the whole file has ended, or None if only the example's
    shell has ended.
    """

    def __init__(self, ending: str | None) -> None:
        super().__init__(ending)
        self.ending = ending


class SpecRun:
    """Runs the cases of a spec file in its shell; call `close` at the end."""

    def __init__(self, spec: SpecFile, setting: ShellSetting) -> None:
        self.spec = spec
        self.setting = setting
        self.trace = ""
        self.late_problems: list[Problem] = []
        self._files = ShellFiles.create()
        self._process: ShellProcess | None = None
        self._answers = -1
        self._sent: deque[_Target] = deque()
        self._sets = itertools.cycle((0, 1))
        self._position = -1
        self._is_ready = False
        self._ended_in_helpers = False
        self._ending_on_entry = ""
        self._hook = ""
        self._unanswered_end: tuple[str, list[str]] | None = None
        self._records_read = 0
        self._failures: dict[int, str] = {}
        self._failure_of_all: str | None = None

    def close(self) -> None:
        self._kill()
        self._files.close()

    # --- running -------------------------------------------------------------------------

    def enter(self) -> None:
        """Start the shell, and wait until the shell has sourced the helper files or has ended.

        Raises RequirementError if the kernel refuses the sandbox.
        """
        deadline = time.monotonic() + self.setting.timeout_s
        try:
            process = self._start()
            while not self._is_ready:
                record = process.reader.next_record()
                if record is not None:
                    self._note(*record, ExampleRecord(), Facts())
                else:
                    ending = self._wait_for_words(process, deadline)
                    if ending is not None:
                        self._ending_on_entry = ending
                        return
        except (ValueError, IndexError):
            self._kill()
            self._ending_on_entry = _SPOKE
        except BaseException:
            self._kill()
            raise

    def run(self, case: Case, following: Case | None = None) -> Verdict:
        """Run one case; skip the earlier cases that did not run.

        While this process determines the verdict on the case, the shell already runs the case
        `following`.
        """
        verdict = self._static_verdict(case)
        if verdict is not None:
            return verdict
        ending, self._ending_on_entry = self._ending_on_entry, ""
        if ending:
            return self._verdict_on_ending(ending)
        try:
            return self._run(case, following, time.monotonic() + self.setting.timeout_s)
        except BaseException:  # for example, an exception of another plugin's time limit
            self._kill()
            raise

    def expect_next(self, case: Case) -> None:
        """Send the next case to the shell, which starts the case while this process is busy."""
        last = self._sent[-1].number if self._sent else self._position
        if (
            self._process is not None
            and last < case.number
            and len(self._sent) < _SENT_AHEAD
            and self._static_verdict(case) is None
        ):
            self._send_target(self._process, case.number)

    def finish(self) -> list[Problem]:
        """Let the shell run to the end of the file; return the problems of the file's last hooks."""
        process = self._process
        if process is not None and not self._sent:
            self._send_target(process, _FINISH)
            deadline = time.monotonic() + self.setting.timeout_s
            try:
                self._converse(process, _FINISH, ExampleRecord(), deadline)
            except (ValueError, IndexError):
                self._kill()
                self.late_problems.append(Problem(line=0, text=_SPOKE))
            stderr = process.take_complaint()
            if stderr:
                self.late_problems.append(_group_problem(stderr))
        self._kill()
        problems, self.late_problems = self.late_problems, []
        return problems

    def _static_verdict(self, case: Case) -> Verdict | None:
        if case.is_skipped:
            return Verdict(outcome=Outcome.SKIPPED, reason="Temporarily skipped")
        if case.todo:
            return Verdict(outcome=Outcome.PENDING, reason=NOT_IMPLEMENTED)
        failure = self._failures.get(case.number, self._failure_of_all)
        if failure is not None:
            return _failure(failure)
        return None

    def _verdict_on_ending(self, ending: str) -> Verdict:
        verdict = _failure(self._failure_of_all or ending)
        if self._ended_in_helpers and self._failure_of_all is None:
            self._failure_of_all = (
                "The example did not run: the shell of this file ended while it read its "
                "helper files; the first failed example of the file shows the reason."
            )
        return verdict

    def _run(self, case: Case, following: Case | None, deadline: float) -> Verdict:
        while self._sent and self._sent[0].number < case.number:
            self._sent.popleft()
        process = self._process
        if process is None or not self._is_ahead(case):
            self._kill()
            process = self._start()
        process.begin()
        if not self._sent:
            self._send_target(process, case.number)
        if following is not None:
            self.expect_next(following)
        outputs = self._files.outputs[self._sent[0].output_set]
        self._records_read = 0
        reported = ExampleRecord()
        try:
            ending = self._converse(process, case.number, reported, deadline)
            self._read_records(reported)
        except (ValueError, IndexError):
            self._kill()
            ending = _SPOKE
        self._position = case.number
        if self._sent:
            self._sent.popleft()
        if ending is not None:
            return self._verdict_on_ending(ending)
        verdict = judge(self.spec, case, reported, _streams(outputs, case))
        if reported.group_stderr:
            problem = _group_problem(reported.group_stderr)
            return Verdict(outcome=Outcome.FAILED, problems=(*verdict.problems, problem))
        return verdict

    def _is_ahead(self, case: Case) -> bool:
        if self._sent:
            return self._sent[0].number == case.number
        return self._position < case.number

    # --- the conversation ----------------------------------------------------------------

    def _converse(
        self, process: ShellProcess, number: int, reported: ExampleRecord, deadline: float
    ) -> str | None:
        """Read messages until case `number` has ended; return None, or the reason why the case did not run."""
        while True:
            record = self._unanswered_end or process.reader.next_record()
            self._unanswered_end = None
            if record is None:
                ending = self._wait_for_words(process, deadline)
                if ending is not None:
                    return ending
                continue
            name, fields = record
            if name == "end" and int(fields[0]) == number:
                reported.exit_status = int(fields[1])
                return None
            if name == "eof":
                return None if number == _FINISH else _NOT_REACHED
            if name == "missed" and int(fields[0]) == number:
                return _NOT_REACHED
            if name == "lost":
                until, first, last = (int(field) for field in fields[:3])
                status, line, hook_err = fields[3:]
                why = self._lost_group(status, line, *self._take_ending(process, hook_err, until))
                self._failures.update(dict.fromkeys(range(first, last + 1), why))
                if first <= number <= last:
                    return why
                if status != "0":
                    self.late_problems.append(Problem(line=0, text=why))
            elif name == "ask":
                self._read_records(reported)
                facts = Facts()
                ending = self._answer(process, reported, facts, fields, deadline)
                if ending is not None:
                    return ending
                self._add_sentence(reported, facts, fields)
            else:
                self._note(name, fields, reported, Facts())

    def _read_records(self, reported: ExampleRecord) -> None:
        """Read the records that the example has written to its file since the last call."""
        if not self._sent:
            return
        data = self._files.outputs[self._sent[0].output_set].records.data(start=self._records_read)
        self._records_read += len(data)
        facts = Facts()
        for name, fields in records_in(data):
            if name == "the":
                self._add_sentence(reported, facts, fields)
                facts = Facts()
            else:
                self._note(name, fields, reported, facts)

    def _lost_group(self, status: str, line: str, hook: str, text: str) -> str:
        what = hook or "A statement"
        shown = f" It wrote to stderr:\n{shorten(text)}" if text else ""
        return (
            f"{what} of the group that begins at line {line} ended its shell with exit code "
            f"{status}, so nothing that follows in the group was run.{shown}"
        )

    def _take_ending(
        self, process: ShellProcess, hook_err: str, until: int | None = None
    ) -> tuple[str, str]:
        """Return the hook that ended its shell ('' for none), and this shell's stderr."""
        hook, self._hook = self._hook, ""
        text = process.take_complaint(until)
        if hook:
            text = f"{hook_err}{text}".rstrip()
        return hook, text

    def _add_sentence(self, reported: ExampleRecord, facts: Facts, fields: Sequence[str]) -> None:
        reported.has_expectation = True
        reported.sentences.append(
            RecordedSentence(line=int(fields[0]), words=tuple(fields[1:]), facts=facts)
        )

    def _note(
        self, name: str, fields: Sequence[str], reported: ExampleRecord, facts: Facts
    ) -> None:
        if name in FACTS:
            FACTS[name](facts, fields)
        elif name in EVENTS:
            EVENTS[name](reported, fields)
        elif name == "assert":
            self._note_assertion(fields, reported)
        elif name == "hook":
            self._note_hook(fields, reported)
        elif name in {"hooking", "hooked"}:
            self._note_hook_start(fields, reported)
        elif name == "group_stderr" and self._process is not None:
            reported.group_stderr = self._process.take_complaint(int(fields[0]))
        elif name == "end_message" and self._process is not None:
            reported.end_message = self._process.take_complaint(int(fields[0]))
        elif name == "repeated":
            self._failure_of_all = (
                "The file runs a block again, for example in a loop; a block may run only once."
            )
            self.late_problems.append(Problem(line=0, text=self._failure_of_all))
        elif name == "ready":
            self._is_ready = True
        elif name == "precheck":
            self._failure_of_all = (
                f"The precheck of '{fields[0]}' failed ({fields[1]}): {fields[2]}"
            )

    def _note_assertion(self, fields: Sequence[str], reported: ExampleRecord) -> None:
        reported.has_expectation = True
        line, status, stderr = int(fields[0]), int(fields[1]), fields[2]
        shown = f"\n  stderr: {stderr.rstrip()}" if stderr else ""
        if status:
            reported.add_problem(line, f"{self.spec.line(line)}\n  status: {status}{shown}")
        elif stderr:
            reported.add_problem(line, f"{self.spec.line(line)}{shown}", is_warning=True)

    def _note_hook_start(self, fields: Sequence[str], reported: ExampleRecord) -> None:
        """Remember which hook runs, in case the hook ends its shell; empty `fields` mean that no hook runs."""
        reported.hook = self._hook = ""
        if fields:
            name = _hook_name(fields[0], fields[1])
            if fields[0] in {"before_all", "after_all"}:
                self._hook = name
            else:
                reported.hook = f"{name} exited"

    def _note_hook(self, fields: Sequence[str], reported: ExampleRecord) -> None:
        kind, code, status, stderr, group_line = fields
        self._note_hook_start((), reported)
        shown = f"\n  stderr: {shorten(stderr.rstrip())}" if stderr else ""
        is_of_group = kind in {"before_all", "after_all"}
        group = f" of the group that begins at line {group_line}" if group_line else ""
        name = f"{_hook_name(kind, code)}{group if is_of_group else ''}"
        text = f"{name} failed with status {status}.{shown}"
        reported.has_expectation = True
        if is_of_group:
            self.late_problems.append(Problem(line=0, text=text))
        else:
            reported.has_failed_hook = True
            reported.add_problem(0, text)

    # --- expectations that need the shell ------------------------------------------------

    def _answer(
        self,
        process: ShellProcess,
        reported: ExampleRecord,
        facts: Facts,
        fields: Sequence[str],
        deadline: float,
    ) -> str | None:
        """Ask the shell for the values that a sentence needs.

        The shell also runs a matcher that the spec defines.

        Return None, or the reason why the shell of the file has ended.
        """
        words = tuple(fields[1:])

        def ask(operation: str, argument: str, answer: str) -> None:
            self._send_answer(operation, argument)
            while True:
                record = process.reader.next_record()
                if record is None:
                    ending = self._wait_for_words(process, deadline)
                    if ending is not None:
                        raise _UnansweredError(ending)
                elif record[0] == "end":
                    self._unanswered_end = record
                    raise _UnansweredError(None)
                else:
                    self._note(*record, reported, facts)
                    if record[0] in {answer, "unknown", "miscounted"}:
                        return

        try:
            with contextlib.suppress(SentenceError):
                self._gather(parse_sentence(words), words, reported, facts, ask)
        except _UnansweredError as error:
            return error.ending
        self._send_answer("done", "")
        return None

    def _send_answer(self, operation: str, argument: str) -> None:
        if self.setting.shell.is_posix:  # a POSIX `read` reads lines and interprets escapes
            escaped = argument.replace("\\", "\\\\").replace("\n", "\\n")
            send(self._answers, f"{operation}\n{escaped}\n")
        else:
            send(self._answers, f"{operation}\0{argument}\0")

    def _gather(
        self,
        sentence: Sentence,
        words: Sequence[str],
        reported: ExampleRecord,
        facts: Facts,
        ask: Callable[[str, str, str], None],
    ) -> None:
        subject = sentence.subject
        if reported.when:
            outputs = self._files.outputs[self._sent[0].output_set]
            case = self.spec.cases[self._sent[0].number]
            facts.stdout, facts.stderr = outputs.out.text(), _stderr(outputs, case)
            facts.status = reported.status
        if sentence.has_modifier("result"):
            ask("result", subject.argument, "result")
        elif subject.kind is SubjectKind.VARIABLE:
            ask("variable", subject.argument, "variable")
        elif subject.kind is SubjectKind.PATH:
            ask("path", subject.argument, "path")
        if sentence.has_modifier("contents", "entire contents") or (
            sentence.matcher.name in PATH_FLAGS and facts.path is None
        ):
            path = subject_value(replace(sentence, modifiers=()), facts) or ""
            ask("path", path, "path")
            if facts.path is not None and "r" in facts.path.flags and "d" not in facts.path.flags:
                ask("contents", path, "contents")
        if not sentence.matcher.is_custom:
            return
        value = subject_value(sentence, facts)
        place = len(words) - len(sentence.matcher.arguments) + 2
        operation, at = "satisfy", place
        if sentence.matcher.name != "satisfy":
            operation, at = ("custom_not" if sentence.negated else "custom"), place - 1
        if value is not None:
            process_value = value.replace("\0", "")
            ask("value", process_value, "value")
        ask(operation, str(at), "answer")

    # --- the process ---------------------------------------------------------------------

    def _start(self) -> ShellProcess:
        is_posix = self.setting.shell.is_posix
        runtime = POSIX_RUNTIME if is_posix else RUNTIME
        prelude = '. "$HX_RUNTIME"; ' if is_posix else ""
        self._files.script.replace(prelude + self.spec.script)
        self._position = -1
        self._is_ready = False
        self._files.texts.replace(
            "".join(
                f"__hx_text_{number}={quote_on_lines(text)}\n" if is_posix else f"{text}\0"
                for number, text in enumerate(self.spec.texts)
            )
        )
        # the shell itself opens the writing ends of all pipes but the first
        (answers_read, self._answers), *pipes = make_pipes(1 + (_POSIX_PIPES if is_posix else 2))
        first, second = self._files.outputs
        more_fds = [*second.fds, answers_read, self._files.texts.fd,
                    first.records.fd, second.records.fd,
                    *(reading for reading, _ in pipes)]  # fmt: skip
        setting = self.setting
        if self.spec.preserves:
            setting = replace(setting, env={**setting.env, "HX_PRESERVES": "1"})
        try:
            self._process = ShellProcess(setting, runtime, self._files, more_fds=more_fds)
        except BaseException:
            os.close(self._answers)
            raise
        finally:
            for fd in (answers_read, *itertools.chain(*pipes)):
                os.close(fd)
        return self._process

    def _send_target(self, process: ShellProcess, number: int) -> None:
        output_set = next(self._sets)
        self._files.outputs[output_set].clear()
        self._sent.append(_Target(number=number, output_set=output_set))
        process.send(f"{number}:{output_set * _SET_DISTANCE}:{_FIRST_RECORDS + output_set}\n")

    def _wait_for_words(self, process: ShellProcess, deadline: float) -> str | None:
        """Wait for the shell's next message; return None, or the reason why no message will come."""
        try:
            if process.wait_for_words(deadline):
                return None
        except TimeoutError:
            self._kill()
            return (
                f"The example ran longer than {self.setting.timeout_s:g} s; "
                "it and all its processes were ended."
            )
        code = process.exit_code()
        self._ended_in_helpers = not self._is_ready and code >= 0
        hook, text = self._take_ending(process, self._files.hook_err.text())
        had_too_many_processes = process.had_too_many_processes(code)
        self._kill()
        why = f"The shell of this file ended early, with exit code {code}."
        if hook:
            why = f"{hook} ended the shell of this file with exit code {code}."
        if code < 0:
            why = (
                f"The shell of this file was killed by signal {name_signal(-code)}; the code "
                "under test, in this example or the previous example, may have run a 'kill' that hit "
                "more than its own processes, such as 'kill -9 -1'."
            )
        if had_too_many_processes:
            why = (
                "This example, together with processes that earlier examples left, had more "
                "processes than the limit allows; all of them were ended."
            )
        if text:
            why += f" It wrote to stderr:\n{shorten(text)}"
        if "syntax error" in text or "unexpected EOF" in text:
            self._failure_of_all = why
        return why

    def _kill(self) -> None:
        if self._process is not None:
            self._process.close()
            os.close(self._answers)
            self.trace += self._files.trace.text()
            self._files.trace.replace("")
            self._process = None
        self._sent.clear()


def _streams(outputs: OutputFiles, case: Case) -> Streams:
    return Streams(
        stdout=outputs.out.text,
        stderr=lambda: _stderr(outputs, case),
        stdout_bytes=outputs.out.size(),
        stderr_bytes=outputs.err.size(),
        stray_stdout=outputs.stray_out.text(),
        stray_stderr=outputs.stray_err.text(),
    )


def _stderr(outputs: OutputFiles, case: Case) -> str:
    """Return the stderr of the evaluation; remove the levels that the harness adds to the trace (`set -x`).

    A trace of bash repeats the first character of the trace's prompt for each level of `eval`. The
    harness runs the bodies of groups and examples by `eval`, so this function removes the levels of
    these `eval` commands. Lines `---` and `+++` of a diff do not change.
    """
    text = outputs.err.text()
    if "__hx_status=" in text:
        text = _TRACE_END.sub("", text)
    if "++ " not in text:
        return text
    levels = len(case.groups) + 1
    return _TRACE.sub(lambda found: found[0] if found[1] else found[2][levels:], text)


def _hook_name(kind: str, code: str) -> str:
    return f"{''.join(part.capitalize() for part in kind.split('_'))} '{code}'"


def _group_problem(stderr: str) -> Problem:
    return Problem(line=0, text=f"A group wrote to stderr:\n{shorten(stderr)}")


def _failure(text: str) -> Verdict:
    return Verdict(outcome=Outcome.FAILED, problems=(Problem(line=0, text=text),))
