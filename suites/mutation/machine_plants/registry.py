"""Defects of pulls and the removal of images."""

from __future__ import annotations

from .plant import MachinePlant, corpus, plant

PLANTS: tuple[MachinePlant, ...] = (
    corpus(15, "registry/test_pull.py", "dot"),
    corpus(16, "registry/test_pull.py", "sovereign"),
    plant(
        "the driver image is pulled although the node has it",
        "containerd.py",
        ("is_met=_prints_nothing", "is_met=lambda _: True"),
        "registry/test_pull.py",
        "present",
    ),
    plant(
        "an attempt is not limited to the remaining time budget",
        "retry.py",
        ("limit = node.limit_s(limit_s)", "limit = limit_s"),
        "registry/test_pull.py",
        "time_budget_is_used_up",
    ),
    plant(
        "a failed pull does not end the run",
        "driver.py",
        (
            "actions=(containerd.fetch(image),),\n        exit_code=_FAILED,",
            "actions=(containerd.fetch(image),),\n        exit_code=None,",
        ),
        "registry/test_pull.py",
        "pulls_of_a_missing_image",
    ),
    plant(
        "a driver image that cannot be removed fails the install",
        "driver.py",
        (
            "        actions=(containerd.remove(image),),\n        exit_code=None,",
            "        actions=(containerd.remove(image),),\n        exit_code=_FAILED,",
        ),
        "registry/test_removal.py",
        "cannot_be_removed",
    ),
)
