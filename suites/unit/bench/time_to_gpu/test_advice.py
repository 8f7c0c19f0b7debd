"""How the advised timeouts depend on the samples, the quantile and the margin."""

from __future__ import annotations

import pytest

from harness.bench.time_to_gpu.advice import advise

_STARTS = [1.0, 2.0, 3.0, 4.0, 10.0]


def test_advised_timeouts_equal_the_timeouts_computed_by_hand() -> None:
    """The worst of five samples is 10, and four of five do not exceed 4; a quarter is added to both."""
    advice = advise(_STARTS, q=0.8, margin=0.25)

    assert advice.max_node_provision_time == 12.5
    assert advice.unneeded_time == advice.delay_after_add == 5.0
    assert advice.n == 5


def test_advice_is_refused_if_there_are_no_samples() -> None:
    with pytest.raises(ValueError, match="without samples"):
        advise([])
