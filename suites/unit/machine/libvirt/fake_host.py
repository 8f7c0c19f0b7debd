"""A fake of a libvirt connection whose host runs domains."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from typing_extensions import override

from suites.unit.machine.libvirt.fake_libvirt import (
    FakeConnect,
    FakeLibvirtError,
)
from suites.unit.machine.libvirt.fake_streams import HANGUP, FakeStream

if TYPE_CHECKING:
    from collections.abc import Callable

LIFE_CYCLE, DEVICE_REMOVED, STOPPED = 0, 15, 5
NO_DOMAIN, OPERATION_FAILED, SYSTEM_ERROR, OF_RPC = 42, 9, 38, 7
PAUSED_AND_AUTODESTROY = 3


class FakeRunningDomain:
    """A fake `virDomain` on a host."""

    def __init__(self, host: FakeHost, uuid: str) -> None:
        self.host = host
        self.uuid = uuid

    def UUIDString(self) -> str:  # noqa: N802
        return self.uuid

    def destroy(self) -> int:
        self.host.calls.append("destroy")
        if self.uuid not in self.host.living:
            raise FakeLibvirtError("Domain not found", code=NO_DOMAIN)
        if self.host.refuses_end:
            raise FakeLibvirtError("cannot kill it.", code=OPERATION_FAILED)
        if not self.host.is_stubborn:
            self.host.living.remove(self.uuid)
        return 0

    def openConsole(self, device: None, stream: object, flags: int) -> int:  # noqa: N802
        assert isinstance(stream, FakeStream)
        assert flags == 0
        return self.host.asked(f"console {device}")

    def resume(self) -> int:
        return self.host.asked("resume")

    def suspend(self) -> int:
        return self.host.asked("suspend")

    def info(self) -> list[int]:
        self.host.asked("info")
        return [1, 1536 << 10, 1536 << 10, 1, 2_500_000_000]

    def attachDevice(self, xml: str) -> int:  # noqa: N802
        return self.host.asked(f"attach {xml}")

    def detachDeviceAlias(self, alias: str, flags: int) -> int:  # noqa: N802
        assert flags == 0
        self.host.asked(f"detach {alias}")
        self.host.before_detach()
        if not self.host.is_stubborn:
            self.host.tell(DEVICE_REMOVED, self, alias)
        return 0


class FakeHost(FakeConnect):
    """A connection whose host has domains."""

    def __init__(self) -> None:
        super().__init__()
        self.living: list[str] = []
        self.is_stubborn = False
        self.refuses_end = False
        self.refusal: BaseException | None = None
        self.refuses_calls = False
        self.refused_call = ""
        self.uuid = ""
        self.before_start: Callable[[], object] = list
        self.before_detach: Callable[[], object] = list
        self.before_refusal: Callable[[], object] = list
        self.after_start: Callable[[], object] = list

    def asked(self, call: str) -> int:
        """Record a call for a domain, and refuse the call if a test has set this."""
        self.calls.append(call)
        if self.refuses_calls or call == self.refused_call:
            self.before_refusal()
            raise FakeLibvirtError("not now.", code=OPERATION_FAILED)
        return 0

    def createXML(self, xml: str, flags: int) -> FakeRunningDomain:  # noqa: N802
        self.calls.append(f"create {xml}")
        self.uuid = ET.fromstring(xml).findtext("uuid") or self.uuid  # noqa: S314 - the harness's
        assert flags == PAUSED_AND_AUTODESTROY
        self.before_start()
        if self.refusal is not None:
            raise self.refusal
        self.living.append(self.uuid)
        self.after_start()
        return FakeRunningDomain(self, self.uuid)

    @override
    def domainEventRegisterAny(
        self, domain: object, event: int, callback: Callable[..., None], opaque: object
    ) -> int:
        assert isinstance(domain, FakeRunningDomain)
        return super().domainEventRegisterAny(None, event, callback, opaque)

    def lookupByUUIDString(self, uuid: str) -> FakeRunningDomain:  # noqa: N802
        self.calls.append("look up")
        if uuid not in self.living:
            raise FakeLibvirtError("Domain not found", code=NO_DOMAIN)
        return FakeRunningDomain(self, uuid)

    def listAllDomains(self, flags: int) -> list[FakeRunningDomain]:  # noqa: N802
        assert flags == 0
        self.asked("list")
        return [FakeRunningDomain(self, uuid) for uuid in self.living]


class HostWithStreams(FakeHost):
    """A host whose domains have a console stream."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[FakeStream] = []

    def newStream(self, _flags: int) -> FakeStream:  # noqa: N802
        self.streams.append(FakeStream())
        return self.streams[-1]

    def hang_up(self) -> None:
        """End all watched streams, as the end of their domain does."""
        for one in self.streams:
            if one.is_watched:
                one.turn(HANGUP)


class Flags:
    """The part of the module `libvirt` that the start of a domain needs."""

    VIR_DOMAIN_START_PAUSED = 1
    VIR_DOMAIN_START_AUTODESTROY = 2
    libvirtError = FakeLibvirtError  # noqa: N815
