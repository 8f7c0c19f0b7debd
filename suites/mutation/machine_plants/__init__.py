"""Realistic defects of provisioning, each with the machine tests that are to catch it.

They are regressions that a change could bring, not flipped operators. `./dev plants` plants one
after the other and runs only tests on machines. There is a module for each family of tests.
"""

from __future__ import annotations

from . import (
    interruption,
    kernel,
    observability,
    precompiled,
    record,
    registry,
    runtime,
    services,
    teardown,
)
from .plant import MachinePlant

__all__ = ["PLANTS", "MachinePlant"]

PLANTS: tuple[MachinePlant, ...] = (
    *record.PLANTS,
    *kernel.PLANTS,
    *teardown.PLANTS,
    *services.PLANTS,
    *registry.PLANTS,
    *runtime.PLANTS,
    *precompiled.PLANTS,
    *observability.PLANTS,
    *interruption.PLANTS,
)
