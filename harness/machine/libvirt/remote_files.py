"""Uploads a machine's files to the host of its libvirt, and translates their paths."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.artifact_cache import MANIFEST
from harness.artifact_cache.manifest import fact_of
from harness.errors import RequirementError
from harness.image.formats.qcow2 import backing_name, with_backing_name
from harness.machine.description.spec import DirectKernel
from harness.machine.libvirt.storage import Content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.machine.description.spec import Firmware, MachineSpec
    from harness.machine.libvirt.storage import Storage, Volume
    from harness.provisioning.wait import Deadline

_KEY_DIGITS = 32


@dataclass(frozen=True, kw_only=True)
class RemoteFiles:
    """A machine with the paths of the remote host, and the way to download its disk."""

    spec: MachineSpec
    _local: Path
    _disk: Volume
    _storage: Storage

    def fetch_disk(self, deadline: Deadline) -> None:
        """Replace the local disk by the machine's."""
        below = backing_name(self._local)
        self._storage.fetch(self._disk, self._local, deadline=deadline)
        if below is not None:
            start = with_backing_name(self._local, below)
            with self._local.open("r+b") as file:
                file.write(start)


@contextlib.contextmanager
def remote_files(
    spec: MachineSpec, storage: Storage, *, deadline: Deadline
) -> Iterator[RemoteFiles]:
    """Upload the files of a machine to the remote host; those of its own are removed afterwards.

    Images, kernels and initrds are uploaded once for all machines of all runs; overlay, seed and
    firmware variables belong to the machine.

    Raises RequirementError for a machine that shares memory with this host.
    """
    if spec.memory_file is not None or spec.is_restored:
        raise RequirementError(
            f"Machine '{spec.name}' can't start from a checkpoint on a remote host: its memory is a "
            "file of this host. Use --machine-start=cold there."
        )
    removals = contextlib.ExitStack()

    def put(path: Path, title: str, start: bytes = b"") -> Volume:
        key = f"{spec.name}-{secrets.token_hex(3)}"
        content = Content(
            title=f"{title} of machine '{spec.name}'", path=path, key=key, start=start
        )
        volume = storage.put(content, deadline=deadline)
        removals.callback(storage.remove, volume)
        return volume

    def share(path: Path, title: str) -> Path:
        return Path(_share_file(path, title, storage, deadline).path)

    def put_file(path: Path, title: str) -> Path:
        return Path(put(path, title).path)

    # Each is removed, also where removing another one fails.
    with removals:
        below = backing_name(spec.disk)
        start = b""
        if below is not None:
            image = _share_disk(_beside(spec.disk, below), storage, deadline)
            start = with_backing_name(spec.disk, image.name)
        disk = put(spec.disk, "the disk", start)
        remote = dataclasses.replace(
            spec,
            disk=Path(disk.path),
            seed=None if spec.seed is None else put_file(spec.seed, "the seed"),
            kernel=_remote_kernel(spec.kernel, share, put_file),
        )
        yield RemoteFiles(spec=remote, _local=spec.disk, _disk=disk, _storage=storage)


def _remote_kernel(
    kernel: DirectKernel | Firmware,
    share: Callable[[Path, str], Path],
    put: Callable[[Path, str], Path],
) -> DirectKernel | Firmware:
    if isinstance(kernel, DirectKernel):
        return dataclasses.replace(
            kernel,
            vmlinuz=share(kernel.vmlinuz, f"the kernel '{kernel.version}'"),
            initrd=share(kernel.initrd, f"the initrd of '{kernel.version}'"),
        )
    if kernel.flash is None:
        return kernel
    flash = dataclasses.replace(
        kernel.flash,
        code=share(kernel.flash.code, "the firmware"),
        variables=put(kernel.flash.variables, "the firmware's variables"),
    )
    return dataclasses.replace(kernel, flash=flash)


def _share_file(path: Path, title: str, storage: Storage, deadline: Deadline) -> Volume:
    key = digest_of(path)[:_KEY_DIGITS]
    return storage.ensure(Content(title=title, path=path, key=key), deadline=deadline)


def _share_disk(path: Path, storage: Storage, deadline: Deadline) -> Volume:
    """Upload a read-only disk and its backing files, with the backing names that they have there.

    The names are relative: QEMU resolves them from the folder of the disk that names them.
    """
    title = f"the image '{path.parent.name}'"
    below = backing_name(path)
    if below is None:
        return _share_file(path, title, storage, deadline)
    parent = _share_disk(_beside(path, below), storage, deadline)
    # On another parent it is another disk.
    key = hashlib.sha256(f"{digest_of(path)} {parent.name}".encode()).hexdigest()[:_KEY_DIGITS]
    start = with_backing_name(path, parent.name)
    return storage.ensure(Content(title=title, path=path, key=key, start=start), deadline=deadline)


def _beside(disk: Path, name: str) -> Path:
    return disk.parent / name


def digest_of(path: Path) -> str:
    """Return a file's SHA-256, from its manifest where it was published, else computed."""
    stat = path.stat()
    return _digest_of(path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@functools.lru_cache(maxsize=256)
def _digest_of(path: Path, _inode: int, size: int, _modified: int, _changed: int) -> str:
    for folder in path.parents[:3]:
        try:
            files = json.loads((folder / MANIFEST).read_text())["files"]
            fact = files[path.relative_to(folder).as_posix()]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if fact["size"] == size:
            return str(fact["sha256"])
    return fact_of(path).sha256
