"""The health of a GPU's memory, determined from the counters of the GPU's driver."""

from __future__ import annotations

import pytest

from harness.errors import HarnessError
from suites.passthrough.memory_health import QUERIES, MemoryHealth, parse_memory_health

WELL = {
    "memory.total": "81559\n",
    "ecc.errors.uncorrected.volatile.total": "0\n",
    "ecc.errors.uncorrected.aggregate.total": "0\n",
    "retired_pages.pending": "No\n",
    "remapped_rows.pending": "No\n",
    "remapped_rows.failure": "No\n",
}


def test_each_memory_query_has_a_sample_answer() -> None:
    assert set(WELL) == set(QUERIES)


def test_healthy_memory_has_no_faults() -> None:
    assert parse_memory_health(WELL) == MemoryHealth(total_mib=81559, faults=[])


def test_gpu_without_ecc_has_no_fault() -> None:
    answers = dict.fromkeys(WELL, "[N/A]\n") | {"memory.total": "24576\n"}

    assert parse_memory_health(answers).faults == []


@pytest.mark.parametrize(
    ("field", "word", "fault"),
    [
        (
            "ecc.errors.uncorrected.volatile.total",
            "2",
            "GPU 1: 2 errors that were not corrected since",
        ),
        (
            "ecc.errors.uncorrected.aggregate.total",
            "1",
            "GPU 1: 1 errors that were not corrected in",
        ),
        ("retired_pages.pending", "Yes", "GPU 1: pages wait to be retired"),
        ("remapped_rows.pending", "1", "GPU 1: rows wait to be remapped"),
        ("remapped_rows.failure", "Yes", "GPU 1: a row could not be remapped"),
        ("memory.total", "0", "GPU 1 has no memory"),
    ],
)
def test_fault_of_the_second_gpu_is_reported(field: str, word: str, fault: str) -> None:
    answers = {each: text * 2 for each, text in WELL.items()}
    answers[field] = f"{WELL[field].strip()}\n{word}\n"

    (found,) = parse_memory_health(answers).faults

    assert found.startswith(fault)


@pytest.mark.parametrize("word", ["", "[Unknown Error]", "-1", "perhaps"])
def test_invalid_answer_to_a_memory_query_raises_an_error(word: str) -> None:
    for field in WELL:
        with pytest.raises(HarnessError, match=f"expected to tell '{field}'.*unknown"):
            parse_memory_health({**WELL, field: word})
