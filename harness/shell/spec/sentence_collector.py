"""Selects the shell function that captures the values for a sentence of a spec (the words after `The`)."""

from __future__ import annotations

import re

from harness.shell.lexer import split_words
from harness.shell.spec.sentences import PATH_FLAGS, SentenceError, SubjectKind, parse_sentence

_OF_THE_EVALUATION = re.compile(
    r"The (?:output|stdout|error|stderr|status) should (?:not )?"
    r"(?:eq|equal|include|start with|end with|be (?:success|failure|present|defined)) ?"
)


def fetcher(text: str) -> str:
    """Return the name of the shell function that captures the values for the sentence in `text`.

    This Python function parses the words as they are written in the spec. The shell later reports
    the expanded words, and the sentence is parsed again from the expanded words.
    """
    if _OF_THE_EVALUATION.match(text):
        return "__hx_the"
    words = split_words(text)[1:]
    try:
        sentence = parse_sentence(tuple(word.text for word in words))
    except SentenceError:
        return "__hx_ask"
    kind = sentence.subject.kind
    # the function gets two arguments before the words: this position, and the line
    place = sentence.subject.argument_at + 3
    reads_contents = sentence.has_modifier("contents", "entire contents")
    needs_path = reads_contents or sentence.matcher.name in PATH_FLAGS
    if (
        sentence.matcher.is_custom
        or sentence.has_modifier("result")
        or (needs_path and kind is not SubjectKind.PATH)
    ):
        return "__hx_ask"
    if kind is SubjectKind.PATH:
        return f"__hx_the_{'contents' if reads_contents else 'path'} {place}"
    return f"__hx_the_variable {place}" if kind is SubjectKind.VARIABLE else "__hx_the"
