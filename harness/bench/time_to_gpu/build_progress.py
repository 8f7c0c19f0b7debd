"""Reports the latest log line of a long provisioning, such as a driver build, once a minute."""

from __future__ import annotations

import contextlib
import shlex
import threading
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.provisioning.command import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.machine.channels.guest import Guest

EVERY_S = 60.0
#: Prints the last line of the most recently written log, which is DKMS's log during a build.
_LAST_LINE = (
    "newest=$(ls -t /var/lib/dkms/*/*/build/make.log "
    f"{shlex.quote(CLOUD_INIT_OUTPUT_PATH)} 2>/dev/null | head -n 1); "
    '[ -z "$newest" ] || printf "%s: %s" "$newest" "$(tail -n 1 "$newest")"'
)


@contextlib.contextmanager
def build_progress(
    guest: Guest, tell: Callable[[str], None], *, every_s: float = EVERY_S
) -> Iterator[None]:
    """Call `tell` every `every_s` seconds with the latest line of the guest's log, if the line is new."""
    is_over = threading.Event()

    def watch() -> None:
        told = ""
        while not is_over.wait(every_s):
            # Errors are ignored: if the guest has ended or does not answer, the provisioning
            # command reports the error.
            with contextlib.suppress(HarnessError, CommandError):
                last = guest.output_of("sh", "-c", _LAST_LINE).strip()
                if last and last != told and not is_over.is_set():
                    told = last
                    tell(last)

    watcher = threading.Thread(target=watch, name="build-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
