"""Pure functions that determine, from containerd's messages in the journal, when containers ran."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.timeline import Lane, Span, SpanState

if TYPE_CHECKING:
    from harness.timeline.boots import Boot

_CONNECTING = re.compile(r'msg="connecting to shim ([^"\s]+)"')
_SHIM, _PATH = 'msg="starting signal loop"', re.compile(r"path=(\S+)")
_GONE, _ID = ('msg="shim disconnected"', 'msg="shim reaped"'), re.compile(r"\bid=(\S+)")
#: containerd's message about a container of Kubernetes has the container's name, then the container's id.
_NAMED = "CreateContainer within sandbox "
_NAME = re.compile(r"&ContainerMetadata\{Name:([^,{]+),")
_NAMED_ID = re.compile(r'returns container id \\"([0-9a-f]+)\\"')
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
        named, container = _after(_NAMED, _NAME, message), _after(_NAMED, _NAMED_ID, message)
        if named is not None and container is not None:
            names[container] = named
        path, connecting = _after(_SHIM, _PATH, message), _CONNECTING.search(message)
        gone = next(filter(None, (_after(mark, _ID, message) for mark in _GONE)), None)
        if gone is not None:
            if gone in started:
                start_s = boot.at(started.pop(gone))
                found.append(_span(gone, names, start_s, boot.at(entry.monotonic_s)))
        elif connecting is not None:
            started.setdefault(connecting[1], entry.monotonic_s)
        elif path is not None:
            started.setdefault(path.rstrip("/").rpartition("/")[2], entry.monotonic_s)
    return found + [
        _span(container, names, boot.at(at_s), end_s, SpanState.RUNNING)
        for container, at_s in started.items()
    ]


def _after(mark: str, pattern: re.Pattern[str], message: str) -> str | None:
    """Return the first text that `pattern` finds after `mark`, or None.

    The search time of a single regular expression for `mark` and `pattern` would grow with the
    square of the message's length.
    """
    _, found, rest = message.partition(mark)
    match = pattern.search(rest) if found else None
    return None if match is None else match[1]


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
