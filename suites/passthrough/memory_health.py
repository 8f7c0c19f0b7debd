"""Checks a GPU's memory by the counters of its driver, without CUDA.

The fields are those of `nvidia-smi --help-query-gpu`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOTAL = "memory.total"
#: Each field with the meaning of a count above 0, or of "Yes".
_COUNTERS = {
    "ecc.errors.uncorrected.volatile.total": "errors that were not corrected since the driver was loaded",
    "ecc.errors.uncorrected.aggregate.total": "errors that were not corrected in the GPU's life",
}
_FLAGS = {
    "retired_pages.pending": "pages wait to be retired",
    "remapped_rows.pending": "rows wait to be remapped",
    "remapped_rows.failure": "a row could not be remapped",
}
QUERIES = (_TOTAL, *_COUNTERS, *_FLAGS)
#: The words that nvidia-smi prints for a feature that the GPU lacks, such as ECC.
_LACKS = {"[N/A]", "N/A", "[Not Supported]"}


@dataclass(frozen=True, kw_only=True)
class MemoryHealth:
    """The size of the GPUs' memory in MiB, and a phrase for each fault of the memory."""

    total_mib: int
    faults: list[str]


def parse_memory_health(answers: Mapping[str, str]) -> MemoryHealth:
    """Parse the output of `nvidia-smi --format=csv,noheader,nounits` for the fields in `QUERIES`.

    Each GPU has a line. Raises HarnessError for a field that is neither a value nor a word for a
    missing feature.
    """
    sizes = [_number(_TOTAL, word) for word in _words(answers, _TOTAL)]
    faults = [f"GPU {index} has no memory" for index, size in enumerate(sizes) if size == 0]
    for field, meaning in _COUNTERS.items():
        for index, word in enumerate(_words(answers, field)):
            if word not in _LACKS and (count := _number(field, word)):
                faults.append(f"GPU {index}: {count} {meaning} ('{field}')")
    for field, meaning in _FLAGS.items():
        for index, word in enumerate(_words(answers, field)):
            if word in _LACKS or word.lower() in {"no", "0"}:
                continue
            if word.lower() not in {"yes", "1"}:
                raise _unknown(field, word)
            faults.append(f"GPU {index}: {meaning} ('{field}')")
    return MemoryHealth(total_mib=sum(sizes), faults=faults)


def _words(answers: Mapping[str, str], field: str) -> list[str]:
    words = [line.strip() for line in answers.get(field, "").splitlines() if line.strip()]
    if not words:
        raise _unknown(field, "")
    return words


def _number(field: str, word: str) -> int:
    if not word.isdecimal():
        raise _unknown(field, word)
    return int(word)


def _unknown(field: str, word: str) -> HarnessError:
    return HarnessError(
        f"nvidia-smi was expected to tell '{field}', but printed {word!r}; the memory's health is "
        "unknown."
    )
