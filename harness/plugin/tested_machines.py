"""Records facts of a test's machines, for JUnit's properties and Allure's parameters and labels."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from harness.lab.machine import LabMachine
    from harness.settings import Settings

_FACTS: pytest.StashKey[dict[str, str]] = pytest.StashKey()


def note_machines(item: pytest.Item, machines: Iterable[LabMachine], settings: Settings) -> None:
    """Record the facts of the machines that a test has now; if machines differ, list all values."""
    found: dict[str, dict[str, None]] = {}
    for machine in machines:
        # A test without machines should not load the lab.
        from harness.lab.machine_facts import machine_facts  # noqa: PLC0415

        # An exception from a hook would end the whole run.
        with contextlib.suppress(Exception):
            facts = {**machine_facts(machine), "machine_driver": settings.machine_driver.value}
            for name, value in facts.items():
                found.setdefault(name, {})[value] = None
    known = item.stash.setdefault(_FACTS, {})
    for name, values in found.items():
        # The test may have started machines after its set-up.
        before = (name, known.get(name))
        known[name] = ", ".join(values)
        # The teardown's report copies the item's properties, and the JUnit file gets the properties
        # of this report.
        item.user_properties[:] = [each for each in item.user_properties if each != before]
        item.user_properties.append((name, known[name]))


def facts_of(item: pytest.Item) -> Mapping[str, str]:
    """Return the recorded facts of a test's machines."""
    return item.stash.get(_FACTS, {})
