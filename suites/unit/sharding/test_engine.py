"""Which shard a job of a CI engine runs."""

from __future__ import annotations

import pytest

from harness.errors import BadInputError
from harness.sharding.engine import shard_of


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "3"}, "2/3"),
        ({"SYSTEM_JOBPOSITIONINPHASE": "1", "SYSTEM_TOTALJOBSINPHASE": "4"}, "1/4"),
        ({"BUILDKITE_PARALLEL_JOB": "0", "BUILDKITE_PARALLEL_JOB_COUNT": "4"}, "1/4"),
        ({"CIRCLE_NODE_INDEX": "3", "CIRCLE_NODE_TOTAL": "4"}, "4/4"),
        ({"JOB_COMPLETION_INDEX": "1", "HARNESS_SHARD_COUNT": "2"}, "2/2"),
        ({"HARNESS_SHARD_INDEX": "0", "HARNESS_SHARD_COUNT": "2"}, "1/2"),
        (
            {
                "SLURM_ARRAY_TASK_ID": "13",
                "SLURM_ARRAY_TASK_MIN": "9",
                "SLURM_ARRAY_TASK_STEP": "2",
                "SLURM_ARRAY_TASK_COUNT": "4",
            },
            "3/4",
        ),
        ({"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "3"}, "3/3"),
        ({"CI_NODE_INDEX": "10000", "CI_NODE_TOTAL": "10000"}, "10000/10000"),
        ({"CI_NODE_INDEX": "", "CIRCLE_NODE_INDEX": "0", "CIRCLE_NODE_TOTAL": "2"}, "1/2"),
    ],
)
def test_shard_auto_is_read_from_the_environment_variables_of_the_ci(
    environment: dict[str, str], expected: str
) -> None:
    assert str(shard_of("auto", environment)) == expected


OWN = {"HARNESS_SHARD_INDEX": "4", "HARNESS_SHARD_COUNT": "7"}
POD = {"JOB_COMPLETION_INDEX": "2", "HARNESS_SHARD_COUNT": "7"}
SLURM = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2"}
GITLAB = {"CI_NODE_INDEX": "3", "CI_NODE_TOTAL": "3"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({**GITLAB, **SLURM}, "2/2"),
        ({**GITLAB, **POD}, "3/7"),
        ({**GITLAB, **SLURM, **OWN}, "5/7"),
        ({**POD, **OWN}, "5/7"),
    ],
)
def test_innermost_ci_engine_takes_precedence_for_shard_auto(
    environment: dict[str, str], expected: str
) -> None:
    assert str(shard_of("auto", environment)) == expected


@pytest.mark.parametrize(
    ("word", "environment", "message"),
    [
        ("auto", {}, "None is set; give K/N"),
        ("auto", {"CI_NODE_INDEX": "2"}, "CI_NODE_TOTAL: The variable of GitLab is ''"),
        ("auto", {**SLURM, "SLURM_ARRAY_TASK_MIN": "x"}, "The variable of Slurm is 'x'"),
        ("auto", {**SLURM, "SLURM_ARRAY_TASK_ID": "9" * 5000}, "at most 12 digits was expected"),
        ("0/3", {}, "0/3 is not a shard"),
        ("4/3", {}, "4/3 is not a shard"),
        ("1/999999999", {}, "which is at most 10000"),
        ("two", {}, "'two' is not a shard; give K/N"),
    ],
)
def test_invalid_shards_are_refused(word: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        shard_of(word, environment)

    assert message in str(caught.value)
