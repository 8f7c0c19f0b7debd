"""Expectations on every GPU node, however the node was provisioned, and the verdicts on one node."""

from __future__ import annotations

import enum
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.entry_points import Group, Plugin, PluginError, plugins, unambiguous
from harness.errors import BadInputError, ExpectationError, HarnessError, listed
from harness.evidence.request import NOTHING_MORE, AdditionalEvidence
from harness.expect.driver import driver_tools_installed, module_fits_kernel, record_fits
from harness.expect.driver_report import ARGV, NVIDIA_SMI, driver_reports_health
from harness.expect.failure import failure
from harness.expect.gpus import every_gpu_driven, has_gpus, no_gpu_error_logged
from harness.expect.runtime import cdi_offers_gpus, gpu_services_up, runtime_hands_out_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class NodeExpectation:
    """One expectation on a GPU node; `judge` returns a sentence about the finding.

    `evidence` is what the expectation needs in addition to the evidence that is gathered from every
    node. The commands in `evidence` may only read, since an existing node must not change.
    """

    name: str
    words: str
    judge: Callable[[Evidence], str]
    evidence: AdditionalEvidence = NOTHING_MORE


#: The harness's own expectations; `every_expectation` returns these and the expectations of
#: installed packages.
NODE_EXPECTATIONS = (
    NodeExpectation(name="gpu", words="a GPU is on the bus", judge=has_gpus),
    NodeExpectation(name="driver", words="the driver drives each GPU", judge=every_gpu_driven),
    NodeExpectation(
        name="module", words="the module on disk is the loaded module", judge=module_fits_kernel
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

#: This expectation is checked only on request: its command `nvidia-smi` loads the driver's module.
DRIVER_REPORT = NodeExpectation(
    name="nvidia-smi",
    words="nvidia-smi reports healthy GPUs",
    judge=driver_reports_health,
    evidence=AdditionalEvidence(commands={NVIDIA_SMI: list(ARGV)}),
)


class VerdictState(enum.Enum):
    """The result of an expectation; UNKNOWN means that the harness could not decide."""

    MET = "met"
    NOT_MET = "not met"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class NodeVerdict:
    """The result of one expectation; `sentence` says what was expected and found, and what to do."""

    expectation: NodeExpectation
    state: VerdictState
    sentence: str


def judge_node(
    evidence: Evidence, expectations: Sequence[NodeExpectation] | None = None
) -> list[NodeVerdict]:
    """Check a node's evidence against `expectations`, by default `every_expectation()`.

    If an expectation fails, the following expectations are still checked.
    """
    if expectations is None:
        expectations = every_expectation()
    return [_judge(evidence, expectation) for expectation in expectations]


def _judge(evidence: Evidence, expectation: NodeExpectation) -> NodeVerdict:
    try:
        state, sentence = VerdictState.MET, expectation.judge(evidence)
    except ExpectationError as error:
        state, sentence = VerdictState.NOT_MET, error.sentence
    except HarnessError as error:
        state, sentence = VerdictState.UNKNOWN, error.sentence
    return NodeVerdict(expectation=expectation, state=state, sentence=sentence)


def node_expectations(
    names: Sequence[str], *, source: str, asks_driver: bool = False
) -> tuple[NodeExpectation, ...]:
    """Return the expectations with these names, or all expectations if no name is given.

    DRIVER_REPORT is a known expectation only if `asks_driver` is true. Raises BadInputError, which
    names `source`, if a name is unknown.
    """
    asked = (DRIVER_REPORT,) if asks_driver else ()
    known = {expectation.name: expectation for expectation in (*every_expectation(), *asked)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadInputError(
            f"'{unknown[0]}' is not an expectation on a node; the known expectations are {listed(known)}.",
            source=source,
        )
    return tuple(known[name] for name in names or known)


def every_expectation() -> tuple[NodeExpectation, ...]:
    """Return the harness's expectations on a GPU node, and the expectations of installed packages.

    A package adds an expectation by an entry point of `Group.EXPECTATIONS`. The entry point refers
    to a `NodeExpectation`, or to a function that takes evidence and may raise ExpectationError. If
    an entry point refers to a function, the first line of this function's docstring says what is
    expected. For an entry point that can't be used, the result contains an expectation whose
    `judge` raises PluginError, so the verdict is unknown.
    """
    own = {expectation.name for expectation in NODE_EXPECTATIONS}
    usable, errors = unambiguous(plugins(Group.EXPECTATIONS), taken=own)
    return (
        *NODE_EXPECTATIONS,
        *(_of_plugin(plugin) for plugin in usable.values()),
        *(_unusable(error.plugin, error) for error in errors),
    )


def expectation_of(plugin: Plugin) -> NodeExpectation:
    """Return the expectation that an entry point provides; raises PluginError if there is none."""
    found = plugin.load()
    if isinstance(found, NodeExpectation):
        words, check = found.words, found.judge
    elif callable(found) and not isinstance(found, type):
        words, check = (inspect.getdoc(found) or plugin.name).splitlines()[0].rstrip("."), found
    else:
        raise plugin.error(
            f"a function that takes evidence is expected, but the entry point refers to {found!r}"
        )

    def judge(evidence: Evidence) -> str:
        try:
            answer: object = check(evidence)
        except (ExpectationError, HarnessError):
            raise
        except AssertionError as error:
            raise failure(f"The expectation '{words}' is not met: {error}", evidence) from error
        except Exception as error:
            raise plugin.error(f"it raises {error!r}") from error
        return answer if isinstance(answer, str) else f"As expected: {words}."

    if isinstance(found, NodeExpectation):
        return replace(found, name=plugin.name, judge=judge)
    return NodeExpectation(name=plugin.name, words=words, judge=judge)


def _of_plugin(plugin: Plugin) -> NodeExpectation:
    try:
        return expectation_of(plugin)
    except PluginError as error:
        return _unusable(plugin, error)


def evidence_of(expectations: Sequence[NodeExpectation]) -> AdditionalEvidence:
    """Return the evidence that these expectations need in addition to the evidence of every node.

    Raises BadInputError if two expectations have different commands with the same name.
    """
    merged = AdditionalEvidence()
    for expectation in expectations:
        for name, argv in expectation.evidence.commands.items():
            other = merged.commands.get(name, argv)
            if list(other) != list(argv):
                raise BadInputError(
                    f"Another expectation uses the name '{name}' for the output of {list(other)}; choose "
                    "another name.",
                    source=f"the expectation '{expectation.name}'",
                    key=f"commands.{name}",
                )
        merged = merged.merged(expectation.evidence)
    return merged


def _unusable(plugin: Plugin, error: PluginError) -> NodeExpectation:
    def judge(_evidence: Evidence) -> str:
        raise error

    return NodeExpectation(name=plugin.name, words=f"of {plugin.distribution}", judge=judge)
