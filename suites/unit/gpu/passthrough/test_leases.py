"""The rules that decide which waiting process gets a GPU next."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gpu.passthrough.leases import GpuLease, grant

A, B, C = "0000:65:00.0", "0000:66:00.0", "0000:67:00.0"
ALL = frozenset({A, B, C})


def entry(
    number: int,
    *wanted: tuple[str, ...],
    taken: tuple[str, ...] = (),
    process: int | None = None,
) -> tuple[str, GpuLease]:
    lease = GpuLease(
        who=f"test {number}",
        process=process or number,
        user="ci",
        since="2026-11-23T02:00:00+00:00",
        wanted=wanted,
        taken=taken,
    )
    return name(number), lease


def name(number: int) -> str:
    return f"{number:09d}-00000000"


def turn(
    number: int, *entries: tuple[str, GpuLease], usable: frozenset[str] = ALL
) -> tuple[str, ...]:
    return grant(name(number), entries, usable, {}).taken


def text(number: int, *entries: tuple[str, GpuLease], busy: dict[str, str] | None = None) -> str:
    return grant(name(number), entries, ALL - {*(busy or {})}, busy or {}).text


def test_lease_is_equal_after_a_json_round_trip() -> None:
    _, lease = entry(3, (A, B), (B,), taken=(A, B))

    assert GpuLease.from_json(lease.to_json()) == lease
    for process in ("0", "true", str((1 << 22) + 1)):
        text = lease.to_json().replace('"process": 3', f'"process": {process}')
        with pytest.raises(ValueError, match="a process was expected"):
            GpuLease.from_json(text)
    for text in ("", "[]", '{"who": "x"}', '{"wanted": 3}', '{"who": "x", "who": "y"}'):
        with pytest.raises(
            ValueError, match=r"Expecting value|a mapping was expected|it has no|twice"
        ):
            GpuLease.from_json(text)


def test_first_free_and_usable_gpu_is_granted_at_once() -> None:
    assert turn(1, entry(1, (A, B))) == (A,)
    assert turn(2, entry(1, (A,), taken=(A,)), entry(2, (A, B))) == (B,)
    assert turn(1, entry(1, (A, B)), usable=frozenset({B})) == (B,)
    assert turn(1, entry(1, (A,)), usable=frozenset({B})) == ()


def test_two_requests_get_different_gpus_even_if_one_gpu_matches_both_requests() -> None:
    assert turn(1, entry(1, (A, B), (A,))) == (B, A)


def test_process_gets_all_gpus_that_it_wants_or_none() -> None:
    assert turn(2, entry(1, (A,), taken=(A,)), entry(2, (A, B), (A, B))) == ()


def test_process_that_is_first_in_the_queue_gets_the_first_free_gpu() -> None:
    waiting = entry(1, (A, B)), entry(2, (A, B))

    assert turn(2, *waiting) == ()
    assert turn(1, *waiting) == (A,)


def test_request_for_several_gpus_is_not_starved_by_requests_for_one_gpu() -> None:
    entries = (entry(1, (A, B), taken=(A,)), entry(2, (A, B), (A, B)), entry(3, (A, B)))

    assert turn(2, *entries) == ()
    assert turn(3, *entries) == ()


def test_request_for_one_gpu_does_not_delay_a_request_for_another_gpu() -> None:
    entries = (entry(1, (A,), taken=(A,)), entry(2, (A,)), entry(3, (B,)))

    assert turn(3, *entries) == (B,)
    # The request gets no GPU that the earlier request 4 could use.
    assert turn(4, *entries, entry(4, (B, C))) == (C,)
    assert turn(4, *entries, entry(4, (A, B))) == ()


def test_process_that_holds_a_gpu_gets_a_second_gpu_before_processes_that_queued_earlier() -> None:
    """Otherwise the process would keep its GPU while it waits for processes that want this GPU."""
    entries = (
        entry(1, (A,), taken=(A,), process=7),
        entry(2, (A, B), (A, B), process=8),
        entry(3, (B,), process=7),
    )

    assert turn(3, *entries) == (B,)


def test_message_to_a_waiting_process_mentions_the_holder_and_the_first_process_in_the_queue() -> (
    None
):
    """The process in the message waits for the same GPU.

    For a held GPU, the message has the holder in place of the reason why the GPU is busy.
    """
    waiting = [entry(2, (B,)), *(entry(number, (A,)) for number in (3, 4, 5))]
    entries = (entry(1, (A,), taken=(A,)), *waiting)

    assert text(5, *entries, busy={A: "The GPU does not answer."}) == (
        f"{A} is held by 'test 1' of user ci (process 1, since 2026-11-23T02:00:00+00:00); "
        "'test 3' of user ci (process 3, since 2026-11-23T02:00:00+00:00) asked earlier"
    )


def test_wait_message_mentions_why_the_gpu_is_busy() -> None:
    assert (
        text(1, entry(1, (A,)), busy={A: "Process 3 has it open."})
        == f"{A}: Process 3 has it open"
    )


@given(
    st.lists(
        st.lists(st.sets(st.sampled_from(sorted(ALL)), min_size=1), min_size=1, max_size=3),
        min_size=1,
        max_size=6,
    )
)
def test_no_gpu_is_granted_twice_and_the_first_request_is_granted_if_possible(
    wishes: list[list[set[str]]],
) -> None:
    entries = [
        entry(number, *(tuple(sorted(wish)) for wish in several))
        for number, several in enumerate(wishes, 1)
    ]
    held: list[str] = []
    for index, (each, lease) in enumerate(entries):
        taken = grant(each, entries, ALL, {}).taken
        assert len(taken) in {0, len(lease.wanted)}
        assert all(address in wish for address, wish in zip(taken, lease.wanted, strict=False))
        held += taken
        entries[index] = entry(index + 1, *lease.wanted, taken=taken)

    assert len(held) == len({*held})
    first = entries[0][1]
    is_possible = any(
        all(address in wish for address, wish in zip(order, first.wanted, strict=False))
        for order in itertools.permutations(ALL)
    )
    assert first.is_granted == is_possible
