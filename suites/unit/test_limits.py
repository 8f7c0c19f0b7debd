"""Limits, and the environment variables that raise them."""

from __future__ import annotations

import pytest

from harness.errors import BadInputError
from harness.limits import Limit, LimitError, Unit

LIMIT = Limit(name="archive-mib", default=2, unit=Unit.MIB, what="an unpacked archive")


def test_limit_error_mentions_the_source_and_the_limit_and_the_variable_to_set() -> None:
    LIMIT.check_bytes(2 << 20, "a.tar.gz")

    with pytest.raises(LimitError) as refusal:
        LIMIT.check_bytes((2 << 20) + 1, "a.tar.gz")

    assert str(refusal.value) == (
        "a.tar.gz: an unpacked archive: more than 2 MiB, which is the limit 'archive-mib'. "
        "If you trust the source, set HARNESS_LIMIT_ARCHIVE_MIB to a larger number."
    )


def test_environment_raises_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_ARCHIVE_MIB", "3")

    LIMIT.check(3, "a.tar.gz")

    assert LIMIT.bytes == 3 << 20
    assert Limit(name="file-kib", default=3, unit=Unit.KIB, what="a file").bytes == 3 << 10


@pytest.mark.parametrize("written", ["0", "-1", "1.5", "9" * 13, "\u0663"])
def test_limit_that_is_not_a_positive_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_ARCHIVE_MIB", written)

    with pytest.raises(BadInputError, match="HARNESS_LIMIT_ARCHIVE_MIB: A whole number of MiB"):
        LIMIT.check(1, "a.tar.gz")
