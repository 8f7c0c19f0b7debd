"""Finds the shard of a job from the variables that the job's CI engine sets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError, listed
from harness.sharding import Shard
from harness.visible_text import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

INDEX_VARIABLE = "HARNESS_SHARD_INDEX"
"""The variable with the index of the job's shard, from 0, for engines that set no such variable."""
COUNT_VARIABLE = "HARNESS_SHARD_COUNT"
"""The variable with the count of shards; needed with INDEX_VARIABLE, and on Kubernetes."""


_MOST_DIGITS = 12
_SHOWN_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The variables in which a CI engine numbers its parallel jobs.

    `first` is the first job's number.

    If `first_variable` is given, the value of that variable is the first job's number. The value of
    the variable `step_variable` is the difference between consecutive jobs' numbers.
    """

    name: str
    index: str
    count: str
    first: int = 0
    first_variable: str | None = None
    step_variable: str | None = None


#: An engine that may run inside another engine comes first: a job of GitLab may submit a job to Slurm,
#: but not the reverse.
ENGINES = (
    Engine(name=INDEX_VARIABLE, index=INDEX_VARIABLE, count=COUNT_VARIABLE),
    # Kubernetes sets a variable for a pod's index, but no variable for the count of pods.
    Engine(name="Kubernetes", index="JOB_COMPLETION_INDEX", count=COUNT_VARIABLE),
    Engine(
        name="Slurm",
        index="SLURM_ARRAY_TASK_ID",
        count="SLURM_ARRAY_TASK_COUNT",
        first_variable="SLURM_ARRAY_TASK_MIN",
        step_variable="SLURM_ARRAY_TASK_STEP",
    ),
    Engine(name="GitLab", index="CI_NODE_INDEX", count="CI_NODE_TOTAL", first=1),
    Engine(
        name="Azure Pipelines",
        index="SYSTEM_JOBPOSITIONINPHASE",
        count="SYSTEM_TOTALJOBSINPHASE",
        first=1,
    ),
    Engine(name="Buildkite", index="BUILDKITE_PARALLEL_JOB", count="BUILDKITE_PARALLEL_JOB_COUNT"),
    Engine(name="CircleCI", index="CIRCLE_NODE_INDEX", count="CIRCLE_NODE_TOTAL"),
)


def shard_of(word: str, environment: Mapping[str, str] | None = None) -> Shard:
    """Return the shard that `word`, the value of `--shard`, means; `word` is K/N or 'auto'.

    Raises BadInputError for an invalid `word`, and for 'auto' if the CI engine's variables are
    missing or have wrong values.
    """
    if word != "auto":
        return Shard.parse(word)
    variables = os.environ if environment is None else environment
    engine = next((each for each in ENGINES if variables.get(each.index)), None)
    if engine is None:
        raise BadInputError(
            f"'auto' needs a variable that says which shard this job is: one of "
            f"{listed(each.index for each in ENGINES)}. None is set; give K/N, such as "
            f"--shard=2/5, or set {INDEX_VARIABLE} (from 0) and {COUNT_VARIABLE}.",
            source="--shard",
        )
    first = engine.first
    if engine.first_variable is not None:
        first = _number(variables, engine.first_variable, engine, default=first)
    step = 1
    if engine.step_variable is not None:
        step = max(1, _number(variables, engine.step_variable, engine, default=1))
    index = _number(variables, engine.index, engine)
    count = _number(variables, engine.count, engine)
    return Shard(number=(index - first) // step + 1, count=count)


def _number(
    variables: Mapping[str, str], name: str, engine: Engine, default: int | None = None
) -> int:
    word = variables.get(name, "")
    if not word and default is not None:
        return default
    # Python refuses to convert thousands of digits.
    if not (word.isdecimal() and len(word) <= _MOST_DIGITS):
        raise BadInputError(
            f"The variable of {engine.name} is {shortened(repr(word), _SHOWN_BYTES)}, but a "
            f"number of at most {_MOST_DIGITS} digits was expected; "
            "give K/N to --shard instead of 'auto'.",
            source=name,
        )
    return int(word)
