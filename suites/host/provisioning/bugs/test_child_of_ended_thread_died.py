"""A long-lived process was killed as soon as the thread that had started it ended.

The kernel sends the parent-death signal when the *thread* that forked ends (prctl(2)), so a
machine that a worker thread booted died with that thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from harness.provisioning.command import PIPE, spawn

if TYPE_CHECKING:
    from harness.provisioning.command import ChildProcess


def test_process_keeps_running_after_the_thread_that_started_it_has_ended() -> None:
    started: list[ChildProcess] = []
    thread = threading.Thread(
        target=lambda: started.append(spawn(["cat"], stdin=PIPE, stdout=PIPE))
    )
    thread.start()
    thread.join()
    (process,) = started

    answer, _ = process.communicate(b"still here", timeout=20)

    assert (answer, process.returncode) == (b"still here", 0)
