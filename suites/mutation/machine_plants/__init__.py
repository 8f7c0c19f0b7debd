"""Realistic defects of provisioning, each with the machine tests that should catch the defect.

The defects are regressions that a change could cause, and not flipped operators. `./dev plants`
plants one after the other, and runs only tests on machines. Each family of tests has a module of
defects.
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
