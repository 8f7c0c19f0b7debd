"""Every expectation passes on a good node and fails on a bad one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import EvidencedError, ExpectationError, HarnessError
from harness.expect.every_node import NODE_EXPECTATIONS
from harness.gpu.trace import IncidentKind
from suites.unit.evidence.folders import a_gpu_node
from suites.unit.expect.cases import ACCEPTED, REFUSED, TESTED_APART, UNDECIDED, Case

if TYPE_CHECKING:
    from pathlib import Path

#: Modules of the package that hold none.
NO_EXPECTATIONS = {"as_step", "failure", "every_node"}


@pytest.mark.parametrize("case", ACCEPTED.values(), ids=ACCEPTED)
def test_expected_result_is_accepted(tmp_path: Path, case: Case) -> None:
    case.judge(tmp_path)


@pytest.mark.parametrize("cases", [ACCEPTED, REFUSED], ids=["accepts", "refuses"])
def test_every_public_expectation_has_a_test_case(cases: dict[str, Case]) -> None:
    seen = {name.partition(":")[0].split()[0] for name in cases}

    # The expectations on every node have their own tests in test_every_node.
    of_nodes = {each.judge.__name__ for each in NODE_EXPECTATIONS}
    assert seen == set(expect.__all__) - of_nodes - TESTED_APART


def test_step_that_is_looked_up_by_its_name_has_a_status_and_a_duration_and_a_detail(
    tmp_path: Path,
) -> None:
    step = expect.step_of(a_gpu_node(tmp_path).evidence, "install-driver")

    assert (step.status, step.duration_s, step.detail) == ("done", 1.5, None)


def test_missing_trace_raises_harness_error(tmp_path: Path) -> None:
    evidence = a_gpu_node(tmp_path).trace(gpu="gpu1").evidence

    with pytest.raises(
        HarnessError, match=r"no access trace of 'gpu0'; there are traces of \['gpu1'\]"
    ):
        expect.no_bar_access(evidence)


def test_missing_mark_raises_harness_error(tmp_path: Path) -> None:
    evidence = a_gpu_node(tmp_path).trace("step probe-device done").evidence

    with pytest.raises(HarnessError, match=r"no mark with 'instal'; its marks are .*probe-device"):
        expect.no_bar_access_before(evidence, "instal")


def test_trace_that_dropped_resets_raises_harness_error(tmp_path: Path) -> None:
    evidence = a_gpu_node(tmp_path).trace(*[IncidentKind.RESET] * 1025).evidence

    for since in (None, "a mark"):
        with pytest.raises(HarnessError, match="dropped 1 incidents"):
            expect.gpu_reset(evidence, times=1025, since=since)


def test_file_that_is_not_a_trace_raises_harness_error(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path).trace()
    (tmp_path / "host" / "gpu0-trace.json").write_text('{"accesses": [[1]]}')

    with pytest.raises(HarnessError, match=r"gpu0-trace\.json' was expected to be"):
        expect.no_bar_access(folder.evidence)


@pytest.mark.parametrize(
    ("cases", "error"),
    [(REFUSED, ExpectationError), (UNDECIDED, HarnessError)],
    ids=["refusals", "gaps"],
)
def test_unmet_or_undecidable_expectation_raises_the_expected_error_and_message(
    tmp_path: Path, cases: dict[str, Case], error: type[EvidencedError]
) -> None:
    for number, (name, case) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        with pytest.raises(error) as caught:
            pytest.fail(f"'{name}' gave {case.judge(folder)} and no error.")
        assert caught.value.evidence in {None, folder}
        assert case.message in str(caught.value)
        if error is ExpectationError:
            assert case.message
            assert str(folder) in str(caught.value)
