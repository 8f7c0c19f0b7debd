"""Progress of what a command prepares, on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.progress import ProgressEvent


def show_event(event: ProgressEvent) -> None:
    """Print a progress event to stderr, apart from the command's output."""
    print(f"[{event.subject}] {event.stage.value}: {event.message}", file=sys.stderr, flush=True)
