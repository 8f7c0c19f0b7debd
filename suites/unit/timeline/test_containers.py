"""The times of containers, from messages of containerd 1.6 and 1.7."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.timeline import SpanState
from harness.timeline.containers import containers_of
from suites.unit.timeline.journals import a_boot, an_entry

if TYPE_CHECKING:
    from harness.evidence.history import JournalEntry

LONG = "0123456789abcdef" * 4
TIMES = 20_000


def said(monotonic_s: float, message: str, by: str = "containerd") -> JournalEntry:
    return an_entry(monotonic_s, MESSAGE=f'time="2026" level=info {message}', SYSLOG_IDENTIFIER=by)


def test_span_of_a_container_is_from_the_start_to_the_end_of_its_shim() -> None:
    boot = a_boot(
        said(1.0, 'msg="starting signal loop" namespace=k8s.io path=/run/x/first pid=7'),
        said(1.5, 'msg="connecting to shim first" address=unix'),
        said(2.0, 'msg="starting signal loop" namespace=k8s.io path=/run/x/other', by="dockerd"),
        said(4.0, 'msg="shim disconnected" id=first namespace=k8s.io'),
        said(4.5, 'msg="shim disconnected" id=unknown'),
        said(5.0, f'msg="connecting to shim {LONG}" address=unix'),
        said(6.0, 'msg="connecting to shim second" address=unix'),
        said(
            7.0,
            'msg="CreateContainer within sandbox \\"s\\" for &ContainerMetadata{Name:plugin,Attempt:0,} '
            'returns container id \\"abc0\\""',
        ),
        said(8.0, 'msg="connecting to shim abc0" address=unix'),
        said(9.0, 'msg="shim reaped" id=abc0'),
    )

    assert [
        (span.name, span.start_s, span.end_s, span.state) for span in containers_of(boot, 150.0)
    ] == [
        ("first", 101.0, 104.0, SpanState.DONE),
        ("plugin", 108.0, 109.0, SpanState.DONE),
        ("0123456789ab…", 105.0, 150.0, SpanState.RUNNING),
        ("second", 106.0, 150.0, SpanState.RUNNING),
    ]


@pytest.mark.parametrize(
    "message",
    [
        'msg="starting signal loop" ' + "path=a" * TIMES,
        'msg="starting signal loop" path= ' * TIMES,
        'msg="shim disconnected"' * TIMES,
        "CreateContainer within sandbox &ContainerMetadata{Name:a," * TIMES,
        "CreateContainer within sandbox &ContainerMetadata{Name:" * TIMES,
    ],
    ids=["path", "paths", "ends", "names", "open names"],
)
def test_long_containerd_message_is_parsed_quickly(message: str) -> None:
    """Anybody in the guest can log as containerd."""
    assert len(containers_of(a_boot(said(1.0, message)), 150.0)) <= 1
