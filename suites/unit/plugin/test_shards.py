"""Which tests a shard runs, and what is recorded of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.plugin.shards import ShardPlugin, family_of
from harness.sharding import Shard
from harness.sharding.manifest import begin, read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(eq=False)
class FakeItem:
    """Plays a test: `fixtures` has the arguments of each, by its name."""

    nodeid: str
    fixtures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scopes: Mapping[str, str] = field(default_factory=dict)
    image: str = ""

    @property
    def callspec(self) -> object:
        return SimpleNamespace(params={"image_name": self.image})

    @property
    def _fixtureinfo(self) -> object:
        return SimpleNamespace(
            name2fixturedefs={
                name: [
                    SimpleNamespace(
                        argnames=arguments, scope=self.scopes.get(name, "session"), baseid=""
                    )
                ]
                for name, arguments in self.fixtures.items()
            }
        )

    def get_closest_marker(self, _name: str) -> None:
        return None


class FakeHook:
    def __init__(self) -> None:
        self.deselected: list[str] = []

    def pytest_deselected(self, items: list[FakeItem]) -> None:
        self.deselected += [item.nodeid for item in items]


def select(plugin: ShardPlugin, items: list[FakeItem]) -> tuple[list[str], list[str]]:
    """Return the tests that stay, in their order, and those that do not."""
    hook = FakeHook()
    left: Any = list(items)
    config: Any = SimpleNamespace(hook=hook)
    plugin.pytest_collection_modifyitems(config, left)
    return [item.nodeid for item in left], hook.deselected


def a_plugin(
    number: int = 1, count: int = 1, folder: Path | None = None, **durations: float
) -> ShardPlugin:
    known = {f"a.py::{name}": seconds for name, seconds in durations.items()}
    shard = None if count == 1 else Shard(number=number, count=count)
    return ShardPlugin(shard=shard, durations=known, folder=folder)


def some_tests(*names: str) -> list[FakeItem]:
    return [FakeItem(f"a.py::{name}") for name in names]


def test_each_shard_has_its_own_tests_by_their_durations() -> None:
    items = some_tests("one", "two", "three")

    halves = [select(a_plugin(number, 2, one=1, two=9, three=8), items) for number in (1, 2)]

    assert halves == [
        (["a.py::two"], ["a.py::one", "a.py::three"]),
        (["a.py::one", "a.py::three"], ["a.py::two"]),
    ]


def test_run_that_is_no_shard_keeps_all_tests_in_their_order() -> None:
    items = [FakeItem("b.py::quick"), FakeItem("a.py::slow")]

    assert select(a_plugin(slow=9), items) == (["b.py::quick", "a.py::slow"], [])


def test_both_runs_of_a_repeated_test_stay_together() -> None:
    """The group that xdist appends is no part of a test's name."""
    items = [FakeItem("a.py::x@one"), FakeItem("a.py::y"), FakeItem("a.py::x@one")]

    assert select(a_plugin(1, 2, x=9, y=1), items) == (["a.py::x@one"] * 2, ["a.py::y"])


@pytest.mark.parametrize(
    ("fixtures", "scopes", "family"),
    [
        ({}, {}, "a.py"),
        ({"lab": (), "image_name": ()}, {}, "a.py"),
        ({"baked": ("other",), "other": ("lab",), "lab": ()}, {}, "baked other debian-12"),
        ({"baked": ("lab",), "lab": ()}, {"baked": "module"}, "a.py"),
        ({"mine": ("tmp",), "tmp": ()}, {}, "a.py"),
        ({"one": ("two",), "two": ("one",)}, {}, "a.py"),
        ({"state": ("image_name",)}, {}, "state debian-12"),
    ],
)
def test_family_is_that_of_the_saved_states_that_a_test_needs(
    fixtures: Mapping[str, tuple[str, ...]], scopes: Mapping[str, str], family: str
) -> None:
    item: Any = FakeItem("a.py::x", fixtures, scopes, "debian-12")

    assert family_of(item).strip() == family


def a_report(test: str, when: str, duration: float = 1.5) -> Any:
    return SimpleNamespace(nodeid=f"a.py::{test}", when=when, duration=duration)


def test_record_has_what_ended_and_how_long_it_took(tmp_path: Path) -> None:
    plugin = a_plugin(2, 3, tmp_path)
    plugin.start, plugin.reports = begin(tmp_path)
    plugin._collection, plugin._tests = ("digest", 7), ("a.py::x", "a.py::y", "a.py::z")
    for test in ("x", "x", "y"):
        for when in ("setup", "call", "teardown"):
            plugin.pytest_runtest_logreport(a_report(test, when))
    plugin.pytest_runtest_logreport(a_report("z", "setup"))
    config: Any = SimpleNamespace(getoption=lambda *_: None, rootpath=tmp_path)

    plugin._record(plugin.reports, plugin._collection, 1, config=config)

    written = read_manifest(tmp_path)
    assert (written.number, written.count, written.collected, written.exit_status) == (2, 3, 7, 1)
    assert (written.ran, written.repeated) == (("a.py::x", "a.py::y"), ("a.py::x",))
    assert written.first_test_s is None
    assert json.loads((plugin.reports / "durations.json").read_text()) == {
        "a.py::x": 9.0,
        "a.py::y": 4.5,
    }


def test_shard_that_was_started_again_stops(tmp_path: Path) -> None:
    plugin = a_plugin(1, 2, tmp_path)
    plugin.start, plugin.reports = begin(tmp_path)
    session: Any = SimpleNamespace(shouldstop=False)
    plugin.pytest_sessionstart(session)

    plugin.pytest_runtest_logfinish()
    assert not session.shouldstop
    begin(tmp_path)
    plugin.pytest_runtest_logfinish()
    assert "has a later start than number 1" in str(session.shouldstop)


def test_first_test_of_any_worker_counts() -> None:
    plugin = a_plugin(1, 2)
    for first in (None, 8.0, 5.0, None):
        output = ("digest", 2, ["a.py::x"], first)
        node: Any = SimpleNamespace(workeroutput={"harness_shard": output})
        plugin.pytest_testnodedown(node)
    crashed: Any = SimpleNamespace()
    plugin.pytest_testnodedown(crashed)

    assert (plugin._collection, plugin._tests, plugin._first_test) == (
        ("digest", 2),
        ("a.py::x",),
        5.0,
    )
