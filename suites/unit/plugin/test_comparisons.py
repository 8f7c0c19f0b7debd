"""The explanation of a failed assertion that compares two values of the harness."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from harness.evidence.state import NodeState, StateKind
from harness.evidence.units import ShownUnit
from harness.plugin.comparisons import pytest_assertrepr_compare

_UNIT = ShownUnit(
    name="kubelet.service",
    load="loaded",
    active="active",
    enablement="enabled",
    started_us=1,
    ready_us=2,
    commands=("/usr/bin/kubelet",),
)


def _state(units: dict[str, dict[str, str]]) -> NodeState:
    return NodeState(
        node="node", taken_at_ns=0, boot_id="b", paths={}, items={StateKind.UNITS: units}
    )


def test_comparison_of_two_systemd_units_shows_the_properties_that_differ() -> None:
    failed = replace(_UNIT, active="failed", ready_us=None)

    assert pytest_assertrepr_compare("==", failed, _UNIT) == [
        "ShownUnit 'kubelet.service': 2 of 8 fields differ",
        "  active: 'failed' == 'active'",
        "  ready_us: None == 2",
    ]
    long = pytest_assertrepr_compare("==", _UNIT, replace(_UNIT, commands=("x" * 5000,)))
    assert long is not None
    assert max(map(len, long)) < 360


def test_comparison_of_two_states_shows_a_difference_of_at_most_40_lines() -> None:
    before = _state({})
    after = _state({f"unit-{number}.service": {"active": "failed"} for number in range(100)})

    lines = pytest_assertrepr_compare("==", before, after)

    assert lines is not None
    assert lines[0] == "two states of node 'node'; `expect.unchanged` compares them"
    assert "unit-0.service" in lines[2]
    assert len(lines) == 40
    assert lines[-1].startswith("… and ")
    same = pytest_assertrepr_compare("==", before, _state({}))
    assert same is not None
    assert same[1] == "only values that change on an idle node differ"


def test_comparison_of_many_fields_has_40_lines_and_ignores_fields_with_compare_false() -> None:
    for count, last in ((39, "f38: 1 == 2"), (40, "… and 2 more lines")):
        fields: list[tuple[str, type, Any]] = [(f"f{number}", int, 0) for number in range(count)]
        fields.append(("apart", int, dataclasses.field(default=0, compare=False)))
        kind = dataclasses.make_dataclass("Many", fields)
        kind.__module__ = "harness.many"

        lines = pytest_assertrepr_compare("==", kind(*[1] * count, 1), kind(*[2] * count, 2))

        assert lines is not None, count
        assert lines[0] == f"Many: {count} of {count} fields differ", count
        assert (len(lines), lines[-1].strip()) == (40, last), count


def test_pytest_itself_explains_comparisons_of_other_types() -> None:
    assert pytest_assertrepr_compare("==", "a", "b") is None
    assert pytest_assertrepr_compare("==", _UNIT, "b") is None
    assert pytest_assertrepr_compare("!=", _UNIT, _UNIT) is None
