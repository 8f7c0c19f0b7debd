"""A pytest plug-in for the benchmark, which shuffles tests as pytest-randomly does."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableSequence

_SEED = 17


def pytest_collection_modifyitems(items: MutableSequence[object]) -> None:
    """Shuffle all tests into an order that is the same in each worker."""
    random.Random(_SEED).shuffle(items)  # noqa: S311 - the order of tests is no secret
