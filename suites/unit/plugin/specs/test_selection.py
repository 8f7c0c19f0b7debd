"""Which examples the arguments `FILE:LINE` and `FILE::NAME` select."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.plugin.specs.selection import Selection, selection_of, take_selections
from harness.shell.spec.spec_file import Case, Group

if TYPE_CHECKING:
    from pathlib import Path

_OUTER = Group(name="outer", begin=1)
_INNER = Group(name="in [ner]", begin=10)
_CASES = {
    "outer::first": Case(number=0, name="first", groups=(_OUTER,), begin=2, end=5),
    "outer::rows": Case(number=1, name="rows", groups=(_OUTER,), begin=6, end=9, row=0),
    "outer::rows <line 6>": Case(number=2, name="rows", groups=(_OUTER,), begin=6, end=9, row=1),
    "outer::in [ner]::last": Case(
        number=3, name="last", groups=(_OUTER, _INNER), begin=11, end=14
    ),
}


def test_line_in_an_argument_selects_the_example_at_that_line_or_the_group_that_begins_there() -> (
    None
):
    for line, numbers in ((2, {0}), (5, {0}), (7, {1, 2}), (10, {3}), (1, {0, 1, 2, 3})):
        assert Selection(lines={line}).chosen(_CASES, "a_spec.sh") == numbers, line


def test_name_in_an_argument_selects_the_group_or_example_of_that_name() -> None:
    for name, numbers in (
        ("outer::first", {0}),
        ("outer", {0, 1, 2, 3}),
        ("outer::in [ner]", {3}),
        ("outer::in [ner]::last]", {3}),  # pytest's summary appends the last bracket
        ("outer::rows", {1}),
    ):
        assert Selection(names={name}).chosen(_CASES, "a_spec.sh") == numbers, name


def test_selections_by_line_and_by_name_are_combined() -> None:
    assert Selection({2, 7}, {"outer::in [ner]"}).chosen(_CASES, "a_spec.sh") == {0, 1, 2, 3}


def test_error_for_a_line_without_an_example_shows_the_existing_examples() -> None:
    with pytest.raises(BadInputError, match=r"line 15.*2 to 5, 6 to 9, 11 to 14") as refused:
        Selection(lines={2, 15}).chosen(_CASES, "a_spec.sh")

    assert refused.value.source == "a_spec.sh"


def test_line_of_a_file_without_examples_is_refused() -> None:
    with pytest.raises(BadInputError, match="the file has no examples"):
        Selection(lines={1}).chosen({}, "a_spec.sh")


def test_unknown_name_of_a_group_or_example_is_refused() -> None:
    for name in ("outer::fir", "first", "outer::first::x"):
        with pytest.raises(BadInputError, match=f"no group or example '{name}'"):
            Selection(names={name}).chosen(_CASES, "a_spec.sh")


def _config(folder: Path, *arguments: str) -> pytest.Config:
    return SimpleNamespace(  # type: ignore[return-value]  # only these attributes are used
        args=list(arguments),
        invocation_params=SimpleNamespace(dir=folder),
        stash=pytest.Stash(),
    )


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec" / "a_spec.sh"
    path.parent.mkdir()
    path.touch()
    return path


def test_several_selections_in_one_spec_file_collect_the_file_once(
    tmp_path: Path, spec: Path
) -> None:
    config = _config(
        tmp_path, "spec/a_spec.sh:3", f"{spec}:7:9", "spec/a_spec.sh::g [x]::n", "test_a.py::t"
    )

    take_selections(config)

    assert config.args == ["spec/a_spec.sh", str(spec), "test_a.py::t"]
    assert selection_of(config, spec) == Selection({3, 7, 9}, {"g [x]::n"})


def test_file_argument_without_a_line_overrides_selections_by_line(
    tmp_path: Path, spec: Path
) -> None:
    for whole in ("spec", ".", "spec/a_spec.sh"):
        config = _config(tmp_path, "spec/a_spec.sh:3", whole)

        take_selections(config)

        assert selection_of(config, spec) is None, whole


def test_line_number_after_a_path_that_is_not_a_spec_file_is_left_to_pytest(
    tmp_path: Path, spec: Path
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for argument in (
        "spec/b_spec.sh:3",
        "spec:3",
        "test_a.py:3",
        "loop:3",
        "a" * 5000,
        f"{spec}:{'1' * 5000}",
    ):
        (tmp_path / "test_a.py").touch()
        config = _config(tmp_path, argument, argument)

        take_selections(config)

        assert config.args == [argument, argument], argument
        assert selection_of(config, spec) is None, argument
