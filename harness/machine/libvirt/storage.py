"""Files on a far libvirt's host: each content uploaded once, and what a run leaves removed.

libvirt can neither rename nor lock a volume. So a volume of shared content counts only once a
second one, its mark, stands beside it, and an upload that broke off is never used. Its uploader's
name is part of a volume's, so no two of them ever write one file. On this host a lock lets one
process upload while the others wait; two hosts that come at once both upload, and either is right.
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
from harness.machine.libvirt.complaint import Code, LibvirtError
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from harness.machine.libvirt.connection import Connection

#: What libvirt puts into one message of a stream (VIR_NET_MESSAGE_LEGACY_PAYLOAD_MAX, less a head).
CHUNK = 262_120
_LOG = logging.getLogger(__name__)
_MARK = ".ready"
_PREFIX = "far"
_LIST_S = 60.0
_TENTH = 10
#: From so many bytes on, the end of an upload is told, and each tenth of it.
_WORTH_TELLING = 1 << 20
_LARGE = 64 << 20
_WITH_BUILD = 1  # VIR_STORAGE_POOL_CREATE_WITH_BUILD
_PHYSICAL = 1  # VIR_STORAGE_VOL_GET_PHYSICAL
_OWNER = re.compile(
    rf"(?P<kind>run|[0-9a-f]{{32}})\.(?P<host>[0-9a-f]{{8}})-(?P<session>{_PREFIX}-[0-9a-f]{{8}})\b"
)


@dataclass(frozen=True, kw_only=True)
class Content:
    """What is to be in a volume: a file, whose first bytes may be others; `title` is for people."""

    title: str
    path: Path
    key: str
    start: bytes = b""

    def chunks(self) -> Iterator[bytes]:
        """Read it in pieces that a stream takes."""
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
    """A volume on the far host; `path` is where it lies there."""

    name: str
    path: PurePosixPath


class Storage:
    """A folder of the far host as a pool of libvirt's; `open_storage` makes one.

    What it holds of shared content stays, for the runs to come. What is a run's own goes with it.
    """

    def __init__(
        self,
        connection: Connection,
        folder: PurePosixPath,
        *,
        owner: str,
        locks: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._folder = folder
        self._owner = owner
        self._locks = locks
        self._tell = tell
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
            self._create(f"{name}{_MARK}", 1, mode="0644")
            return volume

    def put(self, content: Content, *, deadline: Deadline) -> Volume:
        """Upload what belongs to one machine of this run; `remove` it after the machine."""
        return self._upload(f"run.{self._owner}-{content.key}", content, deadline, mode="0600")

    def fetch(self, volume: Volume, into: Path, *, deadline: Deadline) -> None:
        """Bring a volume's content here, into a file that is there whole or not at all."""
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
        """Remove a volume; one that is gone already is none to complain of."""
        self._remove(volume.name)

    def names(self) -> list[str]:
        """Return the names of all volumes of the pool, as its folder has them at this moment.

        What libvirt remembers may lag behind: it looks at the folder anew, in a thread of its own,
        after each upload.
        """

        def look() -> Observation[list[str]]:
            pool = self._pool()
            try:
                self._connection.run("the look at the storage", lambda: pool.refresh(0))
                return Observation(
                    sorted(self._connection.run("the list of volumes", pool.listVolumes)), "listed"
                )
            except LibvirtError as error:
                # While a volume is being made, or by somebody else the pool itself.
                if error.code not in {Code.INTERNAL_ERROR, Code.OPERATION_INVALID}:
                    raise
                return Observation(None, str(error))

        try:
            return wait_for(
                f"the list of volumes in '{self._folder}'", look, Deadline.after(_LIST_S)
            )
        except WaitTimeoutError as error:
            raise HarnessError(f"{error} See what else uses that pool.") from error

    def own_names(self) -> list[str]:
        """Return the names of volumes that this run alone has made and not removed."""
        return [name for name in self.names() if name.startswith(f"run.{self._owner}-")]

    def sweep(self, host: str, living: Callable[[], Collection[str]]) -> list[str]:
        """Remove what runs of this host left that were killed: all that is not of the `living`.

        Other hosts' runs are theirs to judge.
        """
        names = self.names()
        # Asked for after the names: who has a volume in that list was alive before it.
        alive = living()
        swept = []
        for name in names:
            owner = _OWNER.match(name)
            if owner is None or owner["host"] != host or owner["session"] in alive:
                continue
            whole = name.removesuffix(_MARK)
            is_shared = owner["kind"] != "run" and f"{whole}{_MARK}" in names
            if not is_shared and self._try_remove(name):
                swept.append(name)
        return swept

    def _find(self, content: Content) -> Volume | None:
        """Return the volume that somebody has marked as complete, and that is as long as it was."""
        names = self.names()
        size = content.path.stat().st_size
        for name in names:
            if name.startswith(f"{content.key}.") and f"{name}{_MARK}" in names:
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
            f"the look at volume '{name}'", lambda: pool.storageVolLookupByName(name)
        )

    def _size_of(self, name: str, raw: Any) -> int:
        return self._connection.run(
            f"the look at volume '{name}'", lambda: int(raw.infoFlags(_PHYSICAL)[2])
        )

    def _pool(self) -> Any:
        """Return libvirt's pool, which a restart of libvirtd forgets."""
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
            # Another worker may have been first.
            return run(what, lambda: raw.storagePoolLookupByName(self.pool_name))

    def _create(self, name: str, size: int, *, mode: str) -> Any:
        pool = self._pool()
        xml = render_volume(name, size, mode=mode)
        return self._connection.run(f"the making of volume '{name}'", lambda: pool.createXML(xml))

    def _upload(self, name: str, content: Content, deadline: Deadline, *, mode: str) -> Volume:
        """Make a volume and fill it; where that fails there is none."""
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
                f"{content.title} has {size} bytes here, but {there} came to '{name}' at "
                f"'{self._connection.uri}'; see whether its file system is full."
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
        sent = told = 0
        for chunk in content.chunks():
            rest = chunk
            while rest:
                self._require_time(what, deadline, sent, size)
                sent += (taken := self._connection.run(what, _sending(stream, rest)))
                rest = rest[taken:]
            tenths = sent * _TENTH // size
            if tenths > told and (size >= _LARGE or sent == size >= _WORTH_TELLING):
                told = tenths
                self._tell(
                    f"uploaded {tenths * 100 // _TENTH} % of {content.title} ({size >> 20} MiB) "
                    f"to '{self._connection.uri}'"
                )

    def _require_time(self, what: str, deadline: Deadline, done: int, size: int | None) -> None:
        if deadline.has_passed():
            whole = "" if size is None else f" of {size >> 20}"
            raise HarnessError(
                f"{what[0].upper()}{what[1:]} was not done in time at '{self._connection.uri}'; "
                f"{done >> 20}{whole} MiB came over. It needs more time, or a faster way there."
            )

    def _try_remove(self, name: str) -> bool:
        """Remove what nobody needs; where libvirtd still has it in use, the next run does."""
        try:
            self._remove(name)
        except LibvirtError as error:
            _LOG.info("The volume '%s' stays for now: %s", name, error)
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
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Storage]:
    """Use `folder` of the connection's host as storage for one run.

    `state` is a folder of this host, for locks and for who is alive. At the end no volume of the
    run itself is left, which libvirt's list shows; what killed runs left is removed at the start.
    """
    make_private_folder(state)
    host = _identity(state)
    # Apart from the locks: a sweep removes each folder that nobody holds a lease of.
    runs, locks = (make_private_folder(state / name) for name in ("runs", "locks"))
    sweep(runs)
    with leased_folder(runs, prefix=_PREFIX) as lease:
        storage = Storage(connection, folder, owner=f"{host}-{lease.name}", locks=locks, tell=tell)
        storage.sweep(host, lambda: {path.name for path in runs.glob(f"{_PREFIX}-*")})
        try:
            yield storage
        finally:
            _clear(storage, connection)


def _clear(storage: Storage, connection: Connection) -> None:
    if connection.is_lost:
        # The next run of this host sweeps.
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
    """Render the pool: a folder that libvirt makes, and into which QEMU's user may reach."""
    pool = ET.Element("pool", type="dir")
    ET.SubElement(pool, "name").text = name
    target = ET.SubElement(pool, "target")
    ET.SubElement(target, "path").text = str(folder)
    permissions = ET.SubElement(target, "permissions")
    ET.SubElement(permissions, "mode").text = "0711"
    return ET.tostring(pool, encoding="unicode")


def render_volume(name: str, size: int, *, mode: str) -> str:
    """Render a volume of `size` bytes, of which none are written before the upload."""
    volume = ET.Element("volume")
    ET.SubElement(volume, "name").text = name
    ET.SubElement(volume, "capacity", unit="bytes").text = str(size)
    ET.SubElement(volume, "allocation", unit="bytes").text = "0"
    target = ET.SubElement(volume, "target")
    # Whatever it will hold: to libvirt, an upload is bytes.
    ET.SubElement(target, "format", type="raw")
    permissions = ET.SubElement(target, "permissions")
    ET.SubElement(permissions, "mode").text = mode
    return ET.tostring(volume, encoding="unicode")


def _identity(state: Path) -> str:
    """Return a name that is this host's, as far as it shares `state` with nobody."""
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
