"""Renders a Markdown page about all shards for a CI job, with figures and with failures by cause."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from harness.visible_text import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.merging.complete import ShardReports
    from harness.merging.junit import Case

TITLE = "# Tests of all shards"
"""The first line of the page."""

_SHOWN_TESTS = 10
_CAUSE_LENGTH = 300
#: Punctuation that Markdown, including GitHub's dialect, reads as mark-up, links or formulas.
_MARKUP = re.compile(r"([\\`*_\[\]|~$!]|:(?=//)|(?<=\])\(|(?i:(?<=\bwww))\.)")
#: Text at the beginning of a list item that Markdown would read as a heading or a list.
_BEGIN = re.compile(r"^([0-9]*)([#+=.)-])")
_NO_CODE = re.compile(r"[`<>]|\]\(|://|(?i:www)\.")
#: The parts of a message that differ even if tests fail for the same reason.
_VARYING = (
    (re.compile(r"'(?:/[^'/]+){2,}/?'|(?<![\w.])(?:/[\w.@+=-]+){2,}/?"), "PATH"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "N"),
    (re.compile(r"\b[0-9a-f]{12,}\b"), "N"),
    (re.compile(r"\b\d+(?:\.\d+)*\b"), "N"),
)


def cause_of(problem: str) -> str:
    """Return the first line of a failure's message, with placeholders for numbers and paths."""
    line = next((each.strip() for each in problem.splitlines() if each.strip()), "no message")
    for pattern, word in _VARYING:
        line = pattern.sub(word, line)
    return line if len(line) <= _CAUSE_LENGTH else f"{line[:_CAUSE_LENGTH]}…"


def render_summary(
    shards: Sequence[ShardReports],
    cases: Sequence[Case],
    problems: Sequence[str],
    bad_ends: Sequence[str] = (),
) -> str:
    """Render the page; `problems` and `bad_ends` are the fields of `harness.merging.merge.Merged`."""
    return "\n".join(_lines(shards, cases, problems, bad_ends)) + "\n"


def _lines(
    shards: Sequence[ShardReports],
    cases: Sequence[Case],
    problems: Sequence[str],
    bad_ends: Sequence[str],
) -> Iterator[str]:
    outcomes = Counter(each.outcome for each in cases)
    failed = [each for each in cases if each.problem is not None]
    broken = sum(each.is_broken for each in failed)
    yield TITLE
    yield ""
    yield (
        f"**{len(cases)} tests**: {outcomes['passed']} passed, {len(failed) - broken} expectations not "
        f"met, {broken} could not tell, {outcomes['skipped']} skipped."
    )
    yield ""
    for title, sentences in (
        ("The set of shards is not complete", problems),
        ("Not all shards ended well", bad_ends),
    ):
        if sentences:
            yield f"**{title}:**"
            yield ""
            yield from (f"* {_plain(each)}" for each in sentences)
            yield ""
    yield "| Shard | Tests | Failed | Seconds | First test after | Host |"
    yield "|---|---|---|---|---|---|"
    for each in shards:
        manifest = each.manifest
        first = "-" if manifest.first_test_s is None else f"{manifest.first_test_s:.0f} s"
        count = sum(case.shard == each.name for case in failed)
        yield (
            f"| {each.name} | {len(manifest.tests)} | {count} | {manifest.seconds:.0f} | {first} | "
            f"{_plain(manifest.host)} |"
        )
    yield ""
    for each in shards:
        if each.manifest.start > 1:
            yield (
                f"Shard {each.name} was started {each.manifest.start} times: its job ended before the "
                "tests did, and ran again. The results are from the last start."
            )
            yield ""
    yield from _failures(failed)
    yield from _behaviours(cases)


def _failures(failed: Sequence[Case]) -> Iterator[str]:
    if not failed:
        return
    groups: defaultdict[tuple[bool, str], list[Case]] = defaultdict(list)
    for case in failed:
        groups[case.is_broken, cause_of(case.problem or "")].append(case)
    yield "## Failures by cause"
    yield ""
    for (is_broken, cause), members in sorted(
        groups.items(), key=lambda group: (-len(group[1]), group[0])
    ):
        family = "could not tell" if is_broken else "failed"
        yield f"### {len(members)} {family}: {_plain(cause)}"
        yield ""
        for case in members[:_SHOWN_TESTS]:
            yield f"* {_code(case.name)} (shard {case.shard})"
        if len(members) > _SHOWN_TESTS:
            yield f"* and {len(members) - _SHOWN_TESTS} more"
        yield ""


def _behaviours(cases: Sequence[Case]) -> Iterator[str]:
    covered = behaviours_of(cases)
    if covered:
        met = sum(set(tests.values()) == {"passed"} for tests in covered.values())
        yield f"Behaviours covered: {len(covered)}, of which {met} hold."
        yield ""


def behaviours_of(cases: Sequence[Case]) -> dict[str, dict[str, str]]:
    """Return, for each behaviour, the outcomes of the tests that cover the behaviour."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for case in cases:
        for name in case.behaviours:
            found[name][case.name] = case.outcome
    return dict(sorted(found.items()))


def _code(text: str) -> str:
    """Return text as a code span, or as plain text if the text could end the span or become a link."""
    line = visible_line(text)
    return _plain(line) if _NO_CODE.search(line) else f"`{line}`"


def _plain(text: str) -> str:
    """Return text as one line without mark-up for Markdown: no link, address, picture or HTML."""
    line = _BEGIN.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", visible_line(text)))
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
