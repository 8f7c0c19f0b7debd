"""Loads libvirt's Python binding, which is optional and untyped.

Other modules use the binding's objects. The protocols here declare the methods that the harness
calls.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import TYPE_CHECKING, Any, Protocol

from harness.errors import RequirementError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The extra of this project that installs the binding.
EXTRA = "libvirt"


class VirConnect(Protocol):
    """libvirt's `virConnect`."""

    def close(self) -> int: ...
    def getLibVersion(self) -> int: ...  # noqa: N802 - libvirt's name
    def setKeepAlive(self, interval: int, count: int) -> int: ...  # noqa: N802
    def registerCloseCallback(  # noqa: N802
        self, callback: Callable[[object, int, Any], None], opaque: object
    ) -> int: ...
    def unregisterCloseCallback(self) -> int | None: ...  # noqa: N802
    def domainEventRegisterAny(  # noqa: N802
        self, domain: object, event: int, callback: Callable[..., None], opaque: object
    ) -> int: ...
    def domainEventDeregisterAny(self, registration: int) -> int: ...  # noqa: N802
    # This protocol declares no other methods. libvirt itself checks calls of other methods.
    def __getattr__(self, name: str) -> Any: ...


@functools.cache
def load_libvirt() -> Any:
    """Return the module `libvirt`.

    Raises RequirementError if the binding is not installed. The message names the extra.
    """
    with _required("libvirt"):
        module = importlib.import_module("libvirt")
    # Without an error handler, libvirt prints each error to stderr, in addition to raising it.
    module.registerErrorHandler(_ignore_error, None)
    return module


@functools.cache
def load_libvirt_qemu() -> Any:
    """Return the module `libvirt_qemu`, which passes commands through to QEMU's monitor."""
    load_libvirt()
    with _required("libvirt_qemu"):
        return importlib.import_module("libvirt_qemu")


@contextlib.contextmanager
def _required(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise RequirementError(
            f"Machines under libvirt need the Python module '{name}', which can't be imported "
            f"({error}); run `apt-get install --no-install-recommends libvirt-dev pkg-config gcc "
            f"python3-dev`, and then `pip install 'gpu-node-harness[{EXTRA}]'`."
        ) from error


def _ignore_error(_context: object, _error: object) -> None:
    """Do nothing: libvirt also raises an exception with the error."""
