"""Which images and saved states the selected tests need, and which of these are cached."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError, RequirementError
from harness.lab.cached_only import NotCachedError
from harness.lab.saved_states import SavedState
from harness.plugin.machine_plan import Kind, MachinePlan, needs_of
from harness.settings import MachineStart, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def a_fixture(
    make: Callable[..., object], *arguments: str, place: str = "", scope: str = "session"
) -> object:
    """Return a fixture of the harness that requests the fixtures `arguments`."""

    def func(**_: object) -> object:
        return make()

    func.__module__ = "harness.fixtures.some"
    return SimpleNamespace(func=func, argnames=arguments, baseid=place, scope=scope)


def fails(error: BaseException) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


def a_state(name: str) -> Callable[[], object]:
    origin: Any = None
    return lambda: SavedState(name=name, origin=origin)


NOT_CACHED = NotCachedError("It is not cached.")
FIXTURES = {
    "node_image": a_fixture(fails(NOT_CACHED), "lab", "image_name"),
    "baked_image": a_fixture(fails(NOT_CACHED), "lab", "image_name"),
    "provisioner": a_fixture(lambda: None, "lab"),
    "boot_node": a_fixture(lambda: None, "lab", scope="function"),
    "driver_baked": a_fixture(a_state("driver_baked"), "lab"),
    "node_booted": a_fixture(a_state("node_booted"), "lab"),
    "own": a_fixture(a_state("own"), "lab"),
}


def an_item(*names: str, image: str = "debian-12", known: Mapping[str, object] = FIXTURES) -> Any:
    """Return a test that uses the fixtures `names`."""
    definitions = {name: [each] for name, each in known.items()}
    manager = SimpleNamespace(getfixturedefs=lambda name, _: definitions.get(name))
    return SimpleNamespace(
        fixturenames=names,
        callspec=SimpleNamespace(params={"image_name": image}),
        session=SimpleNamespace(_fixturemanager=manager),
        _fixtureinfo=SimpleNamespace(name2fixturedefs={name: definitions[name] for name in names}),
    )


def needed(*items: Any, start: MachineStart = MachineStart.CLONE, **more: bool) -> list[Any]:
    """Return for each need: kind, name, whether the cache lacks it, and how many tests have it."""
    lab: Any = SimpleNamespace(
        machine_start=start,
        settings=Settings(),
        listener=None,
        ensure_checkpoint=lambda state: None if state.name != "gone" else fails(NOT_CACHED)(),
    )
    config: Any = None
    needs = needs_of(config, items, lab, **more)
    return sorted(
        ((need.kind.value, need.name, need.is_missing, count) for need, count in needs.items())
    )


def test_plan_has_one_entry_for_each_image_with_its_number_of_tests() -> None:
    items = [an_item("node_image", image=image) for image in ("a", "b", "a")]

    assert needed(*items) == [("image", "a", True, 2), ("image", "b", True, 1)]


def test_plan_has_two_entries_for_fixtures_of_the_same_name_in_two_suites() -> None:
    items = [
        an_item("own", known={"own": a_fixture(a_state(state), "lab", place=place)})
        for place, state in (("one", "first"), ("two", "gone"), ("one", "first"))
    ]

    assert needed(*items) == [
        ("checkpoint", "first", False, 2),
        ("checkpoint", "gone", True, 1),
    ]


def test_plan_has_the_checkpoint_from_which_a_cloned_node_starts() -> None:
    for names, start, states in (
        (["node_image"], MachineStart.CLONE, ["node_booted"]),
        (["node_image", "provisioner"], MachineStart.BOTH, ["node_booted"]),
        (["node_image"], MachineStart.COLD, []),
        (["node_image", "own"], MachineStart.CLONE, ["own"]),
        (["baked_image"], MachineStart.CLONE, ["driver_baked"]),
        (["node_image", "baked_image"], MachineStart.CLONE, ["driver_baked"]),
    ):
        found = needed(an_item("boot_node", *names), start=start)

        assert [name for kind, name, *_ in found if kind == "checkpoint"] == states, names
        assert not any(
            kind == "checkpoint" for kind, *_ in needed(an_item(*{*names} - {"own"}))
        ), names


def test_plan_marks_a_checkpoint_as_missing_only_if_the_cache_lacks_it() -> None:
    rows: list[tuple[BaseException, bool]] = [
        (NOT_CACHED, True),
        (HarnessError("It is damaged."), False),
        (RequirementError("There is no KVM."), False),
        (pytest.skip.Exception("There is no GPU."), False),
    ]
    for error, is_missing in rows:
        known = {"own": a_fixture(fails(error), "lab")}

        assert needed(an_item("own", known=known)) == [
            ("checkpoint", "own of debian-12", is_missing, 1)
        ], error


def test_plan_does_not_call_a_fixture_of_a_suite() -> None:
    made: Any = a_fixture(fails(AssertionError("It was called.")), "lab")
    made.func.__module__ = "suites.e2e.conftest"

    assert needed(an_item("own", known={"own": made})) == [(Kind.OTHER.value, "own", False, 1)]


def test_plan_shows_the_error_of_a_lab_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(cache=tmp_path / "file/cache")
    plan = MachinePlan(settings, workers=0, durations=tmp_path / "durations")
    config: Any = None

    (line,) = plan._needed(config, [])

    assert line.startswith(f"  This host can't run these tests: The folder '{tmp_path}/file/")


def test_time_in_the_plan_is_unknown_if_the_durations_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "durations").write_text("{")
    plan = MachinePlan(Settings(), workers=0, durations=tmp_path / "durations")

    line = plan._time([])

    assert line.startswith("time: unknown, since the durations can't be read: ")
    assert f"{tmp_path}/durations: The file can't be read as JSON" in line


def test_parent_image_is_listed_on_request() -> None:
    for names, has_image in ((["node_image"], True), (["baked_image"], True), (["own"], False)):
        found = needed(an_item(*names), with_parents=True)

        assert (("image", "debian-12", True, 1) in found) is has_image, names
        assert len(found) == len({*names, *["node_image"] * has_image}), names
