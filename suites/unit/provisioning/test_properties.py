"""Properties that hold for every configuration, every record, and power failures at any time."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.provisioning.configuration import (
    Configuration,
    ConfigurationError,
    parse_configuration,
)
from harness.provisioning.facts import collect_facts
from harness.provisioning.journal import EVENTS_DIRECTORY, LOG_PATH
from harness.provisioning.plan import Plan, Step
from harness.provisioning.prebake import Action, Reason, parse_record, read_record
from harness.provisioning.toml_text import TomlTextError, get_value, render_string, set_value

from .fakes import (
    GPU_NODE,
    IMAGE,
    KERNEL,
    OTHER_KERNEL,
    OTHER_VERSION,
    RECORD_PATH,
    SHA,
    VERSION,
    Invocation,
    make_node,
)
from .simulation import KilledError, SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.provisioning.node_files import NodeFiles

FIELDS = tuple(Configuration.__dataclass_fields__)


@contextmanager
def simulated_node(**fields: object) -> Iterator[SimulatedNode]:
    """Make a node in a temporary folder of its own, once for each example."""
    with tempfile.TemporaryDirectory() as folder:
        yield SimulatedNode(Path(folder), **fields)  # type: ignore[arg-type]


# -- configuration ------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)
LIKELY = st.sampled_from(
    ["true", "false", "", "cuda-lts", "580.126.09", "MIG1g", "Mixed", "localhost:5000", "/a", "60"]
)


@given(
    document=st.dictionaries(st.sampled_from([*FIELDS, "gpu_nodes"]), JSON | LIKELY, max_size=5),
    environment=st.dictionaries(
        st.sampled_from([field.upper() for field in FIELDS]), st.text(max_size=8) | LIKELY
    ),
)
def test_any_invalid_configuration_gives_an_error_that_mentions_a_field(
    document: dict[str, object], environment: dict[str, str]
) -> None:
    configuration, refusal = None, ""
    try:
        configuration = parse_configuration(document, environment)
    except ConfigurationError as error:
        refusal = str(error)
    if configuration is None:
        named = {*document, *environment, "mig_node"}
        assert any(f"'{name}'" in refusal for name in named)
        return
    assert isinstance(configuration, Configuration)
    for field in FIELDS:
        value = getattr(configuration, field)
        text = value if isinstance(value, str) else ""
        assert "\n" not in text
        assert '"' not in text
    assert 0 < configuration.budget_s(is_bake=False) <= 86400


# -- record and decision ------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        b"kernel=",
        b"driver_version=",
        b"driver_kind=",
        b"arch=",
        b"\n",
        b"\r",
        b"=",
        KERNEL.encode(),
        VERSION.encode(),
        b"cuda",
        b"grid",
        b"x86_64",
        b"\xff",
        b"\x00",
    ]
)
RECORDS = st.binary(max_size=64) | st.lists(PIECES, max_size=12).map(b"".join)


@given(content=RECORDS, is_gpu_node=st.booleans())
def test_decision_is_made_whatever_bytes_the_record_contains(
    content: bytes, *, is_gpu_node: bool
) -> None:
    with simulated_node() as simulated:
        place = simulated.files.at(RECORD_PATH)
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
        fields = GPU_NODE if is_gpu_node else {}

        facts = collect_facts(
            make_node(simulated, simulated.top),
            parse_configuration(fields, {}),
            is_read_only=True,
        )

    assert facts.decision is not None
    assert facts.decision.reason is not None
    if not is_gpu_node:
        assert facts.decision.reason is Reason.OPTED_OUT
    assert "\n" not in facts.decision.render_line()


@given(content=st.text())
def test_fields_of_any_parsed_record_have_no_whitespace(content: str) -> None:
    for value in parse_record(content).to_json().values():
        assert value is None or len(value.split()) == 1


# -- plans --------------------------------------------------------------------------------------


@given(
    needs=st.lists(st.sets(st.integers(0, 9), max_size=3), min_size=1, max_size=10),
    order=st.randoms(use_true_random=False),
)
def test_any_plan_has_each_step_after_the_steps_that_it_needs(
    needs: list[set[int]], order: object
) -> None:
    steps = [
        Step(
            name=f"s{number}",
            actions=(),
            exit_code=None,
            needs=tuple(f"s{need}" for need in wanted if need < number),
        )
        for number, wanted in enumerate(needs)
    ]
    getattr(order, "shuffle")(steps)  # noqa: B009  # random.Random, whose type is not to be named

    plan = Plan.order(steps)

    place = {step.name: number for number, step in enumerate(plan.steps)}
    assert len(place) == len(needs)
    assert all(place[need] < place[step.name] for step in plan.steps for need in step.needs)


# -- files that a person wrote ------------------------------------------------------------------


@given(
    lines=st.lists(
        st.sampled_from(
            ["# c", "", "[a]", "[a.b]", '["x.y".z]', "k = 1", "v = [1,\n  2]", 'q."r s" = "t#u"']
        ),
        max_size=8,
    ),
    path=st.sampled_from([("a", "k"), ("a", "b", "n"), ("n",), ("x.y", "z", "k"), ("new", "k")]),
    value=st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=6),
)
@example(lines=["k = 1", "k = 1"], path=("k",), value="")
def test_editing_toml_changes_only_the_value(
    lines: list[str], path: tuple[str, ...], value: str
) -> None:
    text = "\n".join(lines)
    rendered = render_string(value)

    edited, refusal = text, ""
    try:
        edited = set_value(text, path, rendered)
    except TomlTextError as error:
        refusal = str(error)
    if refusal:
        assert refusal.endswith("expected a table")
        return

    assert get_value(edited, path) == rendered
    assert set_value(edited, path, rendered) == edited
    if get_value(text, path) is None:
        kept = edited.splitlines()
        assert all(line in kept for line in text.splitlines())


# -- twice is once ------------------------------------------------------------------------------


def tree(files: NodeFiles) -> dict[str, str]:
    """Return all files below a folder with their text, except logs and events."""
    ignored = (LOG_PATH, EVENTS_DIRECTORY, "/outcome.json", "/config.json", "/proc", "/sys")
    return {
        f"/{path.relative_to(files.top)}": path.read_text()
        for path in files.top.rglob("*")
        if path.is_file() and not f"/{path.relative_to(files.top)}".startswith(ignored)
    }


@given(
    baked=st.sampled_from([None, VERSION, OTHER_VERSION]),
    kernel=st.sampled_from([KERNEL, OTHER_KERNEL]),
    has_gpu=st.booleans(),
    is_configured=st.booleans(),
    managed=st.sampled_from([None, "enable_managed_gpu", "enable_managed_gpu_dra"]),
    profile=st.sampled_from([None, "MIG1g"]),
)
def test_second_boot_changes_nothing(
    baked: str | None,
    kernel: str,
    managed: str | None,
    profile: str | None,
    *,
    has_gpu: bool,
    is_configured: bool,
) -> None:
    asked: dict[str, object] = {
        **GPU_NODE,
        "gpu_node": has_gpu,
        "config_gpu_driver_if_needed": is_configured,
        "gpu_instance_profile": profile,
    }
    if managed is not None:
        asked[managed] = True
    with simulated_node(kernel=kernel, has_gpu=has_gpu, registry={IMAGE}) as simulated:
        simulated.units |= {
            "nvidia-device-plugin",
            "dra-driver-nvidia-gpu",
            "nvidia-dcgm",
            "nvidia-dcgm-exporter",
            "mig-partition",
        }
        if baked is not None:
            simulated.build(baked, KERNEL)
        invocation = Invocation(simulated.top, simulated)

        assert invocation.run("boot", asked) == 0, invocation.outcome()["error"]
        once = (
            tree(simulated.files),
            simulated.loaded(),
            set(simulated.active),
            set(simulated.enabled),
        )
        assert invocation.run("boot", asked) == 0, invocation.outcome()["error"]
        twice = (tree(simulated.files), simulated.loaded(), simulated.active, simulated.enabled)

    assert once == twice


BAKE = {
    "gpu_driver_version": VERSION,
    "gpu_image_sha": SHA,
    "feature_flags": "NVIDIA_CUDA_PREBAKE",
}
MOMENTS_OF_A_BAKE = 24


def test_second_bake_changes_nothing() -> None:
    with simulated_node() as simulated:
        invocation = Invocation(simulated.top, simulated)
        assert invocation.run("bake", BAKE) == 0
        once = tree(simulated.files)

        assert invocation.run("bake", BAKE) == 0

        assert tree(simulated.files) == once


def test_teardown_after_an_interrupted_bake_restores_the_files_or_keeps_the_record() -> None:
    """Power fails at each write of a bake in turn; a state that equals an earlier state is skipped.

    The node that boots from the image has no GPU.
    """
    states: list[object] = []
    for moment in range(MOMENTS_OF_A_BAKE + 1):
        with simulated_node(fuse=moment) as simulated:
            untouched = tree(simulated.files)
            invocation = Invocation(simulated.top, simulated)
            try:
                code = invocation.run("bake", BAKE)
            except KilledError:
                code = None
            assert (code is None) == (moment < MOMENTS_OF_A_BAKE)

            state = tree(simulated.files), simulated.images, simulated.containers
            if state in states:
                continue
            states.append(state)
            simulated.fuse = None
            assert invocation.run("teardown") == 0, moment

            left = tree(simulated.files)
            assert left == untouched or RECORD_PATH in left, moment


@given(moment=st.integers(0, 12))
def test_killed_teardown_is_finished_by_the_next_teardown(moment: int) -> None:
    with simulated_node() as simulated:
        untouched = tree(simulated.files)
        simulated.build(VERSION, KERNEL)
        simulated.load(VERSION, "nvidia_uvm", "nvidia")
        invocation = Invocation(simulated.top, simulated)
        simulated.fuse = moment
        with suppress(KilledError):
            invocation.run("teardown")
        simulated.fuse = None

        assert invocation.run("teardown") == 0

        assert tree(simulated.files) == untouched


def test_managed_node_with_the_record_of_an_interrupted_bake_gets_a_full_install() -> None:
    with simulated_node(fuse=12) as simulated:
        invocation = Invocation(simulated.top, simulated)
        with pytest.raises(KilledError):
            invocation.run("bake", BAKE)
        simulated.fuse = None
        record = read_record(simulated.files, RECORD_PATH)
        assert record is not None
        assert record.is_corrupt

        assert invocation.run("boot", GPU_NODE) == 0

        assert invocation.outcome()["decision"] == {
            "action": Action.TEARDOWN_INSTALL.value,
            "reason": Reason.CORRUPT.value,
        }
