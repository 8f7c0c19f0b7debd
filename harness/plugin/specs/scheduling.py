"""Keeps the examples of a spec file on one xdist worker, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override
from xdist.scheduler import LoadScheduling

from harness.shell.spec.options import is_spec

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController


class SpecScheduling(LoadScheduling):  # type: ignore[misc]
    """The load scheduling of xdist, except that a whole spec file is sent to one worker.

    Examples of a file share the set-up of their groups, and may read files that earlier examples
    wrote. If one worker runs all examples of a file in order, each run has the same result. A file
    that has more than half of a worker's share of all tests is split, but only between groups.
    """

    @override
    def _send_tests(self, node: WorkerController, num: int) -> None:
        super()._send_tests(node, self._whole_files(num))

    def _whole_files(self, num: int) -> int:
        """Return how many pending tests to send: `num`, and the rest of the last spec file or group."""
        collection = self.collection or []
        pending = self.pending
        if not 0 < num < len(pending):
            return num
        last = collection[pending[num - 1]]
        path = _path(last)
        if not is_spec(self.config.rootpath / path):
            return num
        limit = max(1, len(collection) // len(self.nodes) // 2)
        size = sum(1 for index in pending if _path(collection[index]) == path)
        unit = _path if size <= limit else _group
        while num < len(pending) and unit(collection[pending[num]]) == unit(last):
            num += 1
        return num


def _path(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def _group(nodeid: str) -> str:
    return nodeid.rsplit("::", 1)[0]


def make_scheduler(config: pytest.Config, log: Producer) -> SpecScheduling | None:
    """Return a scheduler for `--dist=load`, which `-n` implies, or None to keep xdist's scheduler."""
    return SpecScheduling(config, log) if config.getvalue("dist") == "load" else None
