"""Selects the function of the runtime that captures the value of a sentence after `The`."""

from __future__ import annotations

import re

from harness.shell.lexer import split_words
from harness.shell.spec.sentences import PATH_FLAGS, SentenceError, SubjectKind, parse_sentence

_OF_THE_EVALUATION = re.compile(
    r"The (?:output|stdout|error|stderr|status) should (?:not )?"
    r"(?:eq|equal|include|start with|end with|be (?:success|failure|present|defined)) ?"
)


def fetcher(text: str) -> str:
    """Choose the runtime function that captures the value of the sentence in `text`.

    The words are parsed as written; the shell passes on their expansions, and the sentence is
    parsed again from these.
    """
    if _OF_THE_EVALUATION.match(text):
        return "__hx_the"
    words = split_words(text)[1:]
    try:
        sentence = parse_sentence(tuple(word.text for word in words))
    except SentenceError:
        return "__hx_ask"
    kind = sentence.subject.kind
    place = sentence.subject.argument_at + 3  # after the place itself and the line
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
