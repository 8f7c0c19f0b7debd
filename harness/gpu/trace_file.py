"""Reads and writes access traces as JSON, so that tests of evidence need no machine."""

from __future__ import annotations

import json

from harness.errors import HarnessError
from harness.foreign_json import parse_json
from harness.gpu.trace import (
    NO_BAR,
    Access,
    AccessKind,
    AccessTrace,
    Incident,
    IncidentKind,
    Stray,
)

_MOST_AS_NUMBER = (1 << 64) - 1


def render_trace(trace: AccessTrace) -> str:
    """Render a trace as JSON that `parse_trace` reads."""
    return json.dumps(
        {
            "accesses": [
                [
                    one.sequence,
                    one.at_s,
                    one.kind.value,
                    one.bar.value if isinstance(one.bar, Stray) else one.bar,
                    one.offset,
                    one.size,
                    # JSON readers limit the number of digits in a number.
                    one.value if one.value <= _MOST_AS_NUMBER else hex(one.value),
                ]
                for one in trace.accesses
            ],
            "incidents": [
                [one.sequence, one.at_s, one.kind.value, one.words] for one in trace.incidents
            ],
            "dropped": trace.dropped,
            "dropped_incidents": trace.dropped_incidents,
        }
    )


def parse_trace(text: str, source: str) -> AccessTrace:
    """Parse the output of `render_trace`; raises HarnessError, which names `source`."""
    try:
        document = parse_json(text)
        return AccessTrace(
            accesses=tuple(
                Access(
                    sequence=int(sequence),
                    at_s=float(at_s),
                    kind=AccessKind(kind),
                    bar=NO_BAR if bar == NO_BAR.value else None if bar is None else int(bar),
                    offset=int(offset),
                    size=int(size),
                    value=int(value, 16) if isinstance(value, str) else int(value),
                )
                for sequence, at_s, kind, bar, offset, size, value in document["accesses"]
            ),
            incidents=tuple(
                Incident(
                    sequence=int(sequence),
                    at_s=float(at_s),
                    kind=IncidentKind(kind),
                    words=None if words is None else str(words),
                )
                for sequence, at_s, kind, words in document["incidents"]
            ),
            dropped=int(document["dropped"]),
            dropped_incidents=int(document["dropped_incidents"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise HarnessError(
            f"'{source}' was expected to be the access trace of a GPU, but can't be parsed ({error!r})."
        ) from error
