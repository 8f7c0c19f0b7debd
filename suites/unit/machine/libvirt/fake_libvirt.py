"""A scripted fake of libvirt's Python binding, for tests of the libvirt driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeLibvirtError(Exception):
    """A fake of `libvirt.libvirtError`."""

    def __init__(self, message: str, *, code: int, origin: int = 10, errno: int = -1) -> None:
        super().__init__(message)
        self._said = (code, origin, message, errno)

    def get_error_code(self) -> int:
        return self._said[0]

    def get_error_domain(self) -> int:
        return self._said[1]

    def get_error_message(self) -> str:
        return self._said[2]

    def get_int1(self) -> int:
        return self._said[3]


@dataclass
class FakeConnect:
    """A fake `virConnect`, which records its calls."""

    version: int = 9_000_000
    calls: list[str] = field(default_factory=list)
    on_close: Callable[[object, int, object], None] | None = None
    callbacks: dict[int, tuple[int, Callable[..., None]]] = field(default_factory=dict)

    def close(self) -> int:
        self.calls.append("close")
        return 0

    def getLibVersion(self) -> int:  # noqa: N802 - libvirt's name
        return self.version

    def setKeepAlive(self, interval: int, count: int) -> int:  # noqa: N802
        self.calls.append(f"keep-alive {interval} {count}")
        return 0

    def registerCloseCallback(  # noqa: N802
        self, callback: Callable[[object, int, object], None], opaque: object
    ) -> int:
        del opaque
        self.on_close = callback
        return 0

    def unregisterCloseCallback(self) -> None:  # noqa: N802
        self.calls.append("unwatch")

    def domainEventRegisterAny(  # noqa: N802
        self, domain: object, event: int, callback: Callable[..., None], opaque: object
    ) -> int:
        assert domain is None
        del opaque
        number = len(self.callbacks)
        self.callbacks[number] = (event, callback)
        return number

    def domainEventDeregisterAny(self, registration: int) -> int:  # noqa: N802
        del self.callbacks[registration]
        return 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"The fake has no '{name}'.")

    def tell(self, event: int, *arguments: object) -> None:
        """Report an event to the callbacks that are registered for it."""
        for wanted, callback in tuple(self.callbacks.values()):
            if wanted == event:
                callback(self, *arguments, None)

    def break_down(self, reason: int = 1) -> None:
        """Report the end of libvirtd to the registered callback."""
        assert self.on_close is not None
        self.on_close(self, reason, None)


@dataclass
class FakeLibvirt:
    """A fake module `libvirt`: each call of `open` returns or raises the next of `connects`."""

    connects: list[FakeConnect | FakeLibvirtError] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    libvirtError: type[FakeLibvirtError] = FakeLibvirtError  # noqa: N815

    def open(self, uri: str) -> FakeConnect:
        self.opened.append(uri)
        answer = self.connects.pop(0)
        if isinstance(answer, FakeLibvirtError):
            raise answer
        return answer


@dataclass(frozen=True)
class FakeDomain:
    """A fake `virDomain` with only the UUID that events need."""

    uuid: str

    def UUIDString(self) -> str:  # noqa: N802
        return self.uuid
