"""Lists of digests, as sha256sum and sha512sum write them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.errors import listed
from harness.image import ImageFetchError
from harness.image.source import Digest

if TYPE_CHECKING:
    from harness.image.source import Algorithm

_SHOWN = 5


def read_sums(text: str, *, algorithm: Algorithm, place: str) -> dict[str, Digest]:
    """Return the digests by file name; `place` is where the list came from.

    A list of which a part is missing is refused, since what is missing may be the one line that
    counts. Raises ImageFetchError.
    """
    line_shape = re.compile(rf"([0-9a-f]{{{algorithm.digits}}}) [ *](\S.*)")
    digests: dict[str, Digest] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        found = line_shape.fullmatch(line)
        if found is None or (number == len(lines) and not text.endswith("\n")):
            cut = "is cut short" if number == len(lines) else "is not sound"
            raise ImageFetchError(
                f"The list '{place}' {cut}: its line {number}, '{line[:80]}', is no "
                f"{algorithm.value} digest with a file's name. Nothing was downloaded by it; try "
                "again, or name another place with --mirror."
            )
        digests[found[2].removeprefix("./")] = Digest(algorithm=algorithm, value=found[1])
    return digests


def digest_of(file: str, digests: dict[str, Digest], *, place: str) -> Digest:
    """Return what a list says of `file`; raises ImageFetchError where it says nothing."""
    try:
        return digests[file]
    except KeyError:
        names = sorted(digests)
        shown = listed(names[:_SHOWN])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise ImageFetchError(
            f"The list '{place}' says nothing of '{file}'; it names {shown}{more}. Nothing was "
            "downloaded by it; see whether the list is whole, and whether the image's 'file' is "
            "right."
        ) from None
