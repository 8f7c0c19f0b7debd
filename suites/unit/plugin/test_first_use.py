"""The announcement of the images and states that a run makes first, with estimated times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from harness.image.catalogue import load_catalogue
from harness.image.store import BuildTime
from harness.plugin.first_use import FirstUse, Making, about, makings_of, render
from harness.plugin.machine_plan import Kind, Need
from harness.progress import ProgressEvent, Stage
from harness.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

IMAGE = Need(kind=Kind.IMAGE, name="debian-12", status="not cached", is_missing=True)
BAKE = Need(kind=Kind.BAKE, name="debian-12", status="not cached", is_missing=True)
CLOUD = Need(kind=Kind.IMAGE, name="debian-12-cloud", status="not cached", is_missing=True)
LICENSED = Need(kind=Kind.IMAGE, name="debian-13-nvidia", status="not cached", is_missing=True)
STATE = Need(kind=Kind.CHECKPOINT, name="node_booted", status="not cached", is_missing=True)
OWN = Need(kind=Kind.OTHER, name="own", status="unknown", is_missing=True)


def estimated(
    *needs: Need, times: tuple[BuildTime, ...] = (), patience: float = 10.0, load: float = 0.5
) -> dict[str, tuple[int, str]]:
    made = makings_of(needs, load_catalogue(), times, patience=patience, load=load)
    return {making.what: (round(making.seconds), making.basis) for making in made}


def test_plan_lists_images_first_and_leaves_out_items_without_an_estimate() -> None:
    assert list(estimated(STATE, BAKE, OWN, IMAGE)) == [
        "image debian-12",
        "bake debian-12",
        "saved state node_booted",
    ]


def test_first_build_time_is_estimated_from_the_recipe() -> None:
    found = estimated(IMAGE, BAKE, LICENSED, CLOUD)

    assert found["image debian-12"] == (106, "estimated from its recipe")
    assert found["bake debian-12"] == (120, "estimated from its recipe")
    assert found["image debian-12-cloud"] == (120, "estimated from its recipe")
    assert found["image debian-13-nvidia"][0] > 300


def test_estimate_is_ten_times_shorter_for_machines_under_kvm_and_grows_with_the_load() -> None:
    found = estimated(IMAGE, BAKE, patience=1.0)

    assert (found["image debian-12"][0], found["bake debian-12"][0]) == (106, 12)
    assert estimated(IMAGE, load=4.0)["image debian-12"][0] == 4 * 106


def test_estimate_for_an_image_that_was_built_before_is_its_last_build_time() -> None:
    times = (
        BuildTime(name="debian-12", is_derived=False, seconds=500.0),
        BuildTime(name="debian-12", is_derived=False, seconds=400.0),
        BuildTime(name="debian-12", is_derived=True, seconds=90.0),
    )

    found = estimated(IMAGE, BAKE, times=times, load=20.0)

    assert found["image debian-12"] == (400, "as long as the last time")
    assert found["bake debian-12"] == (90, "as long as the last time")


def test_estimate_for_a_new_image_uses_the_measured_speed_of_the_host() -> None:
    times = (BuildTime(name="debian-12", is_derived=False, seconds=3 * 106.0),)

    found = estimated(BAKE, times=times, load=20.0)

    assert found["bake debian-12"] == (
        360,
        "estimated from its recipe and earlier builds on this host",
    )


def test_measured_time_of_a_removed_image_is_used_in_the_estimate() -> None:
    times = (BuildTime(name="gone", is_derived=False, seconds=120.0),)

    assert estimated(BAKE, times=times)["bake debian-12"][0] == 240


def test_only_one_worker_announces_the_first_use() -> None:
    class Announcing(FirstUse):
        @override
        def lines(self, config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
            return ["first", "second"]

    told: list[ProgressEvent] = []
    for config, speaks in (
        (SimpleNamespace(), False),
        (SimpleNamespace(workerinput={"workerid": "gw0"}), True),
        (SimpleNamespace(workerinput={"workerid": "gw1"}), False),
    ):
        told.clear()
        session: Any = SimpleNamespace(config=config, items=[])

        Announcing(Settings(), lambda: told.append).pytest_collection_finish(session)

        assert [(each.stage, each.message) for each in told] == [
            (Stage.PLAN, "first\nsecond")
        ] * speaks


def test_announcement_has_each_item_and_the_total_time() -> None:
    lines = render(
        [
            Making(what="image a", seconds=240.0, basis="estimated from its recipe"),
            Making(what="saved state b", seconds=61.0, basis=""),
        ],
        cache="/cache",
    )

    assert lines == [
        "first use: this run makes 2 items first, which takes about 5 min here:",
        "  image a        about 4 min, estimated from its recipe",
        "  saved state b  about 60 s",
        "  Progress is shown meanwhile; later runs take these items from '/cache'.",
    ]
    assert render([], cache="/cache") == []


def test_estimated_duration_is_rounded() -> None:
    for seconds, words in ((1.0, "10 s"), (89.0, "90 s"), (90.0, "2 min")):
        assert about(seconds) == words, seconds
