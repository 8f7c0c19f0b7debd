"""The lexer splits a line of shell code into the same words as bash."""

from __future__ import annotations

import shlex

from harness.shell.lexer import (
    is_open,
    quote,
    quote_on_a_line,
    rest_after,
    split_words,
    strip_comment,
)

CUT = {
    "a  b\tc": ["a", "b", "c"],
    "a # b": ["a"],
    "a#b c": ["a#b", "c"],
    "'#' b": ["#", "b"],
    "a; b": ["a"],
    "a&&b": ["a"],
    "a 2>&1": ["a", "2"],
    "a\\ b c": ["a b", "c"],
    "a\\\nb": ["ab"],
    "a \\\n b": ["a", "b"],
    "'a b'\"c d\"e": ["a bc de"],
    '"a\\"b\\n"': ['a"b\\n'],
    '"\\$a \\` \\\\ \\x\\\n" b': ["$a ` \\ \\x", "b"],
    "'a\\'": ["a\\"],
    "''": [""],
    "$'a\\tb\\'c\\x41\\101'": ["a\tb'cAA"],
    '"$(echo ")")" x': ['$(echo ")")', "x"],
    "$(a (b) c) d": ["$(a (b) c)", "d"],
    "$(a ')' \\) \")\" b) c": ["$(a ')' \\) \")\" b)", "c"],
    "$((1 + (2))) $a-b": ["$((1 + (2)))", "$a-b"],
    "${a:-x y} z": ["${a:-x y}", "z"],
    '"${a:-it\'s}" b': ["${a:-it's}", "b"],
    '${a:-"}" \\} ${b}} c': ['${a:-"}" \\} ${b}}', "c"],
    "`a \\` b` c": ["`a \\` b`", "c"],
    "a<(b c) d": ["a<(b c)", "d"],
    "a>(b c) d": ["a>(b c)", "d"],
    "'open a b": ["open a b"],
    "\u00e9 *": ["\u00e9", "*"],
}


def test_line_is_split_into_words_like_in_bash() -> None:
    assert {line: [word.text for word in split_words(line)] for line in CUT} == CUT


#: The bytes that bash 5.2 prints in a UTF-8 locale for each body of a quote $'...'.
ANSI = {
    r"\u00e9": b"\xc3\xa9", r"\u41": b"A", r"\u0020b": b" b", r"\u20ac1": b"\xe2\x82\xac1", r"\ug": rb"\ug",
    r"\U1F600": b"\xf0\x9f\x98\x80", r"\U0001F600f": b"\xf0\x9f\x98\x80f", r"\U": rb"\U",
    r"\ud800": b"\xed\xa0\x80", r"\U110000": b"\xf4\x90\x80\x80",
    r"\U7fffffff": b"\xfd\xbf\xbf\xbf\xbf\xbf", r"\Uffffffff": b"", r"\U200000": b"\xf8\x88\x80\x80\x80",
    r"\x412": b"A2", r"\x4": b"\x04", r"\xc3\xa9": b"\xc3\xa9", r"\xe9": b"\xe9", r"\xg": rb"\xg",
    r"\x{41}2": b"A2", r"\x{141}z": b"Az", r"\x{41": b"A", r"\x{}z": b"",
    r"\777": b"\xff", r"\0101": b"\x081", r"\12345": b"S45", r"\8": rb"\8", r"a\400b": b"a",
    r"a\0b": b"a", r"a\x00b": b"a", r"a\u0000b": b"a",
    r"a\cAb": b"a\x01b", r"\ca": b"\x01", r"\c?": b"\x7f", r"\c\\z": b"\x1cz", r"\c\n": b"\x1cn",
    r"a\c@b": b"a", r"\c\u00e9": b"\x1cu00e9", "\\c\u00e9": b"\x03\xa9", r"a\c": rb"a\c", r"\c\'b": b"\x1c'b",
    r"\q\?": rb"\q?", "\u00e9": b"\xc3\xa9", "\udce9": b"\xe9",
}  # fmt: skip


def test_escapes_have_the_same_meaning_as_in_bash() -> None:
    words = {body: split_words(f"$'{body}'.")[0] for body in ANSI}

    read = {b: word.text.encode(errors="surrogateescape") for b, word in words.items()}
    assert read == {body: data + b"." for body, data in ANSI.items()}
    assert words[r"\u00e9"].text == "\u00e9."


def test_text_for_translation_is_read_as_bash_reads_it_without_translations() -> None:
    (word,) = split_words('a$"b c"$')

    assert (word.text, word.literal) == ("ab c$", True)
    assert not split_words('$"b $c"')[0].literal


LITERAL = {
    "a": True,
    "'$a'": True,
    "'*'": True,
    '"*"': True,
    "\\*": True,
    "$": True,
    '"a$"': True,
    "$a": False,
    '"$a"': False,
    "a*": False,
    "a?": False,
    "[ab]": False,
    "a{b,c}": False,
    "{1..3}": False,
    "{}{a}{'b,c'}": True,
    "~/a": False,
    "a~": True,
    '"\\$a"': True,
    "`a`": False,
    "$((1))": False,
    "$1": False,
    "$?": False,
}


def test_word_is_literal_unless_the_shell_expands_it() -> None:
    found = {word: split_words(word) for word in LITERAL}

    assert {word: one.literal for word, (one,) in found.items()} == LITERAL
    assert {word: one.raw for word, (one,) in found.items()} == {word: word for word in LITERAL}


RESTS = (
    ("a b  c d ", 2, "c d"),
    ("'a b' c", 1, "c"),
    ("a", 1, ""),
    ("  a b", 1, "b"),
    ("a\tb \tc", 2, "c"),
    ("a \\\n b \\\n c", 2, "\\\n c"),
)


def test_rest_of_a_line_after_a_word_is_returned_unchanged() -> None:
    assert [rest_after(line, count) for line, count, _ in RESTS] == [rest for *_, rest in RESTS]


QUOTED = {
    "a-b/c=1": "a-b/c=1",
    "": "''",
    "a b": "'a b'",
    "it's": "'it'\\''s'",
    "~": "'~'",
    "a\nb'\\": "$'a\\nb\\'\\\\'",
    "\r": "$'\\r'",
    "a\n": "$'a\\n'",
}


def test_quoted_text_is_one_word_without_a_line_break() -> None:
    assert {text: quote(text) for text in QUOTED} == QUOTED
    assert {
        text: [word.text for word in split_words(quoted)] for text, quoted in QUOTED.items()
    } == {text: [text] for text in QUOTED}


def test_quote_on_a_line_replaces_each_line_break_by_a_variable() -> None:
    assert quote_on_a_line("a'\nb") == "'a'\\'''\"$__hx_newline\"'b'"
    assert shlex.split(quote_on_a_line("a'b")) == ["a'b"]


OPEN = {
    "echo 'a": True,
    "echo 'a'": False,
    'echo "a': True,
    'echo "a\\"': True,
    "echo $(a": True,
    "echo $(a)": False,
    "echo ${a": True,
    "echo `a": True,
    "# it's": False,
    "a#'": True,
    "a # it's\nb": False,
    "a; # it's": False,
    "a \\": True,
    "": False,
}


def test_unclosed_quote_or_expansion_is_found() -> None:
    assert {text: is_open(text) for text in OPEN} == OPEN


WITHOUT_COMMENT = {
    "a b # c": "a b",
    "a 'b # c'": "a 'b # c'",
    "a#b": "a#b",
    "a;#b": "a;",
    "# all": "",
    "a ${#b} ": "a ${#b}",
}


def test_hash_begins_a_comment_only_where_a_word_may_begin() -> None:
    assert {line: strip_comment(line) for line in WITHOUT_COMMENT} == WITHOUT_COMMENT
