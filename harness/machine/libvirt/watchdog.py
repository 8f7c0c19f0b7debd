"""Limits the time of calls that can't be interrupted. The error has the stacks of all threads."""

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
    """A call of libvirt did not return. The message has the stacks of all threads."""


def watched(
    what: str,
    call: Callable[[], T],
    limit_s: float,
    *,
    late: Callable[[T], object] | None = None,
) -> T:
    """Run `call` in a new thread, and abandon that thread if `call` does not return in time.

    A libvirtd that no longer answers blocks only the new thread, so Ctrl-C still works. The thread
    is not in a pool, because Python joins the threads of pools at its exit and would hang.

    A result that arrives after the limit is passed to `late`, in the abandoned thread.

    Raises the error of `call`, and LibvirtHangsError with all stacks after `limit_s` seconds.
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
        with contextlib.suppress(concurrent.futures.TimeoutError):
            future.exception(timeout=limit_s)
    finally:
        # Ctrl-C also ends the wait. A result that has not arrived yet is passed to `late`
        # when it arrives.
        is_left = future.cancel()
    if not is_left:
        return future.result()
    stacks = _stacks()
    _LOG.info("libvirt did not answer %s within %.0f s\n%s", what, limit_s, stacks)
    raise LibvirtHangsError(
        f"libvirt did not answer {what} within {limit_s:.0f} s. Check libvirtd, "
        "and restart it if it hangs. The stacks of all threads of this process:\n"
        f"{stacks}"
    )


def _stacks() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")
