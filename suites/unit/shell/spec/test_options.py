"""Option files that nobody can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.shell.spec.options import is_spec, read_options

if TYPE_CHECKING:
    from pathlib import Path


def test_option_file_that_is_not_text_is_named_and_hides_no_spec(tmp_path: Path) -> None:
    (tmp_path / ".shellspec").write_bytes(b"--pattern \xff\xfe\n")

    with pytest.raises(BadInputError, match=r"cannot be read.*utf-8") as refusal:
        read_options(tmp_path)

    assert refusal.value.source == str(tmp_path / ".shellspec")
    assert is_spec(tmp_path / "some_spec.sh")
    assert not is_spec(tmp_path / "some.sh")


@pytest.mark.parametrize("option", ["--kcov-options", "--kcov-common-options"])
def test_options_of_coverage_are_ignored(tmp_path: Path, option: str) -> None:
    (tmp_path / ".shellspec").write_text(f'--kcov\n{option} "--include-path=./bin"\n--sandbox\n')

    assert read_options(tmp_path).mocks_only
