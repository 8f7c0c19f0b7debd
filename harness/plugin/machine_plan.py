"""`--machine-plan`: lists what the machines of the selected tests need, and runs no test."""

from __future__ import annotations

import contextlib
import enum
import inspect
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError
from harness.image import CloudImage, Image
from harness.lab.cached_only import CachedOnlyLab, NotCachedError, refuse_to_wait
from harness.lab.saved_states import SavedState
from harness.plugin.node_ids import shown_id
from harness.plugin.shards import family_of, parameters_of, shared_fixtures
from harness.settings import MachineStart
from harness.sharding.durations import read_durations
from harness.sharding.split import timed_tests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from _pytest.fixtures import FixtureDef

    from harness.settings import Settings

_FIXTURES = "harness.fixtures."
#: Fixtures that start machines.
_STARTERS = ("boot_node", "boot_cloud_image", "clone")
_IMAGE, _BAKED = "node_image", "baked_image"
#: Fixtures that depend on the lab, but return neither an image nor a saved state.
_NO_STATES = frozenset({"provisioner", "registry_host"})


class Kind(enum.Enum):
    """The kind of thing that a test needs; the value of a member is the word that the plan shows."""

    IMAGE = "image"
    BAKE = "bake"
    CHECKPOINT = "checkpoint"
    OTHER = "fixture"


@dataclass(frozen=True, kw_only=True)
class Need:
    kind: Kind
    name: str
    status: str
    is_missing: bool = False
    """Whether the cache lacks the image or state, so that the first test makes or downloads it."""


class _UnknownFixtureError(Exception):
    """A suite defines the fixture, and the plan runs no code of a suite."""


class _Fixtures:
    """Calls the harness's fixtures for images and saved states, with a lab that makes nothing.

    The fixtures of saved states include the states that a suite declares.
    """

    def __init__(self, config: pytest.Config, lab: CachedOnlyLab) -> None:
        self._config = config
        self._lab = lab

    def value(self, name: str, item: pytest.Item) -> object:
        """Return the value of a fixture for a test.

        Raises _UnknownFixtureError if the suite defines the fixture, and HarnessError if the
        fixture raises HarnessError.
        """
        given = {
            "lab": self._lab,
            "pytestconfig": self._config,
            "announce": self._lab.listener,
            "request": _Request(self, item),
        }
        if name in given:
            return given[name]
        params = parameters_of(item)
        if name in params:
            return params[name]
        definition = _definition(name, item)
        if definition is None or not _is_own(definition):
            raise _UnknownFixtureError(name)
        arguments = {each: self.value(each, item) for each in definition.argnames}
        return definition.func(**arguments)


@dataclass(frozen=True)
class _Request:
    """The part of a `pytest.FixtureRequest` that the fixtures of saved states use."""

    fixtures: _Fixtures
    item: pytest.Item

    def getfixturevalue(self, name: str) -> object:
        return self.fixtures.value(name, self.item)


def _definition(name: str, item: pytest.Item) -> FixtureDef[Any] | None:
    # pytest has no public function that finds a fixture's definition by name.
    found = item.session._fixturemanager.getfixturedefs(name, item)  # noqa: SLF001
    return found[-1] if found else None


def _is_own(definition: FixtureDef[Any]) -> bool:
    return definition.func.__module__.startswith(_FIXTURES) and not inspect.isgeneratorfunction(
        definition.func
    )


def register(config: pytest.Config, settings: Settings) -> None:
    """Register the plan, and switch xdist off, since a plan needs no workers."""
    workers = len(getattr(config.option, "tx", None) or ())
    config.option.dist, config.option.tx = "no", []
    durations = config.rootpath / config.getoption("--durations-file")
    config.pluginmanager.register(
        MachinePlan(settings, workers=workers, durations=durations), "harness-machine-plan"
    )


class MachinePlan:
    """Prints the plan instead of running the tests."""

    def __init__(self, settings: Settings, *, workers: int, durations: Path) -> None:
        self._settings = settings
        self._workers = workers
        self._durations = durations

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> object:
        """Print the plan, and run no test."""
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        for line in self._lines(session):
            reporter.write_line(line)
        return True

    def _lines(self, session: pytest.Session) -> Iterator[str]:
        items = session.items
        starters = Counter(
            name for item in items for name in _STARTERS if name in _fixture_names(item)
        )
        on_machines = [item for item in items if "lab" in _fixture_names(item)]
        yield f"machine plan: {len(on_machines)} of {len(items)} tests need machines or images"
        for name, count in starters.items():
            yield f"  machines by `{name}`: {_tests(count)}"
        if on_machines:
            yield from self._needed(session.config, on_machines)
        yield self._time(items)

    def _needed(self, config: pytest.Config, items: Sequence[pytest.Item]) -> Iterator[str]:
        with contextlib.ExitStack() as opened:
            try:
                lab = opened.enter_context(open_to_look(self._settings))
            except HarnessError as error:
                yield f"  This host can't run these tests: {error}"
                return
            needs = needs_of(config, items, lab)
        missing = any(need.status.startswith("not cached") for need in needs)
        width = max((len(need.name) for need in needs), default=0)
        for need in sorted(needs, key=lambda each: (list(Kind).index(each.kind), each.name)):
            tests = f"{_tests(needs[need]):>9}"
            yield f"  {need.kind.value:10} {need.name:{width}}  {tests}  {need.status}"
        if missing:
            yield "  The first test that needs an uncached item makes or downloads it."

    def _time(self, items: Sequence[pytest.Item]) -> str:
        try:
            recorded = read_durations(self._durations)
        except HarnessError as error:
            return f"time: unknown, since the durations can't be read: {error}"
        tests = timed_tests({shown_id(item.nodeid): family_of(item) for item in items}, recorded)
        known = sum(test_id in recorded for test_id in tests)
        if not known:
            return (
                f"time: unknown, since '{self._durations.name}' has no durations of these tests; "
                "a run with --report-dir records durations"
            )
        seconds = sum(each.duration_s for each in tests.values()) / max(1, self._workers)
        with_workers = f" with {self._workers} workers" if self._workers > 1 else ""
        return (
            f"time: about {_duration(seconds)}{with_workers} from the durations of {known} of {len(tests)} tests in "
            f"'{self._durations.name}', plus the time to make uncached items"
        )


@contextlib.contextmanager
def open_to_look(settings: Settings) -> Iterator[CachedOnlyLab]:
    """Open a lab that only reads the cache, and makes nothing.

    Raises RequirementError if the host cannot run machines.
    """
    with CachedOnlyLab.open(settings, refuse_to_wait) as lab:
        assert isinstance(lab, CachedOnlyLab)  # noqa: S101 - `open` makes its own class
        yield lab


def needs_of(
    config: pytest.Config,
    items: Iterable[pytest.Item],
    lab: CachedOnlyLab,
    *,
    with_parents: bool = False,
) -> Mapping[Need, int]:
    """Return each image, state or fixture that tests need, with the number of tests that need it.

    With `with_parents`, include the images from which other images are made.
    """
    fixtures = _Fixtures(config, lab)
    known: dict[tuple[str, str], Need | None] = {}
    needs: Counter[Need] = Counter()
    for item in items:
        names = _names(item, lab)
        for name in {*names, *(_parents(item, names) if with_parents else ())}:
            definition = _definition(name, item)
            place = "" if definition is None else definition.baseid
            key = f"{place}::{name}", str(parameters_of(item).get("image_name", ""))
            if key not in known:
                known[key] = _need(name, item, lab, fixtures)
            if need := known[key]:
                needs[need] += 1
    return needs


def _names(item: pytest.Item, lab: CachedOnlyLab) -> set[str]:
    """Return the names of a test's shared fixtures, and of the saved state from which its nodes start."""
    names = {name.rpartition("::")[2] for name in shared_fixtures(item)}
    if "boot_node" in _fixture_names(item) and lab.machine_start is not MachineStart.COLD:
        # Fixtures that a test requests while it runs are not known yet.
        names |= {"driver_baked"} if _BAKED in names else set()
        names |= {"node_booted"} if names - _NO_STATES == {_IMAGE} else set()
    return names


def _parents(item: pytest.Item, names: Iterable[str]) -> set[str]:
    is_of_node = {_IMAGE, _BAKED} & {*_fixture_names(item), *names}
    return {_IMAGE} if is_of_node else set()


def _need(name: str, item: pytest.Item, lab: CachedOnlyLab, fixtures: _Fixtures) -> Need | None:
    """Return the image or saved state of a fixture, with its status, or None for other fixtures."""
    image = str(parameters_of(item).get("image_name", lab.settings.images[0]))
    kind = {_IMAGE: Kind.IMAGE, _BAKED: Kind.BAKE}.get(name, Kind.CHECKPOINT)
    is_missing = False
    label, status = image if kind is not Kind.CHECKPOINT else f"{name} of {image}", "cached"
    try:
        value = fixtures.value(name, item)
        if isinstance(value, SavedState):
            label = value.name
            lab.ensure_checkpoint(value)
        elif isinstance(value, (Image, CloudImage)):
            kind = Kind.BAKE if kind is Kind.BAKE else Kind.IMAGE
            label = value.name
        else:
            return None
    except _UnknownFixtureError as error:
        of_another = "" if str(error) == name else f" '{error}'"
        kind, label = Kind.OTHER, name
        status = f"unknown: a plan does not run the suite's own fixture{of_another}"
    except HarnessError as error:
        status = f"not cached: {str(error).rstrip('.')}"
        is_missing = isinstance(error, NotCachedError)
    except pytest.skip.Exception as skipped:
        status = f"this host can't make it: {skipped}"
    return Need(kind=kind, name=label, status=status, is_missing=is_missing)


def _fixture_names(item: pytest.Item) -> Sequence[str]:
    names: Sequence[str] = getattr(item, "fixturenames", ())
    return names


def _tests(count: int) -> str:
    return f"{count} test{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
