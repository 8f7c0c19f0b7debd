"""What campaigns found so far, and the test that holds each fault since it was mended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A broken promise, for `docs/reliability.md`.

    `test` is the node id of the test that fails without the mending; None where the fault is left, and `why`
    then says why.
    """

    campaign: str
    what: str
    test: str | None = None
    why: str = ""


FAULTS = (
    Fault(
        campaign="load",
        what="an emulated guest panicked at its start, since it missed the ticks of its timer that it counts",
        test="suites/unit/machine/description/test_spec.py::test_emulated_machine_trusts_its_timer",
    ),
)
