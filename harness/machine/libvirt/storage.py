"""Files on the host of a remote libvirt: shared content uploaded once, a run's own files removed.

libvirt can neither rename nor lock a volume. So a volume of shared content is used only if a second
volume, its marker, exists; an interrupted upload has none. A volume's name has its uploader's name in
it, so that no two uploaders write the same file. On this host a lock lets one process upload while the
others wait; two hosts that start at once both upload, and either result is valid. It is one module
above 400 lines because every method works on the names and markers of the same pool.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import secrets
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from harness.errors import HarnessError
from harness.lease import hold, leased_folder, make_private_folder, sweep
from harness.machine.libvirt.errors import Code, LibvirtError
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from harness.machine.libvirt.connection import Connection

#: What libvirt puts into one message of a stream (VIR_NET_MESSAGE_LEGACY_PAYLOAD_MAX, less a head).
CHUNK = 262_120
_LOG = logging.getLogger(__name__)
_MARKER = ".ready"
#: Unchanged, so that volumes of earlier versions are swept too.
_PREFIX = "far"
_LIST_S = 60.0
_TENTH = 10
#: From this size on, the end of an upload is reported, and from `_LARGE` on each tenth of it.
_REPORTED_BYTES = 1 << 20
_LARGE = 64 << 20
_WITH_BUILD = 1  # VIR_STORAGE_POOL_CREATE_WITH_BUILD
_PHYSICAL = 1  # VIR_STORAGE_VOL_GET_PHYSICAL
_OWNER = re.compile(
    rf"(?P<kind>run|[0-9a-f]{{32}})\.(?P<host>[0-9a-f]{{8}})-(?P<session>{_PREFIX}-[0-9a-f]{{8}})\b"
)


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a volume: a file, whose first bytes `start` replaces; `title` names it in messages."""

    title: str
    path: Path
    key: str
    start: bytes = b""

    def chunks(self) -> Iterator[bytes]:
        """Read it in chunks of the size of a stream's message."""
        with self.path.open("rb") as source:
            start = self.start
            source.seek(len(start))
            while start:
                yield start[:CHUNK]
                start = start[CHUNK:]
            while chunk := source.read(CHUNK):
                yield chunk


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A volume on the remote host; `path` is its path there."""

    name: str
    path: PurePosixPath


class Storage:
    """A folder of the remote host as a libvirt storage pool; `open_storage` creates one.

    Shared content stays for later runs. A run's own volumes are removed at its end.
    """

    def __init__(
        self,
        connection: Connection,
        folder: PurePosixPath,
        *,
        owner: str,
        locks: Path,
        report: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._folder = folder
        self._owner = owner
        self._locks = locks
        self._report = report
        digest = hashlib.sha256(str(folder).encode()).hexdigest()
        self.pool_name = f"gpu-node-harness-{digest[:8]}"

    def ensure(self, content: Content, *, deadline: Deadline) -> Volume:
        """Return the volume with this content, uploading it where no run has done so yet.

        Raises HarnessError where another process of this host uploads it beyond the deadline.
        """
        ready = self._find(content)
        if ready is not None:
            return ready
        lock = self._locks / f"{content.key}.lock"
        what = f"the upload of {content.title} to '{self._connection.uri}'"
        with hold(lock, timeout_s=deadline.remaining_s(), what=what):
            ready = self._find(content)
            if ready is not None:
                return ready
            name = f"{content.key}.{self._owner}-{secrets.token_hex(2)}"
            volume = self._upload(name, content, deadline, mode="0644")
            self._create(f"{name}{_MARKER}", 1, mode="0644")
            return volume

    def put(self, content: Content, *, deadline: Deadline) -> Volume:
        """Upload a file of one machine of this run; `remove` it after the machine."""
        return self._upload(f"run.{self._owner}-{content.key}", content, deadline, mode="0600")

    def fetch(self, volume: Volume, into: Path, *, deadline: Deadline) -> None:
        """Download a volume into a file, which is complete or absent."""
        run = self._connection.run
        what = f"the download of volume '{volume.name}'"
        raw = self._look_up(volume.name)
        stream = run(what, lambda: self._connection.raw.newStream(0))
        run(what, lambda: raw.download(stream, 0, 0, 0))
        beside = into.with_name(f".{into.name}.{secrets.token_hex(4)}")
        try:
            with beside.open("xb") as file:
                while chunk := run(what, lambda: bytes(stream.recv(CHUNK))):
                    self._require_time(what, deadline, file.tell(), None)
                    file.write(chunk)
            run(what, stream.finish)
            beside.rename(into)
        except BaseException:
            beside.unlink(missing_ok=True)
            with contextlib.suppress(HarnessError):
                run(f"the end of {what}", stream.abort)
            raise

    def remove(self, volume: Volume) -> None:
        """Remove a volume, unless it has been removed already."""
        self._remove(volume.name)

    def names(self) -> list[str]:
        """Return the names of all volumes that are in the pool's folder now.

        libvirt's own list may be out of date: it rereads the folder after each upload, in a thread
        of its own.
        """

        def poll() -> Observation[list[str]]:
            pool = self._pool()
            try:
                self._connection.run("the refresh of the storage", lambda: pool.refresh(0))
                return Observation(
                    sorted(self._connection.run("the list of volumes", pool.listVolumes)), "listed"
                )
            except LibvirtError as error:
                # While another process creates a volume or the pool.
                if error.code not in {Code.INTERNAL_ERROR, Code.OPERATION_INVALID}:
                    raise
                return Observation(None, str(error).rstrip("."))

        try:
            return wait_for(
                f"the list of volumes in '{self._folder}'", poll, Deadline.after(_LIST_S)
            )
        except WaitTimeoutError as error:
            raise HarnessError(f"{error} Check what else uses that pool.") from error

    def own_names(self) -> list[str]:
        """Return the names of the volumes that this run has created and not removed."""
        return [name for name in self.names() if name.startswith(f"run.{self._owner}-")]

    def sweep(self, host: str, living: Callable[[], Collection[str]]) -> list[str]:
        """Remove the volumes that killed runs of this host left: all except those of the `living`.

        Volumes of other hosts' runs are not touched.
        """
        names = self.names()
        # Read after the names: a run that has a volume in that list was alive before.
        alive = living()
        swept = []
        for name in names:
            owner = _OWNER.match(name)
            if owner is None or owner["host"] != host or owner["session"] in alive:
                continue
            whole = name.removesuffix(_MARKER)
            is_shared = owner["kind"] != "run" and f"{whole}{_MARKER}" in names
            if not is_shared and self._try_remove(name):
                swept.append(name)
        return swept

    def _find(self, content: Content) -> Volume | None:
        """Return the volume that is marked as complete and has the right size."""
        names = self.names()
        size = content.path.stat().st_size
        for name in names:
            if name.startswith(f"{content.key}.") and f"{name}{_MARKER}" in names:
                there = self._size_of(name, self._look_up(name))
                if there == size:
                    return Volume(name=name, path=self._folder / name)
                _LOG.warning(
                    "The volume '%s' at '%s' has %s bytes, but %s were uploaded; it is not used",
                    *(name, self._connection.uri, there, size),
                )
        return None

    def _look_up(self, name: str) -> Any:
        pool = self._pool()
        return self._connection.run(
            f"the lookup of volume '{name}'", lambda: pool.storageVolLookupByName(name)
        )

    def _size_of(self, name: str, raw: Any) -> int:
        return self._connection.run(
            f"the lookup of volume '{name}'", lambda: int(raw.infoFlags(_PHYSICAL)[2])
        )

    def _pool(self) -> Any:
        """Return libvirt's pool; a restart of libvirtd loses it, so it may have to be created again."""
        run, raw = self._connection.run, self._connection.raw
        what = f"the storage in '{self._folder}'"
        try:
            return run(what, lambda: raw.storagePoolLookupByName(self.pool_name))
        except LibvirtError as error:
            if error.code != Code.NO_STORAGE_POOL:
                raise
        xml = render_pool(self.pool_name, self._folder)
        try:
            return run(what, lambda: raw.storagePoolCreateXML(xml, _WITH_BUILD))
        except LibvirtError:
            # Another worker may have created it first.
            return run(what, lambda: raw.storagePoolLookupByName(self.pool_name))

    def _create(self, name: str, size: int, *, mode: str) -> Any:
        pool = self._pool()
        xml = render_volume(name, size, mode=mode)
        return self._connection.run(
            f"the creation of volume '{name}'", lambda: pool.createXML(xml)
        )

    def _upload(self, name: str, content: Content, deadline: Deadline, *, mode: str) -> Volume:
        """Create a volume and fill it; remove it again where that fails."""
        size = content.path.stat().st_size
        raw = self._create(name, size, mode=mode)
        try:
            self._send(raw, content, size, deadline)
            self._require_size(name, raw, content, size)
        except BaseException:
            with contextlib.suppress(HarnessError):
                self._remove(name)
            raise
        return Volume(name=name, path=self._folder / name)

    def _require_size(self, name: str, raw: Any, content: Content, size: int) -> None:
        there = self._size_of(name, raw)
        if there != size:
            raise HarnessError(
                f"{content.title} has {size} bytes here, but '{name}' at '{self._connection.uri}' has "
                f"{there}; check whether its file system is full."
            )

    def _send(self, raw: Any, content: Content, size: int, deadline: Deadline) -> None:
        run = self._connection.run
        what = f"the upload of {content.title}"
        stream = run(what, lambda: self._connection.raw.newStream(0))
        run(what, lambda: raw.upload(stream, 0, size, 0))
        try:
            self._send_chunks(stream, what, content, size, deadline)
            run(what, stream.finish)
        except BaseException:
            with contextlib.suppress(HarnessError):
                run(f"the end of {what}", stream.abort)
            raise

    def _send_chunks(
        self, stream: Any, what: str, content: Content, size: int, deadline: Deadline
    ) -> None:
        sent = reported = 0
        for chunk in content.chunks():
            rest = chunk
            while rest:
                self._require_time(what, deadline, sent, size)
                sent += (taken := self._connection.run(what, _sending(stream, rest)))
                rest = rest[taken:]
            tenths = sent * _TENTH // size
            if tenths > reported and (size >= _LARGE or sent == size >= _REPORTED_BYTES):
                reported = tenths
                self._report(
                    f"uploaded {tenths * 100 // _TENTH} % of {content.title} ({size >> 20} MiB) "
                    f"to '{self._connection.uri}'"
                )

    def _require_time(self, what: str, deadline: Deadline, done: int, size: int | None) -> None:
        if deadline.has_passed():
            whole = "" if size is None else f" of {size >> 20}"
            raise HarnessError(
                f"{what[0].upper()}{what[1:]} was not complete in time at '{self._connection.uri}'; "
                f"{done >> 20}{whole} MiB were transferred. Allow more time, or use a faster network."
            )

    def _try_remove(self, name: str) -> bool:
        """Remove an unused volume; one that libvirtd still uses is left to the next run."""
        try:
            self._remove(name)
        except LibvirtError as error:
            _LOG.info("The volume '%s' was not removed: %s", name, error)
            return False
        return True

    def _remove(self, name: str) -> None:
        try:
            volume = self._look_up(name)
            self._connection.run(f"the removal of volume '{name}'", lambda: volume.delete(0))
        except LibvirtError as error:
            if error.code != Code.NO_STORAGE_VOL:
                raise


@contextlib.contextmanager
def open_storage(
    connection: Connection,
    folder: PurePosixPath,
    *,
    state: Path,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[Storage]:
    """Use `folder` of the connection's host as storage for one run.

    `state` is a folder of this host for locks and leases. Volumes of killed runs are removed at the
    start, and those of this run at the end, which libvirt's list verifies.
    """
    make_private_folder(state)
    host = _identity(state)
    # Separate from the locks: a sweep removes every folder without a live lease.
    runs, locks = (make_private_folder(state / name) for name in ("runs", "locks"))
    sweep(runs)
    with leased_folder(runs, prefix=_PREFIX) as lease:
        storage = Storage(
            connection, folder, owner=f"{host}-{lease.name}", locks=locks, report=report
        )
        storage.sweep(host, lambda: {path.name for path in runs.glob(f"{_PREFIX}-*")})
        try:
            yield storage
        finally:
            _clear(storage, connection)


def _clear(storage: Storage, connection: Connection) -> None:
    if connection.is_lost:
        # The next run of this host removes them.
        return
    with contextlib.ExitStack() as removals:
        for name in storage.own_names():
            removals.callback(storage.remove, Volume(name=name, path=PurePosixPath()))
    left = storage.own_names()
    if left:
        raise HarnessError(
            f"The volumes {left} were removed, but '{connection.uri}' still lists them in pool "
            f"'{storage.pool_name}'; remove them by `virsh vol-delete`."
        )


def render_pool(name: str, folder: PurePosixPath) -> str:
    """Render the pool: a folder that libvirt creates and QEMU's user may enter."""
    pool = ET.Element("pool", type="dir")
    ET.SubElement(pool, "name").text = name
    target = ET.SubElement(pool, "target")
    ET.SubElement(target, "path").text = str(folder)
    permissions = ET.SubElement(target, "permissions")
    ET.SubElement(permissions, "mode").text = "0711"
    return ET.tostring(pool, encoding="unicode")


def render_volume(name: str, size: int, *, mode: str) -> str:
    """Render a volume of `size` bytes, unallocated before the upload."""
    volume = ET.Element("volume")
    ET.SubElement(volume, "name").text = name
    ET.SubElement(volume, "capacity", unit="bytes").text = str(size)
    ET.SubElement(volume, "allocation", unit="bytes").text = "0"
    target = ET.SubElement(volume, "target")
    # Whatever its content: libvirt uploads bytes.
    ET.SubElement(target, "format", type="raw")
    permissions = ET.SubElement(target, "permissions")
    ET.SubElement(permissions, "mode").text = mode
    return ET.tostring(volume, encoding="unicode")


def _identity(state: Path) -> str:
    """Return the name of this host, which every process with this `state` shares."""
    path = state / "host"
    mine = secrets.token_hex(4)
    with contextlib.suppress(FileExistsError):
        beside = path.with_name(f".host.{mine}")
        beside.write_text(mine)
        try:
            path.hardlink_to(beside)
        finally:
            beside.unlink()
    return path.read_text().strip()


def _sending(stream: Any, data: bytes) -> Callable[[], int]:
    return lambda: int(stream.send(data))
