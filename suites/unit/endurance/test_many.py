"""The footprints that the campaign *many* compares."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from suites.endurance import many
from suites.endurance.campaign import Attempt
from suites.endurance.surroundings import Inventory

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_memory_check_ignores_growth_from_the_number_of_simultaneous_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most_at_once = 0

    def machines(_lab: object, _top: Path, *, count: int, at_once: int) -> list[str]:
        nonlocal most_at_once
        most_at_once = max(most_at_once, min(count, at_once))
        return []

    def take() -> many.Footprint:
        # An allocator keeps an arena for each thread that there ever was at once.
        return many.Footprint(
            processes=1,
            descriptors=9,
            threads=1,
            memory_mib=80 + 5 * most_at_once,
            things=Inventory(Counter()),
        )

    monkeypatch.setattr(many, "_machines", machines)
    monkeypatch.setattr(many, "_runs", lambda _folder: [])
    monkeypatch.setattr(many.Footprint, "take", take)
    monkeypatch.setattr("suites.endurance.many.Lab.open", lambda *_words: contextlib.nullcontext())

    with many.Many().opened(tmp_path) as cases:
        broken = [
            each
            for name in cases
            for each in cases[name](Attempt(number=1, case=name, moment=0.5, amount=0.5))
        ]

    assert broken == []
