"""Which of a machine's files go to the remote host, under which names, and how often."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError, RequirementError
from harness.image.formats.qcow2 import MAGIC, backing_name
from harness.machine.description.spec import (
    Accelerator,
    DirectKernel,
    Firmware,
    Flash,
    MachineSpec,
    MemoryFile,
)
from harness.machine.libvirt.remote_files import digest_of, remote_files
from harness.machine.libvirt.storage import Volume
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.machine.libvirt.storage import Content, Storage

_HEAD = struct.Struct(">4sIQIIQ")


@dataclass
class FakeStorage:
    """Keeps what is brought to it, in memory."""

    shared: dict[str, bytes] = field(default_factory=dict)
    own: dict[str, bytes] = field(default_factory=dict)
    refuses: str = ""
    keeps: str = ""
    titles: set[str] = field(default_factory=set)
    deadlines: set[Deadline] = field(default_factory=set)

    def ensure(self, content: Content, *, deadline: Deadline) -> Volume:
        self._note(content, deadline)
        self.shared[content.key] = b"".join(content.chunks())
        return Volume(name=content.key, path=PurePosixPath("/remote") / content.key)

    def put(self, content: Content, *, deadline: Deadline) -> Volume:
        self._note(content, deadline)
        if self.refuses and self.refuses in content.title:
            raise RequirementError("The disk is full.")
        name = f"run-{len(self.own)}"
        self.own[name] = b"".join(content.chunks())
        return Volume(name=name, path=PurePosixPath("/remote") / name)

    def _note(self, content: Content, deadline: Deadline) -> None:
        self.titles.add(content.title)
        self.deadlines.add(deadline)

    def fetch(self, volume: Volume, into: Path, *, deadline: Deadline) -> None:
        self.deadlines.add(deadline)
        into.write_bytes(self.own[volume.name])

    def remove(self, volume: Volume) -> None:
        if volume.name == self.keeps:
            raise HarnessError(f"The volume '{volume.name}' is in use.")
        del self.own[volume.name]


def _qcow2(path: Path, name: str, data: bytes) -> Path:
    cluster = bytearray(512)
    _HEAD.pack_into(cluster, 0, MAGIC, 3, 128 if name else 0, len(name), 9, 1 << 30)
    cluster[128 : 128 + len(name)] = name.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(cluster) + data)
    return path


def _file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture
def spec(tmp_path: Path) -> MachineSpec:
    image = _qcow2(tmp_path / "image" / "disk.qcow2", "", b"image")
    baked = _qcow2(tmp_path / "baked" / "disk.qcow2", str(image), b"baked")
    return MachineSpec(
        name="node",
        accelerator=Accelerator.TCG,
        kernel=DirectKernel(
            version="6.1",
            vmlinuz=_file(tmp_path / "vmlinuz", b"kernel"),
            initrd=_file(tmp_path / "initrd.img", b"initrd"),
        ),
        disk=_qcow2(tmp_path / "run" / "overlay.qcow2", str(baked), b"overlay"),
        seed=_file(tmp_path / "seed.iso", b"seed"),
    )


@contextlib.contextmanager
def _remote(spec: MachineSpec, storage: FakeStorage) -> Iterator[MachineSpec]:
    with remote_files(spec, cast("Storage", storage), deadline=Deadline.after(20)) as remote:
        yield remote.spec


def test_each_upload_is_titled_and_has_the_deadline_of_all(spec: MachineSpec) -> None:
    storage, deadline = FakeStorage(), Deadline.after(20)

    with remote_files(spec, cast("Storage", storage), deadline=deadline) as remote:
        assert storage.deadlines == {deadline}
        later = Deadline.after(40)
        remote.fetch_disk(later)

    assert storage.deadlines == {deadline, later}
    assert storage.titles == {
        "the image 'image'",
        "the image 'baked'",
        "the kernel '6.1'",
        "the initrd of '6.1'",
        "the disk of machine 'node'",
        "the seed of machine 'node'",
    }


def test_disk_comes_back_under_its_own_name(spec: MachineSpec) -> None:
    storage = FakeStorage()
    below = backing_name(spec.disk)
    with remote_files(spec, cast("Storage", storage), deadline=Deadline.after(20)) as remote:
        (volume,) = (name for name in storage.own if name == remote.spec.disk.name)
        storage.own[volume] += b"written"

        remote.fetch_disk(Deadline.after(20))

    assert spec.disk.read_bytes()[512:] == b"overlaywritten"
    assert backing_name(spec.disk) == below


def test_every_file_of_the_machine_is_on_the_remote_host(spec: MachineSpec) -> None:
    storage = FakeStorage()

    with _remote(spec, storage) as remote:
        assert isinstance(remote.kernel, DirectKernel)
        paths = [remote.disk, remote.seed, remote.kernel.vmlinuz, remote.kernel.initrd]

        assert all(str(path).startswith("/remote/") for path in paths)
        assert replace(remote, disk=spec.disk, seed=spec.seed, kernel=spec.kernel) == spec


def test_disks_name_those_below_them_as_they_are_there(spec: MachineSpec, tmp_path: Path) -> None:
    storage = FakeStorage()

    with _remote(spec, storage) as remote:
        chain = []
        data: bytes | None = storage.own[remote.disk.name]
        while data is not None:
            below = backing_name(_file(tmp_path / "look", data))
            chain.append((data[512:], below))
            data = None if below is None else storage.shared[below]

    assert [content for content, _ in chain] == [b"overlay", b"baked", b"image"]
    assert chain[-1][1] is None


def test_image_made_again_has_another_disk_above_it(spec: MachineSpec, tmp_path: Path) -> None:
    storage = FakeStorage()
    with _remote(spec, storage):
        before = set(storage.shared)
    _qcow2(tmp_path / "image" / "disk.qcow2", "", b"IMAGE")

    with _remote(spec, storage):
        assert len(set(storage.shared) - before) == 2


def test_machines_share_all_but_what_they_write(spec: MachineSpec) -> None:
    storage = FakeStorage()

    with _remote(spec, storage), _remote(replace(spec, name="other"), storage):
        assert len(storage.shared) == 4
        assert len(storage.own) == 4

    assert storage.own == {}
    assert len(storage.shared) == 4


def test_firmwares_code_is_shared_and_its_variables_are_not(
    spec: MachineSpec, tmp_path: Path
) -> None:
    storage = FakeStorage()
    flash = Flash(
        code=_file(tmp_path / "CODE.fd", b"code"), variables=_file(tmp_path / "VARS.fd", b"vars")
    )

    with _remote(replace(spec, kernel=Firmware(flash=flash), seed=None), storage) as remote:
        assert isinstance(remote.kernel, Firmware)
        assert remote.kernel.flash is not None
        assert storage.shared[remote.kernel.flash.code.name] == b"code"
        assert storage.own[remote.kernel.flash.variables.name] == b"vars"
    assert storage.titles == {
        "the image 'image'",
        "the image 'baked'",
        "the firmware",
        "the disk of machine 'node'",
        "the firmware's variables of machine 'node'",
    }


def test_seabios_is_the_remote_hosts_own(spec: MachineSpec) -> None:
    with _remote(replace(spec, kernel=Firmware()), FakeStorage()) as remote:
        assert remote.kernel == Firmware()


def test_upload_that_fails_takes_back_what_came_before(spec: MachineSpec) -> None:
    storage = FakeStorage(refuses="the seed")

    with pytest.raises(RequirementError, match="full"), _remote(spec, storage):
        raise AssertionError("it began all the same")

    assert storage.own == {}


@pytest.mark.parametrize("kept", ["run-0", "run-1"])
def test_failed_removal_of_a_file_does_not_keep_the_others(spec: MachineSpec, kept: str) -> None:
    storage = FakeStorage(keeps=kept)

    with pytest.raises(HarnessError, match=f"'{kept}' is in use"), _remote(spec, storage):
        pass

    assert list(storage.own) == [kept]


@pytest.mark.parametrize(
    "change",
    [
        {"is_restored": True},
        {"memory_file": MemoryFile(path=Path("/ram"), is_private=False)},
    ],
)
def test_machine_that_shares_memory_with_this_host_is_refused(
    spec: MachineSpec, change: dict[str, bool]
) -> None:
    storage = FakeStorage()

    with (
        pytest.raises(RequirementError) as refused,
        _remote(replace(spec, **change), storage),  # type: ignore[arg-type]
    ):
        raise AssertionError("it began all the same")

    assert str(refused.value) == (
        "Machine 'node' can't start from a checkpoint on a remote host: its memory is a file of this "
        "host. Use --machine-start=cold there."
    )
    assert storage.shared == {}


def test_digest_of_a_published_file_is_its_manifests(tmp_path: Path) -> None:
    path = _file(tmp_path / "disk.qcow2", b"four")
    (tmp_path / "manifest.json").write_text(
        json.dumps({"files": {"disk.qcow2": {"size": 4, "sha256": "ab" * 32}}})
    )

    assert digest_of(path) == "ab" * 32


@pytest.mark.parametrize(
    "manifest",
    [
        "no JSON",
        "[]",
        '{"files": {}}',
        '{"files": {"disk.qcow2": {"size": 9, "sha256": "ab"}}}',
    ],
)
def test_file_that_no_manifest_describes_is_read(tmp_path: Path, manifest: str) -> None:
    path = _file(tmp_path / "disk.qcow2", b"four")
    (tmp_path / "manifest.json").write_text(manifest)

    assert digest_of(path) == hashlib.sha256(b"four").hexdigest()
