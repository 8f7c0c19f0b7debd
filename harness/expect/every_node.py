"""Expectations on every GPU node, however it was provisioned, and the verdicts on one node."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError, ExpectationError, HarnessError, listed
from harness.expect.driver import driver_tools_installed, module_fits_kernel, record_fits
from harness.expect.gpus import every_gpu_driven, has_gpus, no_gpu_error_logged
from harness.expect.runtime import cdi_offers_gpus, gpu_services_up, runtime_hands_out_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class NodeExpectation:
    """One expectation on a GPU node; `judge` returns a sentence about what it found."""

    name: str
    words: str
    judge: Callable[[Evidence], str]


NODE_EXPECTATIONS = (
    NodeExpectation(name="gpu", words="a GPU is on the bus", judge=has_gpus),
    NodeExpectation(name="driver", words="the driver drives each GPU", judge=every_gpu_driven),
    NodeExpectation(
        name="module", words="the module on disk is the loaded one", judge=module_fits_kernel
    ),
    NodeExpectation(
        name="tools", words="the driver's programs are installed", judge=driver_tools_installed
    ),
    NodeExpectation(
        name="log", words="the kernel log has no GPU error", judge=no_gpu_error_logged
    ),
    NodeExpectation(name="record", words="the prebake record matches the node", judge=record_fits),
    NodeExpectation(name="cdi", words="a CDI spec offers GPUs", judge=cdi_offers_gpus),
    NodeExpectation(
        name="runtime", words="containerd has the nvidia runtime", judge=runtime_hands_out_gpus
    ),
    NodeExpectation(
        name="services", words="the GPU services run, and none has failed", judge=gpu_services_up
    ),
)


class VerdictState(enum.Enum):
    """The result of an expectation; UNKNOWN means that the harness could not tell."""

    MET = "met"
    NOT_MET = "not met"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class NodeVerdict:
    """The result of one expectation; `sentence` says what was expected and seen, and what to do."""

    expectation: NodeExpectation
    state: VerdictState
    sentence: str


def judge_node(
    evidence: Evidence, expectations: Sequence[NodeExpectation] = NODE_EXPECTATIONS
) -> list[NodeVerdict]:
    """Check all expectations on the evidence of a node; a failed one does not stop the others."""
    return [_judge(evidence, expectation) for expectation in expectations]


def _judge(evidence: Evidence, expectation: NodeExpectation) -> NodeVerdict:
    try:
        state, sentence = VerdictState.MET, expectation.judge(evidence)
    except ExpectationError as error:
        state, sentence = VerdictState.NOT_MET, error.sentence
    except HarnessError as error:
        state, sentence = VerdictState.UNKNOWN, error.sentence
    return NodeVerdict(expectation=expectation, state=state, sentence=sentence)


def node_expectations(names: Sequence[str], *, source: str) -> tuple[NodeExpectation, ...]:
    """Return the expectations with these names, or all if no name is given.

    Raises BadInputError that names `source` if a name is unknown.
    """
    known = {expectation.name: expectation for expectation in NODE_EXPECTATIONS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadInputError(
            f"'{unknown[0]}' is not an expectation on a node; known are {listed(known)}.",
            source=source,
        )
    return tuple(known[name] for name in names or known)
