"""Defects of runs that are interrupted."""

from __future__ import annotations

from .plant import MachinePlant, plant

PLANTS: tuple[MachinePlant, ...] = (
    plant(
        "containerd is not restarted for a configuration that is newer than its start",
        "facts.py",
        (
            "is_stale=node.files.is_newer(CONTAINERD_CONFIG, toolkit.CONTAINERD_SOCKET),",
            "is_stale=False,",
        ),
        "interruption/test_killed.py",
        "containerd_restarts",
    ),
    plant(
        "the record is removed before the driver, whose removal may be interrupted",
        "teardown.py",
        (
            "    _carry_out_removal(node, removal)\n    after",
            "    node.files.remove(scope.record_path)\n    _carry_out_removal(node, removal)\n    after",
        ),
        "interruption/test_killed.py",
        "teardown and modules",
    ),
    plant(
        "the record of an earlier bake is kept while a bake builds",
        "bake.py",
        ("                    Write(path=record_path, text=PROVISIONAL_RECORD),\n", ""),
        "interruption/test_killed.py",
        "before_it_compiled",
    ),
)
