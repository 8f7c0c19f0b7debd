"""Pure functions that read from containerd's messages in the journal when containers ran."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.timeline import Lane, Span, SpanState

if TYPE_CHECKING:
    from harness.timeline.boots import Boot

_SHIM = re.compile(r'msg="starting signal loop".*?path=\S*/(?P<id>[^/\s]+)')
_CONNECTING = re.compile(r'msg="connecting to shim (?P<id>[^"\s]+)"')
_GONE = re.compile(r'msg="(?:shim disconnected|shim reaped)".*?\bid=(?P<id>\S+)')
#: The message about a container of Kubernetes has the container's name and then its id.
_NAMED = re.compile(
    r"CreateContainer within sandbox .*?&ContainerMetadata\{Name:(?P<name>[^,]+),.*?"
    r'returns container id \\"(?P<id>[0-9a-f]+)\\"'
)
_LONGEST_ID = 24


def containers_of(boot: Boot, end_s: float) -> list[Span]:
    """Return the containers of a boot; a container without an end runs until `end_s`."""
    started: dict[str, float] = {}
    names: dict[str, str] = {}
    found: list[Span] = []
    for entry in boot.entries:
        if entry.fields.get("SYSLOG_IDENTIFIER") != "containerd":
            continue
        message = entry.fields.get("MESSAGE", "")
        if named := _NAMED.search(message):
            names[named["id"]] = named["name"]
        if gone := _GONE.search(message):
            container = gone["id"]
            if container in started:
                found.append(
                    _span(
                        container,
                        names,
                        boot.at(started.pop(container)),
                        boot.at(entry.monotonic_s),
                    )
                )
        elif begun := _CONNECTING.search(message) or _SHIM.search(message):
            started.setdefault(begun["id"], entry.monotonic_s)
    return found + [
        _span(container, names, boot.at(at_s), end_s, SpanState.RUNNING)
        for container, at_s in started.items()
    ]


def _span(
    container: str,
    names: dict[str, str],
    start_s: float,
    end_s: float,
    state: SpanState = SpanState.DONE,
) -> Span:
    name = names.get(container, container)
    return Span(
        lane=Lane.CONTAINERS,
        name=name if len(name) <= _LONGEST_ID else f"{name[:12]}…",
        start_s=start_s,
        end_s=end_s,
        state=state,
    )
