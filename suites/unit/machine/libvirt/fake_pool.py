"""A libvirt storage pool in memory, and a connection to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree import ElementTree as ET

from harness.machine.libvirt.errors import Code, LibvirtError
from harness.machine.libvirt.storage import Content

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
URI = "qemu+ssh://far/system"


def a_content(folder: Path, data: bytes, *, start: bytes = b"", name: str = "disk") -> Content:
    path = folder / name
    path.write_bytes(data)
    key = hashlib.sha256(data).hexdigest()[:32]
    return Content(title=f"the file '{name}'", path=path, key=key, start=start)


@dataclass
class FakeStream:
    """A stream that takes or gives at most `part` bytes at once."""

    part: int = 1 << 20
    volume: FakeVolume | None = None
    at: int = 0
    ending: str | None = None
    fails_at: int | None = None

    def send(self, data: bytes) -> int:
        assert self.volume is not None
        if self.fails_at is not None and self.at >= self.fails_at:
            raise LibvirtError("The connection broke.", code=Code.RPC)
        taken = data[: self.part]
        self.volume.content[self.at : self.at + len(taken)] = taken
        self.at += len(taken)
        return len(taken)

    def recv(self, size: int) -> bytes:
        assert self.volume is not None
        if self.fails_at is not None and self.at >= self.fails_at:
            raise LibvirtError("The connection broke.", code=Code.RPC)
        given = bytes(self.volume.content[self.at : self.at + min(size, self.part)])
        self.at += len(given)
        return given

    def finish(self) -> None:
        self.ending = "finished"

    def abort(self) -> None:
        self.ending = "aborted"


@dataclass
class FakeVolume:
    """A volume; `lost` bytes of an upload never reach the disk."""

    pool: FakePool
    name: str
    xml: str
    content: bytearray = field(default_factory=bytearray)

    def upload(self, stream: FakeStream, offset: int, length: int, flags: int) -> None:
        assert (offset, flags) == (0, 0)
        self.pool.uploads.append((self.name, length))
        stream.volume = self

    def download(self, stream: FakeStream, offset: int, length: int, flags: int) -> None:
        assert (offset, length, flags) == (0, 0, 0)
        stream.volume = self

    def infoFlags(self, flags: int) -> list[int]:  # noqa: N802 - libvirt's name
        assert flags == 1
        return [0, 1 << 40, len(self.content) - self.pool.lost_bytes]

    def delete(self, flags: int) -> None:
        assert flags == 0
        if self.name in self.pool.in_use:
            raise LibvirtError(f"'{self.name}' is in use.", code=Code.OPERATION_INVALID)
        del self.pool.volumes[self.name]


@dataclass
class FakePool:
    """A pool of volumes; its list is up to date once it was refreshed."""

    volumes: dict[str, FakeVolume] = field(default_factory=dict)
    uploads: list[tuple[str, int]] = field(default_factory=list)
    in_use: set[str] = field(default_factory=set)
    refusals: list[int] = field(default_factory=list)
    lost_bytes: int = 0
    _listed: list[str] = field(default_factory=list)

    def refresh(self, flags: int) -> None:
        assert flags == 0
        if self.refusals:
            raise LibvirtError("It is being changed.", code=self.refusals.pop(0))
        self._listed = list(self.volumes)

    def listVolumes(self) -> list[str]:  # noqa: N802
        return self._listed

    def storageVolLookupByName(self, name: str) -> FakeVolume:  # noqa: N802
        if name not in self.volumes:
            raise LibvirtError(f"There is no '{name}'.", code=Code.NO_STORAGE_VOL)
        return self.volumes[name]

    def createXML(self, xml: str) -> FakeVolume:  # noqa: N802
        volume = ET.fromstring(xml)  # noqa: S314 - the harness's own
        name, size = volume.findtext("name") or "", int(volume.findtext("capacity") or 0)
        assert name not in self.volumes
        self.volumes[name] = FakeVolume(self, name, xml, bytearray(size))
        return self.volumes[name]

    def add(self, name: str, content: bytes = b"x") -> None:
        """Add a volume that somebody else made."""
        self.volumes[name] = FakeVolume(self, name, "", bytearray(content))


@dataclass
class FakeStorageHost:
    """The host of a pool, and a connection to it, which notes what its calls are about."""

    pool: FakePool = field(default_factory=FakePool)
    has_pool: bool = True
    made_by_another: bool = False
    created: list[tuple[str, int]] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)
    stream_part: int = 1 << 20
    fails_at: int | None = None
    noted: list[str] = field(default_factory=list)
    is_lost: bool = False
    uri: str = URI
    asked_pools: set[str] = field(default_factory=set)

    @property
    def raw(self) -> FakeStorageHost:
        return self

    def run(self, what: str, call: Callable[[], T]) -> T:
        self.noted.append(what)
        return call()

    def newStream(self, flags: int) -> FakeStream:  # noqa: N802
        assert flags == 0
        self.streams.append(FakeStream(part=self.stream_part, fails_at=self.fails_at))
        return self.streams[-1]

    def storagePoolLookupByName(self, name: str) -> Any:  # noqa: N802
        self.asked_pools.add(name)
        if not self.has_pool:
            raise LibvirtError(f"There is no pool '{name}'.", code=Code.NO_STORAGE_POOL)
        return self.pool

    def storagePoolCreateXML(self, xml: str, flags: int) -> Any:  # noqa: N802
        self.created.append((xml, flags))
        self.has_pool = True
        if self.made_by_another:
            raise LibvirtError("It exists.", code=Code.OPERATION_FAILED)
        return self.pool
