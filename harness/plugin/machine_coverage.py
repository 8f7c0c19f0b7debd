"""Records which lines of shell code run in the machines of a test, under `--shell-cov`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.lab.shell_trace import read_hits, traced
from harness.plugin.specs.runs import hits_of, notes_of
from harness.shell.coverage import Tier, any_uses_trace, merge, scripts_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from harness.lab.node import Node
    from harness.lab.node_request import NodeRequest
    from harness.provisioner import Provisioner


def traced_if_asked(
    config: pytest.Config, request: NodeRequest, provisioner: Provisioner
) -> NodeRequest:
    """Return the request or, if this run records coverage, a copy that traces shell code."""
    sources = tuple(config.getoption("--shell-cov"))
    if not sources:
        return request
    return traced(request, provisioner, by_trap=any_uses_trace(sources))


@contextlib.contextmanager
def recorded(config: pytest.Config, node: Node) -> Iterator[None]:
    """At the end of the context, collect the node's traces, or add a note if the traces can't be read."""
    yield
    sources = config.getoption("--shell-cov")
    if not sources:
        return
    try:
        hits, refused = read_hits(node.guest, scripts_in(sources))
    except HarnessError as error:
        notes_of(config).add(
            f"The coverage lacks the code that ran in machine '{node.request.name}', because the record of "
            f"its lines could not be read from the machine: {str(error).splitlines()[0]}"
        )
        return
    merge(hits_of(config, Tier.MACHINE), hits)
    notes_of(config).update(refused)
