"""Advice of node starts: it follows the samples, the quantile and the margin."""

from __future__ import annotations

import pytest

from harness.bench.time_to_gpu.advice import advise

_STARTS = [1.0, 2.0, 3.0, 4.0, 10.0]


def test_advice_of_samples_worked_out_by_hand() -> None:
    """The worst of five is 10, and four of five do not exceed 4; both with a quarter more."""
    advice = advise(_STARTS, q=0.8, margin=0.25)

    assert advice.max_node_provision_time == 12.5
    assert advice.unneeded_time == advice.delay_after_add == 5.0
    assert advice.n == 5


def test_no_advice_without_samples() -> None:
    with pytest.raises(ValueError, match="without samples"):
        advise([])
