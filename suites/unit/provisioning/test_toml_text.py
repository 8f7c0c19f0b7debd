"""TOML edited as text."""

from __future__ import annotations

import pytest

from harness.provisioning.toml_text import (
    TomlEntry,
    TomlTextError,
    get_value,
    read_entries,
    read_string,
    read_strings,
    read_values,
    remove_tables,
    render_key,
    render_string,
    set_value,
    values_below,
)

TEXT = """\
# containerd
version = 2  # of the format
disabled_plugins = [
  "a", # with a comment ]
  'b]',
]

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  text = \"\"\"
[not a table]
"\"\"
  literal = '''
key = "in a string"
'''
[plugins.'io.containerd.grpc.v1.cri']
  containerd.snapshotter = "over#lay"
  empty = { a = 1, b = [2] }

[[streams]]
x = "\\"]"
"""
CRI = ("plugins", "io.containerd.grpc.v1.cri")


def test_each_entry_has_its_whole_path_and_its_line_numbers() -> None:
    entries = read_entries(TEXT)

    assert [(entry.path, entry.first, entry.last, entry.is_header) for entry in entries] == [
        (("version",), 1, 1, False),
        (("disabled_plugins",), 2, 5, False),
        ((*CRI, "cni"), 7, 7, True),
        ((*CRI, "cni", "bin_dir"), 8, 8, False),
        ((*CRI, "cni", "text"), 9, 11, False),
        ((*CRI, "cni", "literal"), 12, 14, False),
        (CRI, 15, 15, True),
        ((*CRI, "containerd", "snapshotter"), 16, 16, False),
        ((*CRI, "empty"), 17, 17, False),
        (("streams",), 19, 19, True),
        (("streams", "x"), 20, 20, False),
    ]
    assert entries[6] == TomlEntry(path=CRI, value=None, first=15, last=15, table=CRI)
    assert entries[7] == TomlEntry(
        path=(*CRI, "containerd", "snapshotter"),
        value='"over#lay"',
        first=16,
        last=16,
        table=CRI,
        name="  containerd.snapshotter",
        comment="",
    )


def test_values_are_read_without_comments() -> None:
    assert get_value(TEXT, ("version",)) == "2"
    assert get_value(TEXT, ("disabled_plugins",)) == "[\n  \"a\", \n  'b]',\n]"
    assert get_value(TEXT, (*CRI, "cni", "literal")) == "'''\nkey = \"in a string\"\n'''"
    assert get_value(TEXT, (*CRI, "empty")) == "{ a = 1, b = [2] }"
    assert get_value(TEXT, ("streams", "x")) == r'"\"]"'
    assert get_value(TEXT, (*CRI, "cni")) is None
    assert get_value(TEXT, ("nothing",)) is None


def test_value_ends_where_its_quotes_and_brackets_close() -> None:
    text = (
        "tight=1\n"
        'escaped = "a\\"#b" # comment\n'
        "literal = 'a\\' # comment\n"
        "table = {\n  x = [1,\n  2] }\n"
        'open = "not closed\n'
        "last = 2\n"
    )

    assert values_below(text, ()) == {
        "tight": "1",
        "escaped": '"a\\"#b"',
        "literal": "'a\\'",
        "table": "{\n  x = [1,\n  2] }",
        "open": '"not closed',
        "last": "2",
    }


def test_changing_the_returned_values_does_not_change_a_later_read() -> None:
    text = "a = 1\n"

    read_values(text).clear()

    assert read_values(text) == {("a",): "1"}
    assert get_value(text, ("a",)) == "1"


def test_values_of_a_toml_table_are_read_by_key() -> None:
    assert values_below("x = 1\n[a]\ny = 2\nb.z = 3\n[a.b]\nw = 4\n", ("a",)) == {"y": "2"}
    assert values_below("x = 1\n[a]\ny = 2\nb.z = 3\n[a.b]\nw = 4\n", ("a", "b")) == {
        "z": "3",
        "w": "4",
    }
    assert values_below("", ()) == {}


def test_error_for_invalid_toml_mentions_the_line() -> None:
    for text, message in (
        ("a = 1\n[b\n", "line 2: the header of a table has no end"),
        ("[[b]\n", "line 1: the header of a table has no end"),
        ("a = 1\nb\n", "line 2: expected a table or a key with a value"),
        ("\n= 1\n", "line 2: expected a key at column 1"),
        ("a = 1\n[]\n", "line 2: expected a key at column 2"),
        ("a. = 1\n", "line 1: expected a key at column 3"),
        ("a = [1,\n2\n", "line 1: the value has no end"),
    ):
        with pytest.raises(TomlTextError) as error:
            read_entries(text)

        assert str(error.value) == message


def test_quoted_keys_are_unescaped() -> None:
    (entry,) = read_entries(r'"a\"b" . ' + "'c\\d' . e = 1")

    assert entry.path == ('a"b', "c\\d", "e")
    assert read_entries(r'"io\u002econtainerd"."\t" = 1')[0].path == ("io.containerd", "\t")


def test_existing_value_is_replaced_in_its_place() -> None:
    text = set_value(TEXT, ("disabled_plugins",), "[]")

    assert text.splitlines()[:4] == [
        "# containerd",
        "version = 2  # of the format",
        "disabled_plugins = []",
        "",
    ]
    assert set_value("  a = 1\nb = 2\n", ("a",), "3") == "  a = 3\nb = 2\n"
    assert set_value('a = "x=y"\n', ("a",), "3") == "a = 3\n"


def test_key_and_comment_of_a_replaced_value_are_kept() -> None:
    for text, path, edited in (
        ('  "a=b"   = 1\n', ("a=b",), '  "a=b" = 3\n'),
        ("'a = b'.c=1\n", ("a = b", "c"), "'a = b'.c = 3\n"),
        ("a = 1 # mine \nb = 2\n", ("a",), "a = 3  # mine\nb = 2\n"),
        ('a = "#"  # mine\n', ("a",), "a = 3  # mine\n"),
        ("a = [ # first\n  1,\n]   # last \nb = 2\n", ("a",), "a = 3  # last\nb = 2\n"),
    ):
        assert set_value(text, path, "3") == edited


def test_new_key_is_added_to_the_existing_table() -> None:
    text = set_value("[a]\n  x = 1\n\n[b]\n", ("a", "y z"), "2")

    assert text == '[a]\n"y z" = 2\n  x = 1\n\n[b]\n'
    assert set_value("  [a]\n  x = 1", ("a", "y"), "2") == "  [a]\n  y = 2\n  x = 1"


def test_header_is_added_only_if_the_table_has_neither_header_nor_dotted_keys() -> None:
    for text, path, edited in (
        ("x = 1", ("a b", "c"), 'x = 1\n\n["a b"]\nc = 2\n'),
        ("x = 1\n", ("a", "c"), "x = 1\n\n[a]\nc = 2\n"),
        ("", ("a", "c"), "\n[a]\nc = 2\n"),
        ("[a.b]\nx = 1\n", ("a", "y"), "[a.b]\nx = 1\n\n[a]\ny = 2\n"),
        ("[p]\nc.r = 1\nd = 1\n", ("p", "c", "y"), "[p]\nc.r = 1\nc.y = 2\nd = 1\n"),
        ("[a]\nx = 1\n", ("version",), "version = 2\n[a]\nx = 1\n"),
        ("x = 1\n", ("version",), "version = 2\nx = 1\n"),
    ):
        assert set_value(text, path, "2") == edited


def test_key_cannot_be_added_to_an_inline_table() -> None:
    with pytest.raises(TomlTextError) as error:
        set_value("x = 1\na.b = { c = 1 }\n", ("a", "b", "d"), "2")

    assert str(error.value) == "line 2: 'a.b' is a value, expected a table"


def test_table_is_not_replaced_by_a_value() -> None:
    for text, path, message in (
        ("x = 1\n[a]\n", ("a",), "line 2: 'a' is a table, expected a value"),
        ("[a.b.c]\n", ("a", "b"), "line 1: 'a.b.c' is a table, so 'a.b' can't be a value"),
        ("[a]\nb.c = 1\n", ("a", "b"), "line 2: 'a.b.c' is a value, so 'a.b' can't be a value"),
        ("a.b = 1\n", ("a",), "line 1: 'a.b' is a value, so 'a' can't be a value"),
        ("[[a]]\n", ("a",), "line 1: 'a' is a table, expected a value"),
    ):
        with pytest.raises(TomlTextError) as error:
            set_value(text, path, "2")
        assert str(error.value) == message


def test_key_is_not_set_in_an_array_of_tables() -> None:
    for text, path in (
        ("x = 1\n[[a]]\ny = 1\n[[a]]\n", ("a", "y")),
        ("\n[[a]]\n[a.b]\n", ("a", "b", "c")),
        ("\n[['a']]\n", ("a", "b", "c")),
    ):
        with pytest.raises(TomlTextError) as error:
            set_value(text, path, "2")
        assert str(error.value) == "line 2: 'a' is an array of tables, expected a table"


def test_table_is_removed_with_its_subtables_and_nothing_else() -> None:
    text = (
        "[a]\nx = 1\n# kept\n \n[a.b]\ny = [\n1]\n[a.b.c]\nz = 2\n[a.bc]\nw = 3\n[d]\na.b = 1\n"
        "[a]\nb.q = 4\n"
    )

    assert remove_tables(text, ("a", "b")) == (
        "[a]\nx = 1\n# kept\n[a.bc]\nw = 3\n[d]\na.b = 1\n[a]\n"
    )


def test_keys_and_strings_are_quoted_if_necessary() -> None:
    assert render_key(("a-b_1", "io.containerd", 'q"\\')) == 'a-b_1."io.containerd"."q\\"\\\\"'
    assert render_key(("", "é")) == '""."é"'
    assert render_string('a"\\') == r'"a\"\\"'
    assert render_string("\n\x01\x7f") == r'"\n\u0001\u007f"'
    text = 'a"\\b\t\n\x01\x7fé\udce9'
    assert read_string(render_string(text)) == text


def test_read_string_decodes_toml_strings() -> None:
    for value, string in (
        ("'a\\b'", "a\\b"),
        ("true", "true"),
        ('"', '"'),
        ('""', ""),
        ("\"a'", "\"a'"),
        (r'"\u002fusr\U0000002Fx\ty\n\b\f\r\\z"', "/usr/x\ty\n\b\f\r\\z"),
        (r'"\ud800 \U00110000 \q"', r"\ud800 \U00110000 \q"),
        ('"""\na\\\n  "b""""', 'a"b"'),
        ("'''\na\\n'''", "a\\n"),
        ('"""\r\na\r\nb\\ \r\n \r\n\tc"""', "a\nbc"),
        ("'''\r\na\r\n'''", "a\n"),
        ('"""a\\\n \u00a0b"""', "a\u00a0b"),
    ):
        assert read_string(value) == string


def test_remove_tables_removes_one_empty_line_before_a_header() -> None:
    for text, table, left in (
        ("[a]\nx = 1\n[b]\n", "a", "[b]\n"),
        ("\n[a]\nx = 1\n[b]\n", "a", "[b]\n"),
        ("a = 1\r\n[b]\r\nx = 1", "b", "a = 1"),
        ("a = 1\n\nb = 2\n", "b", "a = 1\n\n"),
        ("a = 1\n\n\n[b]\n", "b", "a = 1\n\n"),
        ("a = 1\n[b]\n\nc = [\n1]\n", "b", "a = 1\n\n"),
    ):
        assert remove_tables(text, (table,)) == left, text


def test_removing_an_added_table_restores_the_text() -> None:
    text = "version = 2\n\n[b]\nx = 1\n"

    assert remove_tables(set_value(text, ("a", "y"), "1"), ("a",)) == text


INLINE = """\
a = { b = "x, }", c.d = [1, { e = 2 }], f = { 'g h' = 'i' }, j = {} }
k = [ "l", 'm', # "n"
  "o\\"p" ]
"""


def test_read_values_returns_a_path_for_each_value_in_an_inline_table() -> None:
    values = read_values(INLINE)

    assert {path: value for path, value in values.items() if path[0] == "a" != path[-1]} == {
        ("a", "b"): '"x, }"',
        ("a", "c", "d"): "[1, { e = 2 }]",
        ("a", "f"): "{ 'g h' = 'i' }",
        ("a", "f", "g h"): "'i'",
        ("a", "j"): "{}",
    }
    assert get_value(INLINE, ("a", "f", "g h")) == "'i'"
    assert values_below(INLINE, ("a", "f")) == {"g h": "'i'"}


def test_first_of_two_equal_toml_keys_is_read_and_set() -> None:
    text = "[a]\nk = 1\nk = 2\n"

    assert get_value(text, ("a", "k")) == "1"
    assert get_value(set_value(text, ("a", "k"), "3"), ("a", "k")) == "3"


def test_strings_of_an_array_are_read_without_comments_and_quotes() -> None:
    assert read_strings(read_values(INLINE)[("k",)]) == ("l", "m", 'o"p')
    assert read_strings("[]") == read_strings("") == ()
    assert read_strings('["""a, b""", \'\'\'c\'d\'\'\', "\\u0065"]') == ("a, b", "c'd", "e")
    assert read_values('t = {a = """b}, c""", d = 1}')[("t", "d")] == "1"
    text = 'a = ["""b"""", "c"] # "d"\nt = {a = \'\'\'b\'\'\'\'\', c = """"""}\n'
    assert read_strings(read_values(text)[("a",)]) == ('b"', "c")
    assert [read_string(read_values(text)[("t", key)]) for key in ("a", "c")] == ["b''", ""]


def test_invalid_inline_table_is_refused() -> None:
    for text in (
        *("a = { b }\n", "a = { = 1 }\n", "a = { b = [1 }]\n", "a = { b = 1 } c\n"),
        f"a = {'{a=' * 150}1{'}' * 150}\n",
    ):
        with pytest.raises(TomlTextError, match=r"^line 3: "):
            read_values(f"x = 1\n\n{text}")


def test_removing_a_table_inside_an_inline_table_is_refused() -> None:
    assert remove_tables("a = { b = 1 }\nc = 2\n", ("a",)) == "c = 2\n"
    with pytest.raises(TomlTextError) as error:
        remove_tables(f"x = 1\n{INLINE}", ("a", "f", "g h"))

    assert (
        str(error.value)
        == "line 2: 'a' is written inline, so 'f.\"g h\"' cannot be removed from it"
    )


def test_key_may_be_empty_or_have_blanks_around_it() -> None:
    for text, path in (
        ('[ a . "b c" ] # mine', ("a", "b c")),
        ("\t[[ a.b ]]\r", ("a", "b")),
        ('"" = 1', ("",)),
        ("a.'' = 1", ("a", "")),
    ):
        (entry,) = read_entries(text)
        assert entry.path == path


def test_multi_line_string_ends_at_three_quotes_that_are_not_escaped() -> None:
    text = 'a = """x\\"""\ny""" # mine\nb = \'\'\'x\\\'\'\'\nc = "" # none\nd = 1\r\n'

    assert read_values(text) == {
        ("a",): '"""x\\"""\ny"""',
        ("b",): "'''x\\'''",
        ("c",): '""',
        ("d",): "1",
    }


def test_new_key_is_added_at_the_first_header_or_dotted_key_of_its_table() -> None:
    for text, path, edited in (
        ("a.b = [\n1]\nx = 1\n", ("a", "c"), "a.b = [\n1]\na.c = 2\nx = 1\n"),
        ("a.b.d = 1\n", ("a", "b", "c"), "a.b.d = 1\na.b.c = 2\n"),
        ("a.b = 1\na.d = 1\n", ("a", "c"), "a.b = 1\na.c = 2\na.d = 1\n"),
        ("[a]\nb.x = 1\n[a.c]\n", ("a", "c", "y"), "[a]\nb.x = 1\n[a.c]\ny = 2\n"),
        ("\ufeff[a]\nx = 1\n", ("a", "y"), "[a]\ny = 2\nx = 1\n"),
        ("\ufeff[a]\nx = 1\n", ("y",), "y = 2\n[a]\nx = 1\n"),
    ):
        assert set_value(text, path, "2") == edited
