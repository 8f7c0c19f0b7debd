"""Patterns of `match pattern` match the same texts as shellspec's `case` in bash and dash."""

from __future__ import annotations

from harness.shell.spec.patterns import pattern_matches

PATTERNS: tuple[tuple[str, list[str], list[str]], ...] = (
    ("a|b", ["a", "b"], ["ab", "a|b", ""]),
    ("*.sh|?.txt", ["a.sh", ".sh", "a.txt"], ["ab.txt", ".txt"]),
    ("[a|b]c", ["[a", "b]c"], ["ac", "bc", "|c", "c", "a"]),
    ("x|[!a|b]c", ["x", "[!a", "b]c"], ["xc", "ac"]),
    ("[]|]|z", ["[]", "]", "z"], ["|", "["]),
    ("[[:digit:]|x]", ["[:", "[d", "x]"], ["7", "|", "x", "["]),
    ("a*b", ["a\nb", "a\nx\nb"], ["a\nb\n"]),
    ("a?b", ["a\nb"], []),
    ("*a**a*b?*c*", ["aabxc", "xaxaxbxxcx"], ["aabc", "abxc", "aab"]),
    ("*[ab]*[ab]*[ab]*c", ["abac", "abcabcc"], ["abc", "a" * 5000]),
    ("[a|b", ["[a", "b"], ["a", "[a|b"]),
    ("[!a]", ["b", "!"], ["a", "", "bb"]),
    ("[^a]b", ["ab", "^b"], ["cb"]),
    ("[]a]", ["]", "a"], ["[]a]", "["]),
    ("[!]]", ["a", "["], ["]", "[!]]"]),
    ("[!]", ["[!]"], ["!", "a"]),
    ("[]", ["[]"], ["", "]"]),
    ("[[]", ["["], ["]", "[[]"]),
    ("[a-c][[:alpha:][:digit:]]", ["bz", "a7"], ["b-", "dz", "["]),
    ("[[:digit:]", ["[:", "[d"], ["7", "["]),
    ("[[:alnum:]]", ["a", "Z", "0"], ["_", "-"]),
    ("[[:lower:]]", ["a", "z"], ["A", "`", "{"]),
    ("[[:upper:]]", ["A", "Z"], ["a", "@", "["]),
    ("[[:xdigit:]]", ["0", "f", "F"], ["g", "G"]),
    ("[[:space:]]", [" ", "\t", "\n", "\v", "\f", "\r"], ["a", ""]),
    ("[[:blank:]]", [" ", "\t"], ["\n", "a"]),
    ("[[:punct:]]", list("!/:@[`{~-\\]^"), ["a", "0", " ", "Z"]),
    ("[[:cntrl:]]", ["\1", "\n", "\x7f"], [" ", "a"]),
    ("[[:graph:]]", ["!", "a", "~"], [" ", "\n", "\x7f"]),
    ("[![:print:]]", ["\n", "\x7f"], [" ", "a", "~"]),
    ("[z-a]", [], ["a", "z", "-", "[z-a]"]),
    ("[!z-a]", ["a", "-"], ["", "ab"]),
    ("[a&&b]", ["a", "&", "b"], ["a&&b"]),
    ("[a\\\\]", ["a", "\\"], ["]"]),
    ("", [], ["", "a"]),
    ("a|", [], ["a", "", "|"]),
    ("a||b", [], ["a", "b", ""]),
)


def test_pattern_matches_the_same_texts_as_in_the_shell() -> None:
    wrong = [
        (pattern, text)
        for pattern, matching, others in PATTERNS
        for text in (*matching, *others)
        if pattern_matches(pattern, text) != (text in matching)
    ]
    assert wrong == []
