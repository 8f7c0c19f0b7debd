"""The limit of locked memory for guests with a GPU of the host."""

from __future__ import annotations

import os
import resource

import pytest

from harness.errors import RequirementError
from harness.machine.qemu import locked_memory
from harness.machine.qemu.locked_memory import (
    check_locked_memory,
    has_ipc_lock,
    require_locked_memory,
)

MIB = 1 << 20


def check(limit_bytes: int, *, is_unlimited: bool = False) -> None:
    check_locked_memory(1536, limit_bytes=limit_bytes, is_unlimited=is_unlimited)


def test_guest_that_needs_exactly_the_locked_memory_limit_is_accepted() -> None:
    check((1536 + 256) * MIB)


def test_error_for_a_locked_memory_limit_that_is_one_byte_too_low_has_the_remedy() -> None:
    with pytest.raises(
        RequirementError,
        match=r"needs 1792 MiB.*lock 1791 MiB.*`ulimit -l 1835008`.*`LimitMEMLOCK=1792M`",
    ):
        check((1536 + 256) * MIB - 1)


def test_unlimited_locked_memory_is_accepted() -> None:
    check(resource.RLIM_INFINITY)


def test_ipc_lock_capability_lifts_the_locked_memory_limit() -> None:
    check(0, is_unlimited=True)


def test_only_an_effective_capability_lifts_the_locked_memory_limit() -> None:
    expected = {
        "Name:\tpytest\nCapEff:\t0000000000004000\n": True,
        "Name:\tpytest\nCapEff:\t000001ffffffffff\n": True,
        "CapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffbfff\n": False,
        "Name:\tpytest\n": False,
    }

    assert {status: has_ipc_lock(status) for status in expected} == expected


@pytest.mark.parametrize("has_capability", [True, False])
def test_soft_limit_of_this_process_applies_unless_a_capability_lifts_it(
    monkeypatch: pytest.MonkeyPatch, *, has_capability: bool
) -> None:
    limits = {resource.RLIMIT_MEMLOCK: (8 * MIB, resource.RLIM_INFINITY)}
    statuses: list[str] = []

    def judge(status: str) -> bool:
        statuses.append(status)
        return has_capability

    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(locked_memory, "has_ipc_lock", judge)

    if has_capability:
        require_locked_memory(1536)
    else:
        with pytest.raises(RequirementError, match=r"1792 MiB of .* may lock 8 MiB"):
            require_locked_memory(1536)

    (status,) = statuses
    assert f"\nPid:\t{os.getpid()}\n" in status
