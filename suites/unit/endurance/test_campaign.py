"""The order of a campaign, and what its summary says."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest

from suites.endurance.campaign import Attempt, order, run
from suites.endurance.campaigns import CAMPAIGNS, MIX
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    from suites.endurance.campaign import Case, Summary

_CASES = ("disk", "kill", "stop")


def first(seed: int, count: int = 30) -> list[Attempt]:
    return list(itertools.islice(order(seed, _CASES), count))


def test_order_of_tries_is_the_same_for_the_same_seed() -> None:
    assert first(51) == first(51)
    assert list(itertools.islice(order(51, _CASES[::-1]), 30)) == first(51)


def test_another_seed_gives_another_order() -> None:
    assert first(51) != first(52)
    assert [each.case for each in first(51)] != [each.case for each in first(52)]


def test_each_case_is_tried_once_in_each_round() -> None:
    cases = [each.case for each in first(51)]

    assert [each.number for each in first(51)] == list(range(1, 31))
    assert all(sorted(cases[at : at + 3]) == sorted(_CASES) for at in range(0, 30, 3))


def test_campaign_starts_tries_until_its_time_limit(tmp_path: Path) -> None:
    clock = FakeClock()
    said: list[str] = []
    tried: list[Attempt] = []

    def case(attempt: Attempt) -> list[str]:
        tried.append(attempt)
        clock.sleep(10)
        return ["a process is left"] if attempt.case == "kill" else []

    def short(minutes: float) -> int:
        tried.clear()
        summary = run(
            "crash",
            dict.fromkeys(_CASES, case),
            seed=51,
            minutes=minutes,
            clock=clock,
            report=said.append,
            summaries=tmp_path,
        )
        assert [each.attempt for each in summary.found] == [
            each for each in tried if each.case == "kill"
        ]
        return sum(summary.tries.values())

    assert short(0.0) == 1
    assert short(0.3) == 2
    assert short(1.0) == 6
    assert tried == first(51, 6)
    assert any("BROKE A PROMISE: a process is left" in line for line in said)


def summary_of_one_try(case: Case, folder: Path) -> Summary:
    return run(
        "crash",
        dict.fromkeys(_CASES, case),
        seed=51,
        minutes=0.0,
        clock=FakeClock(),
        report=lambda _line: None,
        summaries=folder,
    )


def test_summary_lists_untried_cases_with_0_tries(tmp_path: Path) -> None:
    summary = summary_of_one_try(lambda _attempt: [], tmp_path)

    assert sorted(summary.tries.values()) == [0, 0, 1]
    assert sorted(summary.tries) == list(_CASES)


def test_saved_summary_has_the_seed_and_tries_and_findings(tmp_path: Path) -> None:
    summary = summary_of_one_try(lambda _attempt: ["a process is left"], tmp_path / "summaries")

    assert summary.render().startswith("crash: seed 51, 0.0 minutes, 1 tries, 1 broken promises")
    kept = json.loads((tmp_path / "summaries" / "crash-51.json").read_text())
    assert (kept["campaign"], kept["seed"], sum(kept["tries"].values())) == ("crash", 51, 1)
    assert kept["found"][0]["what"] == "a process is left"


def test_summary_is_kept_if_the_campaign_is_interrupted(tmp_path: Path) -> None:
    def stop(_attempt: Attempt) -> list[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        summary_of_one_try(stop, tmp_path)

    assert json.loads((tmp_path / "crash-51.json").read_text())["seed"] == 51


def test_summary_is_kept_after_each_try(tmp_path: Path) -> None:
    """A run of many hours may be killed."""
    kept: list[int] = []

    def count(attempt: Attempt) -> list[str]:
        if attempt.number > 1:
            document = json.loads((tmp_path / "crash-51.json").read_text())
            kept.append(sum(document["tries"].values()))
        clock.advance(60)
        return []

    clock = FakeClock()
    run(
        "crash",
        dict.fromkeys(_CASES, count),
        seed=51,
        minutes=3.0,
        clock=clock,
        report=lambda _line: None,
        summaries=tmp_path,
    )

    assert kept == [1, 2]


def test_every_campaign_of_the_mix_runs_in_its_own_namespaces() -> None:
    assert all(CAMPAIGNS[name].is_apart for name in MIX)
