"""The limit of locked memory for guests with a GPU of the host."""

from __future__ import annotations

import resource

import pytest

from harness.errors import RequirementError
from harness.machine.qemu.locked_memory import check_locked_memory, has_ipc_lock

MIB = 1 << 20


def check(limit_bytes: int, *, is_unlimited: bool = False) -> None:
    check_locked_memory(1536, limit_bytes=limit_bytes, is_unlimited=is_unlimited)


def test_guest_fits_exactly_into_the_limit() -> None:
    check((1536 + 256) * MIB)


def test_one_byte_too_few_is_refused_with_what_to_set() -> None:
    with pytest.raises(RequirementError) as refused:
        check((1536 + 256) * MIB - 1)

    message = str(refused.value)
    assert "needs 1792 MiB of locked memory, but this process may lock 1791 MiB" in message
    assert "`ulimit -l 1835008`" in message
    assert "LimitMEMLOCK=1792M" in message


def test_no_limit_is_no_obstacle() -> None:
    check(resource.RLIM_INFINITY)


def test_capability_lifts_the_limit() -> None:
    check(0, is_unlimited=True)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("Name:\tpytest\nCapEff:\t0000000000004000\n", True),
        ("Name:\tpytest\nCapEff:\t000001ffffffffff\n", True),
        ("CapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffbfff\n", False),
        ("Name:\tpytest\n", False),
    ],
    ids=["alone", "root", "dropped", "not told"],
)
def test_effective_capability_counts(status: str, expected: bool) -> None:
    assert has_ipc_lock(status) is expected
