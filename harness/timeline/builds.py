"""Pure functions that read DKMS's builds from their logs; a log's second line has the start time."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from typing import TYPE_CHECKING

from harness.timeline import Lane, Span, SpanState

if TYPE_CHECKING:
    from harness.timeline.boots import Boots

_DKMS_LOG = re.compile(
    r"/var/lib/dkms/(?P<module>[^/]+)/(?P<version>[^/]+)/(?:build|(?P<kernel>[^/]+)/[^/]+/log)/make\.log"
)
#: The forms of a date in the locale C, and in `en_US` with a recent and an older C library.
_DATES = (
    "%a %b %d %H:%M:%S UTC %Y",
    "%a %b %d %I:%M:%S %p UTC %Y",
    "%a %d %b %Y %I:%M:%S %p UTC",
)


def build_of(path: str, log: str, ended: float | None, boots: Boots, end_s: float) -> Span | None:
    """Return the build that a log of DKMS describes; `ended` is the wall-clock time of the log's last write.

    The result is None if the path is not a path of a DKMS log, if the log has no date, or if the
    build is older than the boots on the timeline, such as a build in the image. If `ended` is None,
    the duration of the build is 0.
    """
    found, lines = _DKMS_LOG.fullmatch(path), log.splitlines()
    began = _date(lines[1]) if len(lines) > 1 else None
    at_s = None if began is None else boots.at_wall(began)
    if found is None or began is None or at_s is None:
        return None
    name = f"{found['module']} {found['version']}"
    name += f", kernel {found['kernel']}" if found["kernel"] else ""
    return Span(
        lane=Lane.DKMS,
        name=name,
        start_s=at_s,
        end_s=at_s if ended is None else min(end_s, at_s + max(0.0, ended - began)),
        # DKMS moves the log of a successful build to the folder of the build's kernel.
        state=SpanState.DONE if found["kernel"] else SpanState.FAILED,
    )


def _date(line: str) -> float | None:
    """Parse a UTC date in the form that `date` prints; return None for another form."""
    for form in _DATES:
        with contextlib.suppress(ValueError):
            stamp = dt.datetime.strptime(" ".join(line.split()), form)  # noqa: DTZ007
            return stamp.replace(tzinfo=dt.timezone.utc).timestamp()
    return None
