"""A limit for calls that can't be interrupted, and the stacks of those that pass it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import faulthandler
import logging
import tempfile
import threading
from typing import TYPE_CHECKING, TypeVar

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


class LibvirtHangsError(HarnessError):
    """A call of libvirt did not return; the message has the stacks of all threads."""


def watched(
    what: str,
    call: Callable[[], T],
    limit_s: float,
    *,
    late: Callable[[T], object] | None = None,
) -> T:
    """Run `call` in a thread of its own, and leave that behind if it does not return in time.

    So a libvirtd that no longer answers costs a thread and not the run, and Ctrl-C works all the
    while. It is no pool's thread: Python waits for those at its end, and would hang as well.

    What `call` returns when nobody waits any more is given to `late`, in the thread left behind.

    Raises what `call` raises, and LibvirtHangsError with all stacks after `limit_s` seconds.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def work() -> None:
        try:
            result = call()
        except BaseException as error:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                future.set_exception(error)
            return
        try:
            future.set_result(result)
        except concurrent.futures.InvalidStateError:
            if late is not None:
                late(result)

    threading.Thread(target=work, name=f"libvirt: {what}", daemon=True).start()
    try:
        concurrent.futures.wait([future], timeout=limit_s)
    finally:
        # By Ctrl-C too; from here on a result is late, unless it has come.
        is_left = future.cancel()
    if not is_left:
        return future.result()
    stacks = _stacks()
    _LOG.info("libvirt did not answer %s within %.0f s\n%s", what, limit_s, stacks)
    raise LibvirtHangsError(
        f"libvirt did not answer {what} within {limit_s:.0f} s. Look at what libvirtd does there, "
        "and restart it if it hangs. The stacks of this process's threads, the call's among them:\n"
        f"{stacks}"
    )


def _stacks() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")
