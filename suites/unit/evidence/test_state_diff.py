"""The difference between two snapshots of a node."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.evidence.state_diff import Changes, StateDiff
from harness.machine.channels.node_snapshot import (
    MountState,
    NodeSnapshot,
    PathState,
    PciState,
    UnitState,
)

GPU = PciState(
    slot="0000:01:00.0", vendor="10de", device="2330", class_code="030200", driver="nvidia"
)
UNIT = UnitState(name="a.service", load="loaded", active="active", sub="running")
FILE = PathState(kind="f", mode=0o644, size=1, mtime_ns=1, sha256="0" * 64)
STATE = NodeSnapshot(
    kernel="6.1.0-1",
    boot_id="b-1",
    modules=("nvidia", "ext4"),
    pci=(GPU,),
    mounts=(MountState(source="/dev/vda", target="/", kind="ext4", options="rw"),),
    units=(UNIT,),
    paths={"/etc/x": FILE},
)


def test_state_does_not_differ_from_itself() -> None:
    diff = StateDiff.between(STATE, STATE)

    assert diff.is_empty
    assert diff.render() == ""


def test_each_sort_of_change_is_found() -> None:
    after = NodeSnapshot(
        kernel="6.1.0-2",
        boot_id="b-2",
        modules=("ext4", "dummy"),
        pci=(dataclasses.replace(GPU, driver=None),),
        mounts=(*STATE.mounts, MountState(source="t", target="/", kind="tmpfs", options="rw")),
        units=(dataclasses.replace(UNIT, active="failed"),),
        paths={"/etc/y": FILE},
    )

    diff = StateDiff.between(STATE, after)

    assert not diff.is_empty
    assert diff.kernel == ("6.1.0-1", "6.1.0-2")
    assert diff.has_rebooted
    assert (set(diff.modules.added), set(diff.modules.removed)) == ({"dummy"}, {"nvidia"})
    assert diff.pci.changed["0000:01:00.0"][1].driver is None
    assert len(diff.mounts.changed["/"][1]) == 2
    assert diff.units is not None
    assert diff.units.changed["a.service"][1].active == "failed"
    assert (set(diff.paths.added), set(diff.paths.removed)) == ({"/etc/y"}, {"/etc/x"})
    other_gpu = dataclasses.replace(GPU, driver=None)
    assert diff.render().splitlines() == [
        "~ kernel: 6.1.0-1 -> 6.1.0-2",
        "~ boot: the node has rebooted",
        "+ module dummy: loaded",
        "- module nvidia: loaded",
        f"~ PCI function 0000:01:00.0: {GPU} -> {other_gpu}",
        f"~ mount /: {STATE.mounts} -> {after.mounts}",
        f"~ unit a.service: {UNIT} -> {dataclasses.replace(UNIT, active='failed')}",
        f"- path /etc/x: {FILE}",
        f"+ path /etc/y: {FILE}",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "6.1.0-2"},
        {"boot_id": "b-2"},
        {"modules": ("nvidia",)},
        {"pci": ()},
        {"mounts": ()},
        {"units": ()},
        {"paths": {}},
    ],
    ids=str,
)
def test_one_change_is_enough(change: dict[str, Any]) -> None:
    assert not StateDiff.between(STATE, dataclasses.replace(STATE, **change)).is_empty
    assert not StateDiff.between(dataclasses.replace(STATE, **change), STATE).is_empty


def test_unknown_units_are_neither_a_change_nor_none() -> None:
    silent = dataclasses.replace(STATE, units=None, units_trouble="no systemctl")
    diff = StateDiff.between(STATE, silent)

    assert diff.units is None
    assert diff.render() == ""
    with pytest.raises(HarnessError) as caught:
        _ = diff.is_empty
    assert str(caught.value) == (
        "The units of the node are unknown in one of the snapshots, so it cannot be told whether "
        "they changed; 'units_trouble' of that snapshot says why."
    )


def test_change_is_one_where_the_units_are_unknown() -> None:
    silent = dataclasses.replace(STATE, units=None, units_trouble="no systemctl", kernel="other")

    assert not StateDiff.between(STATE, silent).is_empty


def test_changes_are_rendered_in_order_of_names() -> None:
    changes = Changes.between({"b": 1, "c": 1}, {"a": 1, "c": 2})

    assert changes.render("thing") == ["+ thing a: 1", "- thing b: 1", "~ thing c: 1 -> 2"]


@pytest.mark.parametrize("content", [b"{}", b"not JSON", b'{"kernel": 1}'])
def test_state_of_another_form_is_refused(content: bytes) -> None:
    with pytest.raises(HarnessError, match="unknown form"):
        NodeSnapshot.from_json(content)
