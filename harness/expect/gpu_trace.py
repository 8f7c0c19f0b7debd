"""Expectations on the accesses to an emulated GPU, as the GPU's access trace records them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.expect.failure import require
from harness.gpu.trace import IncidentKind

if TYPE_CHECKING:
    from harness.evidence import Evidence
    from harness.gpu.trace import AccessTrace, Incident


def no_bar_access(evidence: Evidence, *, gpu: str = "gpu0") -> None:
    """Expect no read or write of a BAR of an emulated GPU."""
    touched = _trace_of(evidence, gpu).bar_accesses()
    require(
        not touched,
        f"No BAR access of '{gpu}' was expected, but there were at least {len(touched)}; the "
        f"first access is '{touched[0] if touched else ''}'.",
        evidence,
    )


def no_bar_access_before(evidence: Evidence, mark: str, *, gpu: str = "gpu0") -> None:
    """Expect no access to an emulated GPU's BARs before the first mark that contains `mark`.

    The marks in an access trace are the steps of provisioning, and the lines that a test writes
    with `mark`.
    """
    trace = _trace_of(evidence, gpu)
    moment = _moment(evidence, trace, mark, gpu)
    early = [one for one in trace.bar_accesses() if one.sequence < moment.sequence]
    require(
        not early,
        f"No BAR access of '{gpu}' was expected before '{moment.words}', but there was "
        f"'{early[0] if early else ''}'.",
        evidence,
    )


def bar_access_after(evidence: Evidence, mark: str, *, gpu: str = "gpu0") -> None:
    """Expect an access to an emulated GPU's BARs after the first mark that contains `mark`."""
    trace = _trace_of(evidence, gpu)
    moment = _moment(evidence, trace, mark, gpu)
    require(
        any(one.sequence > moment.sequence for one in trace.bar_accesses()),
        f"A BAR access of '{gpu}' was expected after '{moment.words}', but there was none.",
        evidence,
    )


def gpu_reset(
    evidence: Evidence, *, times: int = 1, since: str | None = None, gpu: str = "gpu0"
) -> None:
    """Expect `times` resets of an emulated GPU in its trace, or after the first mark that has `since`."""
    trace = _trace_of(evidence, gpu)
    if trace.dropped_incidents:
        raise HarnessError(
            f"The access trace of '{gpu}' was full and dropped {trace.dropped_incidents} incidents, so "
            "resets cannot be counted.",
            evidence=evidence.folder,
        )
    start = -1 if since is None else _moment(evidence, trace, since, gpu).sequence
    seen = sum(one.sequence > start for one in trace.resets())
    when = "" if since is None else f" since '{since}'"
    require(
        seen == times,
        f"{times} resets of '{gpu}' were expected{when}, but there were {seen}.",
        evidence,
    )


def _trace_of(evidence: Evidence, gpu: str) -> AccessTrace:
    traces = evidence.gpu_traces
    if gpu not in traces:
        raise HarnessError(
            f"There is no access trace of '{gpu}'; there are traces of {sorted(traces)}.",
            evidence=evidence.folder,
        )
    return traces[gpu]


def _moment(evidence: Evidence, trace: AccessTrace, mark: str, gpu: str) -> Incident:
    moment = trace.find_mark(mark)
    if moment is None:
        marks = [one.words for one in trace.incidents_of(IncidentKind.MARK)]
        raise HarnessError(
            f"The access trace of '{gpu}' has no mark with '{mark}'; its marks are {marks}.",
            evidence=evidence.folder,
        )
    return moment
