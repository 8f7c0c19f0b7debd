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


def test_guest_that_needs_more_than_the_locked_memory_limit_is_refused_with_a_remedy() -> None:
    check((1536 + 256) * MIB)
    check(resource.RLIM_INFINITY)
    check(0, is_unlimited=True)

    with pytest.raises(
        RequirementError,
        match=r"needs 1792 MiB.*lock 1791 MiB.*`ulimit -l 1835008`.*`LimitMEMLOCK=1792M`",
    ):
        check((1536 + 256) * MIB - 1)


def test_cap_ipc_lock_is_detected_only_among_the_effective_capabilities() -> None:
    expected = {
        "Name:\tpytest\nCapEff:\t0000000000004000\n": True,
        "Name:\tpytest\nCapEff:\t000001ffffffffff\n": True,
        "CapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffbfff\n": False,
        "Name:\tpytest\n": False,
    }

    assert {status: has_ipc_lock(status) for status in expected} == expected


def test_soft_memlock_limit_applies_unless_the_process_has_cap_ipc_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {resource.RLIMIT_MEMLOCK: (8 * MIB, resource.RLIM_INFINITY)}
    statuses: list[str] = []
    answers = iter([True, False])

    def judge(status: str) -> bool:
        statuses.append(status)
        return next(answers)

    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(locked_memory, "has_ipc_lock", judge)

    require_locked_memory(1536)
    with pytest.raises(RequirementError, match=r"1792 MiB of .* may lock 8 MiB"):
        require_locked_memory(1536)

    assert f"\nPid:\t{os.getpid()}\n" in statuses[0]
