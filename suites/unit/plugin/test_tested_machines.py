"""The facts of a test's machines, as the test's reports show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.lab import machine_facts
from harness.plugin.tested_machines import facts_of, note_machines
from harness.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping


class FakeItem:
    def __init__(self) -> None:
        self.stash = pytest.Stash()
        self.user_properties: list[tuple[str, object]] = [("own", 1)]


@pytest.fixture(autouse=True)
def _machines_are_their_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    def facts(machine: Any) -> Mapping[str, str]:
        if isinstance(machine, Exception):
            raise machine
        return dict(machine)

    monkeypatch.setattr(machine_facts, "machine_facts", facts)


def test_each_fact_about_the_machines_of_a_test_lists_equal_values_once() -> None:
    item: Any = FakeItem()
    first, second = {"image": "a", "start": "cold"}, {"image": "b", "start": "cold"}
    machines: list[Any] = [first, OSError("gone")]

    for _ in range(2):
        note_machines(item, machines, Settings())
        machines = [first, second, first]

    expected = {"image": "a, b", "start": "cold", "machine_driver": "qemu"}
    assert facts_of(item) == expected
    assert sorted(map(str, item.user_properties)) == sorted(
        map(str, [("own", 1), *expected.items()])
    )
    note_machines(item, [], Settings())
    assert facts_of(item) == expected
