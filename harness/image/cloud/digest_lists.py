"""Parses lists of digests in the format of sha256sum and sha512sum."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.errors import listed
from harness.image import ImageFetchError
from harness.image.cloud.source import Digest

if TYPE_CHECKING:
    from harness.image.cloud.source import Algorithm

_SHOWN = 5


def read_sums(text: str, *, algorithm: Algorithm, url: str) -> dict[str, Digest]:
    """Return the digests by file name. `url` is the URL of the list.

    Raises ImageFetchError if the list is truncated, since the missing part may contain the needed
    line, or if the list has two digests of one file.
    """
    line_shape = re.compile(rf"([0-9a-f]{{{algorithm.digits}}}) [ *](\S.*)")
    digests: dict[str, Digest] = {}
    # splitlines() is not used, since it also splits at characters that do not end a line of
    # sha256sum.
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        found = line_shape.fullmatch(line)
        is_cut = number == len(lines) and not text.endswith("\n")
        if found is None or is_cut or not found[2].isprintable():
            problem = "is truncated" if is_cut else "is malformed"
            raise ImageFetchError(
                f"The list '{url}' {problem}: line {number}, '{line[:80]}', does not consist of a "
                f"{algorithm.value} digest and a file name. No image was downloaded; try again, or "
                "name another location with --mirror."
            )
        name = PurePosixPath(found[2]).as_posix()
        digest = Digest(algorithm=algorithm, value=found[1])
        if digests.setdefault(name, digest) != digest:
            raise ImageFetchError(
                f"The list '{url}' has two digests of '{name}', {digests[name].short} and {digest.short}. No "
                "image was downloaded; name another location with --mirror."
            )
    return digests


def digest_of(file: str, digests: dict[str, Digest], *, url: str) -> Digest:
    """Return the digest of `file` in a list; raises ImageFetchError if the list lacks the file."""
    try:
        return digests[file]
    except KeyError:
        names = sorted(digests)
        shown = listed(names[:_SHOWN])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise ImageFetchError(
            f"The list '{url}' has no digest of '{file}'; it has {shown}{more}. No image was "
            "downloaded; check 'file' in the image's recipe, and whether the list is complete."
        ) from None
