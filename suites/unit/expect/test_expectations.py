"""Every expectation passes on a good node and fails on a bad one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import EvidencedError, ExpectationError, HarnessError
from harness.expect.every_node import NODE_EXPECTATIONS
from suites.unit.evidence.folders import a_gpu_node
from suites.unit.expect.cases import ACCEPTED, REFUSED, TESTED_APART, UNDECIDED, Case

if TYPE_CHECKING:
    from pathlib import Path

#: Modules of the package without expectations.
NO_EXPECTATIONS = {"as_step", "failure", "every_node"}


def test_met_expectation_raises_no_error(tmp_path: Path) -> None:
    for name, case in ACCEPTED.items():
        # The error names the evidence folder, and the folder has the name of the case.
        case.judge(tmp_path / name)


def test_every_public_expectation_has_a_test_case() -> None:
    # The expectations on every node have their own tests in test_every_node.
    of_nodes = {each.judge.__name__ for each in NODE_EXPECTATIONS}
    for cases in (ACCEPTED, REFUSED):
        seen = {name.partition(":")[0].split()[0] for name in cases}
        assert seen == set(expect.__all__) - of_nodes - TESTED_APART


def test_step_of_returns_status_and_duration_and_detail(
    tmp_path: Path,
) -> None:
    step = expect.step_of(a_gpu_node(tmp_path).evidence, "install-driver")

    assert (step.status, step.duration_s, step.detail) == ("done", 1.5, None)


@pytest.mark.parametrize(
    ("cases", "error"),
    [(REFUSED, ExpectationError), (UNDECIDED, HarnessError)],
    ids=["refusals", "gaps"],
)
def test_unmet_expectation_and_missing_evidence_raise_different_error_types(
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
