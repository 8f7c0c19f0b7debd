"""Which tests a shard runs, and what a shard records about its tests."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.plugin import shards
from harness.plugin.shards import ShardPlugin, family_of, register
from harness.sharding import Shard
from harness.sharding.manifest import begin, read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(eq=False)
class FakeItem:
    """A fake test; `fixtures` maps the name of each fixture to the fixtures that it requests."""

    nodeid: str
    fixtures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scopes: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    overridden: str | None = None
    """The name of a fixture that the suite 'own' overrides."""
    provisioner: str = ""

    @property
    def callspec(self) -> object:
        return SimpleNamespace(params={"image_name": self.image})

    @property
    def _fixtureinfo(self) -> object:
        found = {
            name: [
                SimpleNamespace(
                    argnames=arguments, scope=self.scopes.get(name, "session"), baseid=""
                )
            ]
            for name, arguments in self.fixtures.items()
        }
        if self.overridden is not None:
            own = SimpleNamespace(argnames=("lab",), scope="session", baseid="own")
            found[self.overridden].append(own)
        return SimpleNamespace(name2fixturedefs=found)

    def get_closest_marker(self, name: str) -> object:
        is_set = name == "provisioner" and self.provisioner
        return SimpleNamespace(args=(self.provisioner,)) if is_set else None


class FakeHook:
    def __init__(self) -> None:
        self.deselected: list[str] = []

    def pytest_deselected(self, items: list[FakeItem]) -> None:
        self.deselected += [item.nodeid for item in items]


def select(plugin: ShardPlugin, items: list[FakeItem]) -> tuple[list[str], list[str]]:
    """Return the selected tests, in their order, and the deselected tests."""
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


def test_tests_are_divided_among_shards_by_their_durations() -> None:
    items = some_tests("one", "two", "three")

    halves = [select(a_plugin(number, 2, one=1, two=9, three=8), items) for number in (1, 2)]

    assert halves == [
        (["a.py::two"], ["a.py::one", "a.py::three"]),
        (["a.py::one", "a.py::three"], ["a.py::two"]),
    ]


def test_run_without_shards_keeps_all_tests_in_their_order() -> None:
    items = [FakeItem("b.py::quick"), FakeItem("a.py::slow")]

    assert select(a_plugin(slow=9), items) == (["b.py::quick", "a.py::slow"], [])


def test_shard_record_omits_a_test_that_another_plugin_deselects() -> None:
    """The wrapper in which pytest deselects the tests of `--lf` ends after the hook of the shard."""
    rows: list[tuple[int, tuple[str, ...], int]] = [(1, ("a.py::one",), 1), (1, (), 0), (2, (), 2)]
    for count, left, collected in rows:
        plugin = a_plugin(1, count)
        select(plugin, some_tests("one", "two"))
        session: Any = SimpleNamespace(items=[FakeItem(test) for test in left])

        plugin.pytest_collection_finish(session)

        assert plugin._tests == left, count
        assert plugin._collection is not None, count
        assert plugin._collection[1] == collected, count


def test_all_runs_of_a_repeated_test_are_in_the_same_shard() -> None:
    """The group that xdist appends is not part of the test name."""
    items = [FakeItem("a.py::x@one"), FakeItem("a.py::y"), FakeItem("a.py::x@one")]

    assert select(a_plugin(1, 2, x=9, y=1), items) == (["a.py::x@one"] * 2, ["a.py::y"])


def test_test_family_consists_of_the_saved_states_and_the_image_and_the_provisioner() -> None:
    rows: list[tuple[Mapping[str, tuple[str, ...]], Mapping[str, str], str]] = [
        ({"lab": (), "image_name": ()}, {}, "a.py"),
        ({"baked": ("other",), "other": ("lab",), "lab": ()}, {}, "baked other debian-12"),
        ({"baked": ("lab",), "lab": ()}, {"baked": "module"}, "a.py"),
        ({"one": ("two",), "two": ("one",)}, {}, "a.py"),
        ({"state": ("image_name",)}, {}, "state debian-12"),
    ]
    for fixtures, scopes, family in rows:
        item: Any = FakeItem("a.py::x", fixtures, scopes, "debian-12")
        other: Any = FakeItem("a.py::x", fixtures, scopes, "debian-12", provisioner="own.yaml")

        assert family_of(item).strip() == family, fixtures
        assert family_of(other) == (family if family == "a.py" else f"{family} own.yaml"), fixtures


def test_fixture_that_a_suite_overrides_gets_a_separate_test_family() -> None:
    item: Any = FakeItem("own/a.py::x", {"state": ("lab",)}, {"state": "module"}, "debian-12")
    item.overridden = "state"

    assert family_of(item) == "own::state debian-12"


def a_report(test: str, when: str, duration: float = 1.5) -> Any:
    return SimpleNamespace(nodeid=f"a.py::{test}", when=when, duration=duration)


def test_shard_record_has_ended_tests_and_their_durations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The system clock is set back by an hour during the run.
    walls, seconds = iter([3600.0 * 10, 3600.0 * 9]), iter([100.0, 104.0, 130.0])
    clocks = SimpleNamespace(time=lambda: next(walls), monotonic=lambda: next(seconds))
    plugin = a_plugin(2, 3, tmp_path)
    plugin._started, plugin._began = clocks.time(), clocks.monotonic()
    monkeypatch.setattr(shards, "time", clocks)
    plugin.start, plugin.reports = begin(tmp_path)
    plugin._collection, plugin._tests = (
        ("digest", 7),
        tuple(f"a.py::{test}" for test in ("x", "y", "z", "crashed")),
    )
    for test in ("x", "x", "y"):
        for when in ("setup", "call", "teardown"):
            plugin.pytest_runtest_logreport(a_report(test, when))
    plugin.pytest_runtest_logreport(a_report("z", "setup"))
    plugin.pytest_runtest_call()
    # xdist reports a worker that crashed in a test in this way.
    for when in ("setup", "???"):
        plugin.pytest_runtest_logreport(a_report("crashed", when, 0.5))
    root = tmp_path / "b\udce9"
    places = SimpleNamespace(
        xmlpath=str(plugin.reports / "junit.xml"), allure_report_dir=str(plugin.reports / "allure")
    )
    config = SimpleNamespace(getoption=lambda *_: None, rootpath=root, option=places)
    session: Any = SimpleNamespace(config=config, exitstatus=0)

    ending = plugin.pytest_sessionfinish(session, 0)
    next(ending)
    # Another plug-in could not write its report.
    session.exitstatus = 3
    with pytest.raises(StopIteration):
        next(ending)

    written = read_manifest(tmp_path)
    assert (written.number, written.count, written.collected, written.exit_status) == (2, 3, 7, 3)
    assert written.ran == ("a.py::crashed", "a.py::x", "a.py::y")
    assert written.repeated == ("a.py::x",)
    assert (written.first_test_s, written.seconds) == (4.0, 30.0)
    assert written.started == "1970-01-01T10:00:00+00:00"
    assert written.root == str(tmp_path / r"b\xe9")
    assert json.loads((plugin.reports / "durations.json").read_text()) == {
        "a.py::x": 9.0,
        "a.py::y": 4.5,
        "a.py::crashed": 1.0,
    }


class FakeConfig:
    """A fake configuration of a run: its options, and the plugins that the run registers."""

    def __init__(self, root: Path, report_dir: str | None = None, **options: object) -> None:
        self.rootpath = root
        self.asked = {
            "--shard": options.pop("shard", None),
            "--report-dir": report_dir,
            "--durations-file": "durations.json",
            "collectonly": options.pop("collectonly", False),
        }
        places = {"xmlpath": None, "allure_report_dir": None, "shell_cov_data": None}
        self.option = SimpleNamespace(**{**places, **options})
        self.plugins: list[ShardPlugin] = []
        self.pluginmanager = SimpleNamespace(
            register=lambda plugin, _name: self.plugins.append(plugin)
        )

    def getoption(self, name: str) -> object:
        return self.asked[name]


def registered(config: FakeConfig) -> ShardPlugin:
    with_config: Any = config
    before = signal.getsignal(signal.SIGTERM)
    try:
        register(with_config)
    finally:
        signal.signal(signal.SIGTERM, before)
    (plugin,) = config.plugins
    return plugin


def test_reports_are_written_to_a_new_folder_at_each_start_of_a_shard(tmp_path: Path) -> None:
    first = registered(FakeConfig(tmp_path, "r"))
    config = FakeConfig(tmp_path, "r")

    second = registered(config)

    assert (first.start, second.start, second.folder) == (1, 2, tmp_path / "r")
    assert second.reports is not None
    assert second.reports.parent == tmp_path / "r"
    assert second.reports != first.reports
    assert vars(config.option) == {
        "xmlpath": str(second.reports / "junit.xml"),
        "allure_report_dir": str(second.reports / "allure"),
        "shell_cov_data": second.reports / "coverage.shell",
    }


def test_report_path_from_an_option_overrides_the_report_folder_of_the_shard(
    tmp_path: Path,
) -> None:
    config = FakeConfig(tmp_path, "r", xmlpath="out.xml", allure_report_dir="here")

    plugin = registered(config)

    assert (config.option.xmlpath, config.option.allure_report_dir) == ("out.xml", "here")
    assert plugin.reports is not None
    assert config.option.shell_cov_data == plugin.reports / "coverage.shell"


def test_run_that_writes_no_reports_makes_no_folder(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{}, {"report_dir": "r", "collectonly": True}]
    for options in rows:
        config = FakeConfig(tmp_path, **options)

        assert registered(config).reports is None, options

        assert set(vars(config.option).values()) == {None}, options
        assert list(tmp_path.iterdir()) == [], options


def test_worker_has_the_report_paths_of_the_controller(tmp_path: Path) -> None:
    """A worker parses the command line again, but does not count as a new start of the shard."""
    config = FakeConfig(tmp_path, "r")
    started = registered(config)
    node: Any = SimpleNamespace(workerinput={})
    started.pytest_configure_node(node)
    worker: Any = FakeConfig(tmp_path, "r")
    worker.workerinput = node.workerinput

    plugin = registered(worker)

    assert vars(worker.option) == vars(config.option)
    assert (plugin.reports, plugin.start) == (None, 0)


def test_workers_of_a_shard_take_one_test_at_a_time(tmp_path: Path) -> None:
    for given, size in ((None, 1), (5, 5)):
        config = FakeConfig(tmp_path, shard="1/2", maxschedchunk=given)
        whole = FakeConfig(tmp_path, maxschedchunk=given)

        assert registered(config).shard == Shard(number=1, count=2), given
        registered(whole)

        assert (config.option.maxschedchunk, whole.option.maxschedchunk) == (size, given), given


def test_sigterm_ends_the_run_of_a_shard_like_ctrl_c(tmp_path: Path) -> None:
    """After either signal, machines end and reports are written."""
    config: Any = FakeConfig(tmp_path, "r")
    before = signal.getsignal(signal.SIGTERM)
    try:
        register(config)
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_error_for_a_report_folder_that_cannot_be_created_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("a file")

    with pytest.raises(pytest.UsageError, match=r"--report-dir: '.*/r'"):
        registered(FakeConfig(tmp_path, "r"))


def test_run_of_a_shard_stops_without_a_record_if_the_shard_was_started_again(
    tmp_path: Path,
) -> None:
    plugin = a_plugin(1, 2, tmp_path)
    plugin.start, plugin.reports = begin(tmp_path)
    plugin._collection = ("digest", 0)
    config = FakeConfig(tmp_path, allure_report_dir=str(tmp_path / "allure"))
    session: Any = SimpleNamespace(shouldstop=False, config=config, exitstatus=2)
    plugin.pytest_sessionstart(session)

    plugin.pytest_runtest_logfinish()
    assert not session.shouldstop
    begin(tmp_path)
    plugin.pytest_runtest_logfinish()
    assert "this run is start 1 of the shard, but" in str(session.shouldstop)
    assert list(plugin.pytest_sessionfinish(session, 2)) == [None]
    assert not (tmp_path / "shard.json").exists()


def test_first_test_time_of_a_shard_is_the_earliest_of_all_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin = a_plugin(1, 2)
    times = iter([9.0, 10.0])
    monkeypatch.setattr(shards, "time", SimpleNamespace(monotonic=lambda: next(times)))
    for _ in range(2):
        plugin.pytest_runtest_call()
    assert plugin._first_test == 9.0
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


def test_shard_without_tests_succeeds_only_if_other_shards_have_tests() -> None:
    for collected, before, status in ((0, 5, 5), (7, 5, 0), (7, 2, 2), (7, 3, 3)):
        plugin = a_plugin()
        plugin._collection = ("digest", collected)
        session: Any = SimpleNamespace(config=SimpleNamespace(), exitstatus=before)

        next(plugin.pytest_sessionfinish(session, before))

        assert session.exitstatus == status, collected


def test_empty_value_of_the_shard_or_report_dir_option_is_refused(tmp_path: Path) -> None:
    for option in ("--shard", "--report-dir"):
        config = FakeConfig(tmp_path)
        config.asked[option] = ""

        with pytest.raises(pytest.UsageError, match=f"^{option}: '' is not a "):
            registered(config)

        assert config.plugins == [], option


def test_report_dir_option_is_refused_if_the_junit_or_allure_plugin_is_disabled(
    tmp_path: Path,
) -> None:
    for name, plugin in (("xmlpath", "junitxml"), ("allure_report_dir", "allure_pytest")):
        config = FakeConfig(tmp_path, "r")
        delattr(config.option, name)

        with pytest.raises(
            pytest.UsageError, match=f"^--report-dir: .* leave out '-p no:{plugin}'"
        ):
            registered(config)
