"""What a guest did to an emulated GPU, by the GPU's own access trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.expect.claim import claim
from harness.gpu.trace import IncidentKind

if TYPE_CHECKING:
    from harness.evidence import Evidence
    from harness.gpu.trace import AccessTrace, Incident


def no_bar_access(evidence: Evidence, *, gpu: str = "gpu0") -> None:
    """Expect nobody to have read or written a BAR of an emulated GPU."""
    touched = _trace_of(evidence, gpu).bar_accesses()
    claim(
        not touched,
        f"No BAR access of '{gpu}' was expected, but there were {len(touched)} or more, the first "
        f"of them '{touched[0] if touched else ''}'.",
        evidence,
    )


def no_bar_access_before(evidence: Evidence, mark: str, *, gpu: str = "gpu0") -> None:
    """Expect no BAR access of an emulated GPU before the first mark that contains `mark`.

    Steps of provisioning are marks, and what a test writes by `mark`.
    """
    trace = _trace_of(evidence, gpu)
    moment = _moment(evidence, trace, mark, gpu)
    early = [one for one in trace.bar_accesses() if one.sequence < moment.sequence]
    claim(
        not early,
        f"No BAR access of '{gpu}' was expected before '{moment.words}', but there was "
        f"'{early[0] if early else ''}'.",
        evidence,
    )


def bar_access_after(evidence: Evidence, mark: str, *, gpu: str = "gpu0") -> None:
    """Expect a BAR access of an emulated GPU after the first mark that contains `mark`."""
    trace = _trace_of(evidence, gpu)
    moment = _moment(evidence, trace, mark, gpu)
    claim(
        any(one.sequence > moment.sequence for one in trace.bar_accesses()),
        f"A BAR access of '{gpu}' was expected after '{moment.words}', but there was none.",
        evidence,
    )


def gpu_reset(
    evidence: Evidence, *, times: int = 1, since: str | None = None, gpu: str = "gpu0"
) -> None:
    """Expect an emulated GPU to have been reset so often, since a mark or since it was made."""
    trace = _trace_of(evidence, gpu)
    if trace.dropped_incidents:
        raise HarnessError(
            f"So much happened to '{gpu}' that {trace.dropped_incidents} incidents are not in its "
            "trace, so its resets can't be counted.",
            evidence=evidence.folder,
        )
    start = -1 if since is None else _moment(evidence, trace, since, gpu).sequence
    seen = sum(one.sequence > start for one in trace.resets())
    when = "" if since is None else f" since '{since}'"
    claim(
        seen == times,
        f"{times} resets of '{gpu}' were expected{when}, but there were {seen}.",
        evidence,
    )


def _trace_of(evidence: Evidence, gpu: str) -> AccessTrace:
    traces = evidence.gpu_traces
    if gpu not in traces:
        raise HarnessError(
            f"There is no access trace of '{gpu}', but of {sorted(traces)}.",
            evidence=evidence.folder,
        )
    return traces[gpu]


def _moment(evidence: Evidence, trace: AccessTrace, mark: str, gpu: str) -> Incident:
    moment = trace.find_mark(mark)
    if moment is None:
        marks = [one.words for one in trace.incidents_of(IncidentKind.MARK)]
        raise HarnessError(
            f"The access trace of '{gpu}' has no mark with '{mark}', but {marks}.",
            evidence=evidence.folder,
        )
    return moment
