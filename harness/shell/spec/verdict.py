"""Reads the records that an example wrote, and determines and renders the example's verdict."""

from __future__ import annotations

import difflib
import enum
import signal
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.shell.process import name_signal
from harness.shell.spec.sentences import (
    Facts,
    Sentence,
    SentenceError,
    Stream,
    is_satisfied,
    parse_sentence,
    subject_value,
)
from harness.shell.spec.spec_file import NOT_IMPLEMENTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.shell.spec.spec_file import Case, SpecFile

_SHOWN = 4000


class Outcome(enum.Enum):
    """The outcomes that shellspec defines; `fails` says whether an outcome fails the run."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    WARNED = "warned"
    SKIPPED = "skipped"
    PENDING = "pending"
    FIXED = "fixed"

    @property
    def fails(self) -> bool:
        return self in {Outcome.FAILED, Outcome.WARNED, Outcome.FIXED}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem found in an example; `line` is 0 if the problem concerns the whole example."""

    line: int
    text: str
    is_warning: bool = False


@dataclass(frozen=True, kw_only=True)
class RunningJobs:
    """The commands of those processes of an example that did not end in time."""

    seconds: str
    commands: tuple[str, ...]

    def render(self) -> str:
        names = ", ".join(f"'{shorten(command)}'" for command in sorted(set(self.commands)))
        return (
            f"still running {self.seconds} s after the example: {names}. "
            "The next example starts nevertheless."
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of an example."""

    outcome: Outcome
    reason: str = ""
    problems: tuple[Problem, ...] = ()
    stray_stdout: str = ""
    running: RunningJobs | None = None

    def render(self, spec: SpecFile, case: Case) -> str:
        """Return the problems and remarks of the example as text, or '' if there are none."""
        parts: list[str] = []
        for problem in self.problems:
            line = problem.line or case.begin
            kind = "warning: " if problem.is_warning else ""
            parts.append(f"{spec.path}:{line}: {kind}{problem.text}")
        if self.outcome is Outcome.FIXED:
            parts.append(
                f"{spec.path}:{case.begin}: The example is marked Pending"
                f"{f' ({self.reason})' if self.reason else ''}, but all its expectations hold; "
                "remove the mark."
            )
        if self.stray_stdout:
            parts.append(f"The example itself printed:\n{shorten(self.stray_stdout)}")
        return "\n\n".join(parts)


@dataclass(kw_only=True)
class ExampleRecord:
    """The records that one example wrote, up to its end or abort."""

    when: int = 0
    status: int | None = None
    sentences: list[RecordedSentence] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    claims: Stream = Stream.NONE
    has_expectation: bool = False
    has_failed_hook: bool = False
    skip_reason: str | None = None
    pending_reason: str | None = None
    pending_after: tuple[int, int] = (0, 0)
    """The number of problems and the number of sentences before the first `Pending`."""
    finished: bool = False
    exit_status: int = 0
    group_stderr: str = ""
    end_message: str = ""
    hook: str = ""
    hook_stderr: str = ""
    running: RunningJobs | None = None

    @property
    def killed_by(self) -> int:
        """The number of the signal that killed the example's shell, or 0.

        The exit status alone does not prove that a signal killed the shell, because `exit 137` has
        the same status as SIGKILL. The shell of the spec file, which waits for the example's shell,
        names the signal on stderr.
        """
        number = self.exit_status - 128
        is_signal = number in signal.valid_signals()
        return number if is_signal and (signal.strsignal(number) or "?") in self.end_message else 0

    @property
    def is_aborted(self) -> bool:
        """Whether the example's shell ended before the end of the example."""
        return not self.finished or self.exit_status != 0

    def add_problem(self, line: int, text: str, *, is_warning: bool = False) -> None:
        self.problems.append(Problem(line=line, text=text, is_warning=is_warning))


@dataclass(frozen=True, kw_only=True)
class RecordedSentence:
    """One expectation that an example reached: the expanded words of the expectation, and the captured values."""

    line: int
    words: tuple[str, ...]
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Streams:
    """The output of the evaluation and of the example itself.

    The output of the evaluation is read only when needed.
    """

    stdout: Callable[[], str]
    stderr: Callable[[], str]
    stdout_bytes: int
    stderr_bytes: int
    stray_stdout: str
    stray_stderr: str


def judge(spec: SpecFile, case: Case, reported: ExampleRecord, streams: Streams) -> Verdict:
    """Return the verdict on an example that has ended."""
    noted, stated = reported.pending_after
    early, at = reported.problems[:noted], len(reported.problems)
    for sentence in reported.sentences[:stated]:
        _judge_sentence(spec, reported, sentence, streams)
    early += reported.problems[at:]
    for sentence in reported.sentences[stated:]:
        _judge_sentence(spec, reported, sentence, streams)
    _judge_end(spec, case, reported, streams)
    if reported.skip_reason is None:
        _judge_leftovers(reported, streams)
    if not (
        reported.problems
        or reported.has_expectation
        or reported.when
        or reported.skip_reason is not None
    ):
        return _verdict(
            Outcome.PENDING, reported, streams, reported.pending_reason or NOT_IMPLEMENTED
        )
    failed = any(not problem.is_warning for problem in reported.problems)
    aborted = reported.is_aborted or reported.has_failed_hook
    is_pending = reported.pending_reason is not None and reported.skip_reason is None
    if is_pending and not aborted and all(problem.is_warning for problem in early):
        outcome = Outcome.PENDING if reported.problems else Outcome.FIXED
        return _verdict(outcome, reported, streams, reported.pending_reason or "")
    if failed:
        return _verdict(Outcome.FAILED, reported, streams)
    if reported.skip_reason is not None:
        return _verdict(Outcome.SKIPPED, reported, streams, reported.skip_reason)
    if reported.problems:
        return _verdict(Outcome.WARNED, reported, streams)
    return _verdict(Outcome.SUCCEEDED, reported, streams)


def _verdict(
    outcome: Outcome, reported: ExampleRecord, streams: Streams, reason: str = ""
) -> Verdict:
    return Verdict(
        outcome=outcome,
        reason=reason,
        problems=tuple(reported.problems),
        stray_stdout=streams.stray_stdout,
        running=reported.running,
    )


def _judge_sentence(
    spec: SpecFile, reported: ExampleRecord, recorded: RecordedSentence, streams: Streams
) -> None:
    try:
        sentence = parse_sentence(recorded.words)
        reported.claims |= sentence.claims
        facts = recorded.facts
        if reported.when:
            facts.status = reported.status
            if facts.stdout is None and Stream.STDOUT in sentence.claims:
                facts.stdout = streams.stdout()
            if facts.stderr is None and Stream.STDERR in sentence.claims:
                facts.stderr = streams.stderr()
        satisfied = is_satisfied(sentence, facts)
    except SentenceError as error:
        reported.add_problem(
            recorded.line, f"{spec.line(recorded.line)}\n  This sentence cannot be read: {error}."
        )
        return
    for stderr in facts.stderr_texts:
        reported.add_problem(
            recorded.line,
            f"{spec.line(recorded.line)}\n"
            f"  A function in this sentence wrote to stderr: {stderr.rstrip()}",
            is_warning=True,
        )
    if not satisfied:
        reported.add_problem(
            recorded.line, _explain(spec, reported, recorded.line, sentence, facts)
        )


def _judge_end(spec: SpecFile, case: Case, reported: ExampleRecord, streams: Streams) -> None:
    if reported.is_aborted:
        how = f"ended with exit code {reported.exit_status}"
        if reported.killed_by:
            how = f"was killed by signal {name_signal(reported.killed_by)}"
        _add_abort(spec, case, reported, streams, how)
    # as in shellspec, an example that is skipped or pending may write to stderr
    is_marked = reported.skip_reason is not None or reported.pending_reason is not None
    has_failed = any(not problem.is_warning for problem in reported.problems)
    if streams.stray_stderr and (has_failed or not is_marked):
        reported.add_problem(
            0, f"The example itself wrote to stderr:\n{shorten(streams.stray_stderr.rstrip())}"
        )


def _add_abort(
    spec: SpecFile, case: Case, reported: ExampleRecord, streams: Streams, how: str
) -> None:
    """Add the problem that a hook, the evaluation or a statement ended the example's shell."""
    if reported.hook:
        shown = _labelled("stderr", reported.hook_stderr)
        reported.add_problem(0, f"Example aborted: {reported.hook}, and its shell {how}.{shown}")
        return
    if reported.when and reported.status is None:
        hint = "" if reported.killed_by else " 'When run' evaluates a function that exits."
        reported.add_problem(
            reported.when,
            f"Example aborted: its shell {how} in the evaluation.{hint}\n"
            f"  evaluation: {spec.line(reported.when)}"
            f"{_labelled('stdout', streams.stdout())}{_labelled('stderr', streams.stderr())}",
        )
        return
    last = f" The last line reached was {_last_line(spec, case, reported)}."
    reported.add_problem(
        0, f"Example aborted: its shell {how} before the end of the example.{last}"
    )


def _labelled(label: str, text: str) -> str:
    return f"\n  {label}: {shorten(text.rstrip())}" if text.strip() else ""


def _last_line(spec: SpecFile, case: Case, reported: ExampleRecord) -> str:
    line = max([reported.when, *(one.line for one in reported.sentences)], default=0)
    return (
        f"{line} ({spec.line(line)})" if line else f"{case.begin}, the first line of the example"
    )


def _judge_leftovers(reported: ExampleRecord, streams: Streams) -> None:
    if reported.is_aborted:
        return
    if reported.when and not reported.has_expectation and not reported.problems:
        reported.add_problem(0, "The example states no expectation.", is_warning=True)
    if not reported.when:
        return
    for name, stream, size, text in (
        ("stdout", Stream.STDOUT, streams.stdout_bytes, streams.stdout),
        ("stderr", Stream.STDERR, streams.stderr_bytes, streams.stderr),
    ):
        if size and stream not in reported.claims:
            reported.add_problem(
                reported.when,
                f"There was output to {name}, and no expectation mentions it:\n"
                + shorten(text().rstrip("\n")),
                is_warning=True,
            )
    if reported.status and Stream.STATUS not in reported.claims:
        reported.add_problem(
            reported.when,
            f"The status was {reported.status}, and no expectation mentions it.",
            is_warning=True,
        )


def _explain(
    spec: SpecFile, reported: ExampleRecord, line: int, sentence: Sentence, facts: Facts
) -> str:
    parts = [spec.line(line)]
    if reported.when:
        parts.append(f"  evaluation: {spec.line(reported.when)}")
    if facts.message:  # a matcher that the spec defines
        parts.append(textwrap.indent(shorten(facts.message), "  "))
        return "\n".join(parts)
    value = subject_value(sentence, facts)
    parts.append(f"  expected: {_expected(sentence)}")
    parts.append(f"       got: {_got(sentence, value, facts)}")
    if sentence.matcher.name == "equal" and not sentence.negated and value is not None:
        parts.extend(_diff(sentence.matcher.arguments[0], value))
    return "\n".join(parts)


def _expected(sentence: Sentence) -> str:
    negation = "not " if sentence.negated else ""
    arguments = " ".join(_show(argument) for argument in sentence.matcher.arguments)
    return f"{negation}{sentence.matcher.name} {arguments}".rstrip()


def _got(sentence: Sentence, value: str | None, facts: Facts) -> str:
    if facts.path is not None and not sentence.modifiers:
        names = {"f": "regular file", "d": "directory", "p": "pipe", "S": "socket"}
        kinds = [name for flag, name in names.items() if flag in facts.path.flags]
        if "e" not in facts.path.flags:
            kinds = ["dangling symlink"] if "L" in facts.path.flags else ["nothing there"]
        elif "L" in facts.path.flags:
            kinds.append("by symlink")
        return f"{facts.path.path} ({', '.join(kinds) or 'special file'})"
    return "<unset>" if value is None else _show(value)


def _show(text: str) -> str:
    if "\n" not in text:
        return f'"{shorten(text)}"'
    return '"""\n' + "\n".join(f"    {line}" for line in shorten(text).split("\n")) + '\n  """'


def _diff(wanted: str, got: str) -> Sequence[str]:
    if "\n" not in wanted and "\n" not in got:
        return []
    lines = difflib.unified_diff(
        shorten(wanted).split("\n"), shorten(got).split("\n"), "expected", "got", lineterm=""
    )
    return ["  diff:", *(f"    {line}" for line in lines)]


def shorten(text: str) -> str:
    """Return `text`; of a long text, return only the beginning and the end."""
    if len(text) <= _SHOWN:
        return text
    half = _SHOWN // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
