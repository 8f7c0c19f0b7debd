"""Lists of digests: one digest for each file, and lines in the format of sha256sum."""

from __future__ import annotations

import pytest

from harness.image import ImageFetchError
from harness.image.cloud.digest_lists import read_sums
from harness.image.cloud.source import Algorithm

A, B = "a" * 64, "b" * 64


def read(text: str) -> dict[str, str]:
    found = read_sums(text, algorithm=Algorithm.SHA256, url="https://h/SUMS")
    return {name: digest.value for name, digest in found.items()}


def test_digest_of_each_file_is_read_from_the_list() -> None:
    for text, found in (
        (f"{A}  x\n{B} *y\n", {"x": A, "y": B}),
        (f"{A}  x\r\n", {"x": A}),
        (f"{A}  x\n{A} *./x\n", {"x": A}),
        (f"{A}  a b\n", {"a b": A}),
    ):
        assert read(text) == found


def test_list_with_two_digests_for_a_file_is_refused() -> None:
    for other in ("x", ".//x"):
        with pytest.raises(
            ImageFetchError, match=r"has two digests of 'x', sha256:aaaa.* and sha256:bb"
        ):
            read(f"{A}  x\n{B} *{other}\n")


def test_malformed_line_is_refused() -> None:
    for text, why in (
        (f"{A}  x", "is truncated: line 1"),
        (f"{A}  x\n{B[:60]}", "is truncated: line 2"),
        (f"{A}\t x\n{B}  y\n", "is malformed: line 1"),
        (f"SHA256 (x) = {A}\n", "is malformed: line 1"),
        (f"{A}  x\u2028{B}  y\n{B}  z\n", "is malformed: line 1"),
        (f"{A}  x\x1b[2J\n{B}  z\n", "is malformed: line 1"),
    ):
        with pytest.raises(ImageFetchError, match=why) as refusal:
            read(text)

        assert "\x1b" not in str(refusal.value)
