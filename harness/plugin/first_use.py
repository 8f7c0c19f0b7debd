"""Announces, before the first test, which images and states a run makes, and the estimated time."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.progress import ProgressEvent, Stage
from harness.settings import MachineDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pytest

    from harness.image.catalogue import Catalogue
    from harness.image.store import BuildTime
    from harness.plugin.machine_plan import Need
    from harness.progress import ProgressListener
    from harness.settings import Settings

#: Seconds to build an image, and seconds that each package with its dependencies adds, on an idle
#: host with two CPUs.
_IMAGE_S, _PACKAGE_S = 60.0, 2.0
#: Seconds to compile the driver's module, for a recipe with a licence.
_COMPILE_S = 300.0
#: Seconds under KVM to make a node image from a cloud image, a bake, and a saved state. Under TCG,
#: these times are multiplied by TCG's factor.
_PREPARE_KVM_S, _BAKE_KVM_S, _STATE_KVM_S = 12.0, 12.0, 6.0
#: The worker of xdist that makes the announcement.
_SPEAKER = "gw0"


@dataclass(frozen=True, kw_only=True)
class Making:
    """An image or state that a run has to make; `basis` says how `seconds` was estimated."""

    what: str
    seconds: float
    basis: str


def register(
    config: pytest.Config, settings: Settings, listener: Callable[[], ProgressListener]
) -> None:
    """Register the announcement, except for runs that start no machines on this host."""
    option = config.option
    is_plan = option.collectonly or option.setupplan or config.getoption("--machine-plan")
    if not is_plan and settings.machine_driver is MachineDriver.QEMU:
        config.pluginmanager.register(FirstUse(settings, listener), "harness-first-use")


class FirstUse:
    """Prints an announcement below the count of tests; an xdist worker sends it as a progress event."""

    def __init__(self, settings: Settings, listener: Callable[[], ProgressListener]) -> None:
        self._settings = settings
        self._listener = listener

    def pytest_report_collectionfinish(
        self, config: pytest.Config, items: Sequence[pytest.Item]
    ) -> list[str]:
        return self.lines(config, items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Let one worker of xdist make the announcement, since the controller collects no tests."""
        workerinput = getattr(session.config, "workerinput", None)
        if workerinput is None or workerinput["workerid"] != _SPEAKER:
            return
        if lines := self.lines(session.config, session.items):
            self._listener()(
                ProgressEvent(subject="run", stage=Stage.PLAN, message="\n".join(lines))
            )

    def lines(self, config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
        on_machines = [item for item in items if "lab" in getattr(item, "fixturenames", ())]
        if not on_machines:
            return []
        # The import is inside the function, since most runs have no tests on machines.
        from harness.image.catalogue import load_catalogue  # noqa: PLC0415
        from harness.plugin.machine_plan import needs_of, open_to_look  # noqa: PLC0415

        try:
            with open_to_look(self._settings) as lab:
                missing = [
                    need
                    for need in needs_of(config, on_machines, lab, with_parents=True)
                    if need.is_missing
                ]
                makings = list(
                    makings_of(
                        missing,
                        load_catalogue(*self._settings.image_folders),
                        lab.store.build_times(),
                        patience=lab.accelerator.accelerator.patience,
                        load=os.getloadavg()[0] / (os.cpu_count() or 1),
                    )
                )
        except (HarnessError, OSError):
            # A missing requirement is reported by the first test that needs it.
            return []
        return render(makings, cache=str(self._settings.cache))


def makings_of(
    missing: Iterable[Need],
    catalogue: Catalogue,
    times: Sequence[BuildTime],
    *,
    patience: float,
    load: float,
) -> Iterator[Making]:
    """Estimate the time to make each missing image or state.

    The estimate is the duration of the last build of the same item on this host. Without an earlier
    build of the item, the estimate comes from the recipe and the host's speed. The host's speed
    comes from earlier builds of other items or, without earlier builds, from `load`: the number of
    runnable processes per processor.
    """
    from harness.plugin.machine_plan import Kind  # noqa: PLC0415 - the caller has loaded it

    last = {(each.name, each.is_derived): each.seconds for each in times}
    made = [
        each.seconds / _by_recipe(each.name, catalogue, patience, is_derived=each.is_derived)
        for each in times
    ]
    speed = statistics.median(made) if made else max(1.0, load)
    by_recipe = "estimated from its recipe" + (" and earlier builds on this host" if made else "")
    order = {kind: place for place, kind in enumerate(Kind)}
    for need in sorted(missing, key=lambda need: (order[need.kind], need.name)):
        if need.kind is Kind.CHECKPOINT:
            what, seconds, basis = f"saved state {need.name}", _STATE_KVM_S * patience * speed, ""
        elif need.kind in (Kind.IMAGE, Kind.BAKE):
            is_derived = need.kind is Kind.BAKE
            what, basis = f"{need.kind.value} {need.name}", by_recipe
            seconds = speed * _by_recipe(need.name, catalogue, patience, is_derived=is_derived)
            if (need.name, is_derived) in last:
                seconds, basis = last[need.name, is_derived], "as long as the last time"
        else:
            continue
        yield Making(what=what, seconds=seconds, basis=basis)


def _by_recipe(name: str, catalogue: Catalogue, patience: float, *, is_derived: bool) -> float:
    from harness.image.catalogue import Recipe  # noqa: PLC0415 - the caller has loaded it

    if is_derived:
        return _BAKE_KVM_S * patience
    try:
        entry = catalogue.get(name)
    except HarnessError:
        # The name is a path, or an image that the catalogue no longer lists.
        return _IMAGE_S
    if not isinstance(entry, Recipe):
        return _PREPARE_KVM_S * patience
    compiles = 0.0 if entry.file.licence is None else _COMPILE_S
    return _IMAGE_S + _PACKAGE_S * len(entry.file.packages) + compiles


def render(makings: Sequence[Making], *, cache: str) -> list[str]:
    """Return the lines of the announcement, or no lines if everything is cached."""
    if not makings:
        return []
    width = max(len(making.what) for making in makings)
    total = sum(making.seconds for making in makings)
    items = f"{len(makings)} item{'s' * (len(makings) > 1)}"
    return [
        f"first use: this run makes {items} first, which takes about {about(total)} here:",
        *(
            f"  {making.what:{width}}  about {about(making.seconds)}"
            + (f", {making.basis}" if making.basis else "")
            for making in makings
        ),
        f"  Progress is shown meanwhile; later runs take these items from '{cache}'.",
    ]


def about(seconds: float) -> str:
    """Return a duration as text, rounded to the precision of an estimate."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min"
