"""Data files are read strictly, and an error names file, line, key and the known values."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.datafile import extended, parse_yaml, read_data_file, read_document
from harness.errors import BadInputError

_FORBID = pydantic.ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class _Wheel:
    __pydantic_config__ = _FORBID

    inches: Annotated[int, pydantic.Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class _Bicycle:
    __pydantic_config__ = _FORBID

    name: str
    wheels: tuple[_Wheel, ...] = ()
    by_gear: dict[int, _Wheel] | None = None
    weight_kg: float = 10
    is_sold: bool = False
    seats: Literal[1, "none"] = 1


def _file(folder: Path, text: str) -> Path:
    file = folder / "bicycle.yaml"
    file.write_text(text)
    return file


def test_valid_file_becomes_an_object_of_the_shape(tmp_path: Path) -> None:
    """Only nested values count towards the limit of levels."""
    wheels = ", ".join(["{inches: 28}", "{inches: 0x1c}"] * 60)
    file = _file(tmp_path, f"name: racer\nwheels: [{wheels}]\nseats: 1\n")

    assert read_data_file(file, _Bicycle) == _Bicycle(
        name="racer", wheels=(_Wheel(inches=28),) * 120
    )


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("name: a\nwheles: []\n", 2, "wheles", "known keys are 'name', 'wheels', 'by_gear',"),
        ("\nwheels: []\n", 2, "name", "missing"),
        (
            "name: a\nwheels:\n- inches: 28\n- inch: 28\nby_gear: 1\n",
            4,
            "wheels.1.inch",
            "known keys are 'inches'",
        ),
        ("name: a\nwheels:\n- inches: 0\n", 3, "wheels.0.inches", "the file has 0"),
        ("name: a\nwheels:\n- inches: yes\n", 3, "wheels.0.inches", "the file has True"),
        ('name: a\nwheels:\n- inches: "28"\n', 3, "wheels.0.inches", "the file has '28'"),
        ("name: a\nby_gear: {yes: {inches: 28}}\n", 2, "by_gear.1", "the file has True"),
        ("name: a\nweight_kg: yes\n", 2, "weight_kg", "the file has True"),
        ("name: a\nweight_kg: .nan\n", 2, "weight_kg", "finite number, but the file has nan"),
        ("name: a\nweight_kg: .inf\n", 2, "weight_kg", "finite number, but the file has inf"),
        ("name: a\nis_sold: 1\n", 2, "is_sold", "the file has 1"),
        ("name: a\nseats: yes\n", 2, "seats", "the file has True"),
        ("name: a\nseats: 1.0\n", 2, "seats", "1 or 'none', but the file has 1.0"),
        ("name: a\nwheels:\n- inches: 28\n- 28\n", 4, "wheels.1", "the file has 28"),
        ("name: a\nwheels:\n- inches: 28\n- {}\n", 4, "wheels.1.inches", "missing"),
        ("name: a\nby_gear:\n  0x1: {size: 2}\n", 3, "by_gear.1.size", "known keys are 'inches'"),
        ("name: a\nname: b\n", 2, "name", "is a duplicate"),
        ("name: a\nby_gear: {1: {inches: 1},\n 0x1: {inches: 2}}\n", 3, "1", "is a duplicate"),
        ("name: &n a\nwheels: [*n]\n", 1, None, "An alias"),
        ("name: &n a\n? *n\n: b\n", 1, None, "An alias"),
        ("name: *n\n", 1, None, "undefined alias"),
        ('name: a\nwheels: ["a\\0b"]\n', 2, None, "the character NUL"),
        ("name: [\n", 2, None, "not YAML"),
        ("", None, None, "mapping of keys"),
        ("- name\n", None, None, "mapping of keys"),
        ("name: \x01\n", None, None, "not YAML"),
        ("name: 2020-13-45\n", None, None, "not YAML"),
    ],
)
def test_error_mentions_the_file_and_the_line_and_the_key(
    tmp_path: Path, text: str, line: int | None, key: str | None, words: str
) -> None:
    file = _file(tmp_path, text)

    with pytest.raises(BadInputError, match=words) as slip:
        read_data_file(file, _Bicycle)

    assert (slip.value.source, slip.value.line, slip.value.key) == (str(file), line, key)


def test_lists_are_joined_except_below_replaced_keys(
    tmp_path: Path,
) -> None:
    files = [tmp_path / name for name in ("base.yaml", "own.yaml")]
    files[0].write_text("a: {b: [1]}\nb: {a: [1]}\nc: {d: 1}\n")
    files[1].write_text("a: {b: [2]}\nb: {a: [2]}\nc: 2\n")

    found = extended(*map(read_document, files), replaced=["a"])

    assert found.data == {"a": {"b": [2]}, "b": {"a": [1, 2]}, "c": 2}
    places = [found.place(("b", "a", index)) for index in (0, 1)]
    assert [(place.file, place.line) for place in places] == [(file, 2) for file in files]
    # A person finds an item by its number in that file.
    slip = found.refusal("It is wrong.", ("b", "a", 1))
    assert (slip.source, slip.key) == (str(files[1]), "b.a.0")
    # The mapping is gone with all that was in it.
    assert found.place(("c", "d")).file == files[1]


@pytest.mark.parametrize(
    ("name", "most", "least"),
    [
        ("DATA_DIGITS", "a: 123", "a: 1234"),
        ("DATA_LEVELS", "a: [{}]", "a: [[{}]]"),
        ("DATA_FILE_KIB", "a: ".ljust(3 << 10, "b"), "a: ".ljust((3 << 10) + 1, "b")),
    ],
)
def test_document_is_refused_only_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: str, least: str
) -> None:
    monkeypatch.setenv(f"HARNESS_LIMIT_{name}", "3")

    assert parse_yaml(most) == read_document(_file(tmp_path, most)).data
    with pytest.raises(ValueError, match=name):
        parse_yaml(least)
    with pytest.raises(BadInputError, match=name):
        read_document(_file(tmp_path, least))


def test_endless_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="alias"):
        read_data_file(_file(tmp_path, "name: &loop [*loop]\n"), _Bicycle)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_too_deep_nesting_is_refused(tmp_path: Path, opening: str) -> None:
    for levels in (200, 10_000):
        with pytest.raises(BadInputError, match=r"'data-levels'|nesting depth"):
            read_data_file(_file(tmp_path, "name:\n  " + opening * levels), _Bicycle)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: " + "9" * 5000, "'data-digits'"),
        ("name: 0x" + "f" * 100_000, "'data-digits'"),
        ("name: 1" + ":59" * 10_000, "'data-digits'"),
        ("name: 1." + "9" * 5000, "'data-digits'"),
        ("? " + "k" * 100_000 + "\n: 1", "not known"),
        ("name: ['" + "v" * 100_000 + "']", "a valid string"),
        ("name: " + "v" * (1 << 20), "'data-file-kib'.*HARNESS_LIMIT_DATA_FILE_KIB"),
        ("? {a: b}\n: 1", "not YAML"),
    ],
    ids=lambda value: value[:16],
)
def test_error_for_a_too_long_number_or_key_or_file_is_short(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(BadInputError, match=words) as slip:
        read_data_file(_file(tmp_path, text), _Bicycle)

    assert len(str(slip.value)) < 4000


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10_000,
        "9" * 5000,
        "a: b: c",
        "!!python/name:os.system",
        "\0",
        "'" * 3,
        "x" * (1 << 20),
    ],
    ids=lambda value: value[:12],
)
def test_malformed_yaml_of_a_guest_raises_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_yaml(text)


def test_yaml_is_refused_if_its_merge_keys_expand_it_beyond_the_size_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each line merges all keys of the lines above it, so 4 KiB become 8000 keys."""
    monkeypatch.setenv("HARNESS_LIMIT_DATA_FILE_KIB", "5")
    lines = [
        "a0: &a0 {k0: 1}",
        *(f"a{n}: &a{n} {{k{n}: 1, <<: *a{n - 1}}}" for n in range(1, 128)),
    ]

    assert parse_yaml("\n".join(lines[:64]))["a63"]["k0"] == 1
    with pytest.raises(ValueError, match=r"merged keys.*DATA_FILE_KIB"):
        parse_yaml("\n".join(lines))


def test_yaml_of_a_guest_may_have_anchors_and_be_empty() -> None:
    assert parse_yaml("a: &b [1]\nc: *b\n") == {"a": [1], "c": [1]}
    assert parse_yaml("") is None


YAML_WORDS = (
    *(
        "name",
        ": ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "\n",
        "  ",
        "&a ",
        "*a",
        "'",
        "~",
        "? ",
        "<<: ",
        "| ",
    ),
    *("!!int ", "!!set ", "0x", "1:2", "9" * 400, "2020-01-01", ".inf", "#"),
)


@given(
    text=st.one_of(
        st.text(max_size=60),
        st.lists(
            st.sampled_from(YAML_WORDS),
            max_size=24,
        ).map("".join),
    )
)
def test_any_yaml_is_read_or_refused_with_the_expected_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_yaml(text)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.yaml"
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        with contextlib.suppress(BadInputError):
            read_data_file(file, _Bicycle)


def test_file_is_read_without_libyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.datafile._Loader", yaml.SafeLoader)
    file = _file(tmp_path, "name: racer\n")

    assert read_data_file(file, _Bicycle) == _Bicycle(name="racer")


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read"):
        read_data_file(tmp_path / "none.yaml", _Bicycle)


def test_fifo_in_place_of_a_data_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bicycle.yaml"
    os.mkfifo(file)

    with pytest.raises(BadInputError, match="not a regular file"):
        read_data_file(file, _Bicycle)


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bicycle.yaml"
    file.write_bytes(b"name: \xff\xfe\n")

    with pytest.raises(BadInputError, match="cannot be read"):
        read_data_file(file, _Bicycle)
