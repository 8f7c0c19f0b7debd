"""Storage of a far libvirt, stood in for by a daemon that does not see this host's files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.libvirt import storage as storages
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.daemon import private_daemon
from harness.machine.libvirt.layout import DaemonKind
from harness.machine.libvirt.storage import CHUNK, Content, Storage, open_storage
from harness.plugin.select import requirements
from harness.provisioning.command import PIPE, LocalRunner, end, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.host.libvirt.conftest import PATIENCE_S, short_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.machine.libvirt.daemon import PrivateDaemon
    from harness.machine.libvirt.storage import Volume
    from harness.settings import Settings

REPOSITORY = Path(__file__).parents[3]


class FarHost:
    """A far host: how to reach it, where its files lie, and what is only near."""

    def __init__(self, daemon: PrivateDaemon, near: Path, folder: Path) -> None:
        self.uri = daemon.far_uri
        self.transport = daemon.transport
        self.near = near
        self.folder = folder

    @contextlib.contextmanager
    def storage(self, told: list[str] | None = None) -> Iterator[Storage]:
        tell = (lambda _: None) if told is None else told.append
        with (
            Connection.open(self.uri, deadline=_deadline()) as connection,
            open_storage(
                connection,
                PurePosixPath(self.folder),
                state=self.near / "state",
                tell=tell,
            ) as storage,
        ):
            yield storage

    def content(self, data: bytes, name: str = "disk") -> Content:
        path = self.near / name
        path.write_bytes(data)
        key = hashlib.sha256(data).hexdigest()[:32]
        return Content(title=f"the file '{name}'", path=path, key=key)


def _deadline() -> Deadline:
    return Deadline.after(PATIENCE_S)


@pytest.fixture(scope="module", params=list(DaemonKind), ids=lambda kind: kind.value)
def far(
    request: pytest.FixtureRequest, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FarHost]:
    folder = tmp_path_factory.mktemp("f")
    near = folder / "near"
    near.mkdir()
    with contextlib.ExitStack() as stack:
        with requirements(settings):
            load_libvirt()
            daemon = stack.enter_context(
                private_daemon(
                    stack.enter_context(short_folder()),
                    kind=request.param,
                    deadline=_deadline(),
                    hidden=[near],
                )
            )
        yield FarHost(daemon, near, folder / "far")


DATA = bytes(range(256)) * 5000


def test_content_is_uploaded_whole_with_progress(far: FarHost) -> None:
    told: list[str] = []
    with far.storage(told) as storage:
        volume = storage.ensure(far.content(DATA), deadline=_deadline())

        assert Path(volume.path).read_bytes() == DATA
    assert len(DATA) > 4 * CHUNK
    assert told == [f"uploaded 100 % of the file 'disk' (1 MiB) to '{far.uri}'"]


def test_large_upload_is_told_tenth_by_tenth(
    far: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "_LARGE", len(DATA))
    told: list[str] = []
    with far.storage(told) as storage:
        storage.ensure(far.content(DATA + b"large"), deadline=_deadline())

    assert told[0].startswith("uploaded 20 % of the file 'disk'")
    assert told[-1].startswith("uploaded 100 % of")


def test_content_is_uploaded_once_for_all_runs(far: FarHost) -> None:
    with far.storage() as storage:
        first = storage.ensure(far.content(b"once"), deadline=_deadline())
    before = Path(first.path).stat()

    with far.storage() as storage:
        second = storage.ensure(far.content(b"once"), deadline=_deadline())

        assert second == first
        assert [name for name in storage.names() if name == first.name] == [first.name]
    assert Path(first.path).stat().st_ino == before.st_ino


def test_content_that_was_cut_short_there_is_uploaded_again(far: FarHost) -> None:
    content = far.content(b"whole")
    with far.storage() as storage:
        first = storage.ensure(content, deadline=_deadline())
        os.truncate(first.path, 3)

        second = storage.ensure(content, deadline=_deadline())

        assert second.name != first.name
        assert Path(second.path).read_bytes() == b"whole"


def test_first_bytes_may_be_others(far: FarHost) -> None:
    content = far.content(b"abcdef")
    with far.storage() as storage:
        renamed = Content(title="a", path=content.path, key="d" * 32, start=b"ABC")

        volume = storage.ensure(renamed, deadline=_deadline())

        assert Path(volume.path).read_bytes() == b"ABCdef"


def test_what_is_a_machines_own_goes_with_the_run(far: FarHost) -> None:
    with far.storage() as storage:
        content = Content(title="a seed", path=far.content(b"seed").path, key="node-1")
        volume = storage.put(content, deadline=_deadline())
        assert storage.own_names() == [volume.name]
        assert Path(volume.path).stat().st_mode & 0o777 == 0o600

    assert not Path(volume.path).exists()


@pytest.mark.parametrize("kept", [0, 1])
def test_volume_that_can_not_be_removed_keeps_none_of_the_others(
    far: FarHost, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """The next run sweeps it."""
    remove = Storage.remove

    def keep_one(storage: Storage, volume: Volume) -> None:
        if volume.name == volumes[kept].name:
            raise HarnessError("It is in use.")
        remove(storage, volume)

    path = far.content(b"seed").path
    with contextlib.ExitStack() as opened:
        storage = opened.enter_context(far.storage())
        volumes = [
            storage.put(Content(title="a seed", path=path, key=key), deadline=_deadline())
            for key in ("kept-a", "kept-b")
        ]
        monkeypatch.setattr(Storage, "remove", keep_one)
        with pytest.raises(HarnessError, match=r"It is in use\."):
            opened.close()

    assert [Path(volume.path).exists() for volume in volumes] == [kept == 0, kept == 1]
    monkeypatch.undo()
    with far.storage():
        assert not Path(volumes[kept].path).exists()


def test_what_a_machine_wrote_comes_back(far: FarHost) -> None:
    with far.storage() as storage:
        content = Content(title="a disk", path=far.content(DATA).path, key="node-3")
        volume = storage.put(content, deadline=_deadline())
        into = far.near / "back"

        storage.fetch(volume, into, deadline=_deadline())

        assert into.read_bytes() == DATA


def test_download_that_fails_leaves_no_half_file(far: FarHost) -> None:
    with far.storage() as storage:
        content = Content(title="a disk", path=far.content(DATA).path, key="node-4")
        volume = storage.put(content, deadline=_deadline())
        into = far.near / "half"

        with pytest.raises(HarnessError, match=r"download of volume .* was not done in time"):
            storage.fetch(volume, into, deadline=Deadline.after(0))

        assert not [each for each in far.near.iterdir() if "half" in each.name]


def test_removed_volume_is_none_to_complain_of(far: FarHost) -> None:
    with far.storage() as storage:
        content = Content(title="a seed", path=far.content(b"seed").path, key="node-2")
        volume = storage.put(content, deadline=_deadline())

        storage.remove(volume)
        storage.remove(volume)

        assert storage.own_names() == []


def test_upload_that_fails_leaves_nothing(far: FarHost) -> None:
    content = far.content(DATA + b"fails")
    with far.storage() as storage:
        before = storage.names()

        with pytest.raises(HarnessError, match=r"was not done in time at .*; 0 of 1 MiB came"):
            storage._upload("half", content, Deadline.after(0), mode="0600")

        assert storage.names() == before


def test_interrupted_upload_is_not_used_and_swept(far: FarHost) -> None:
    """A run that is killed amid its upload leaves a volume without a mark."""
    content = far.content(DATA + b"interrupted")
    owner = spawn(_worker(far, content, "stalling"), stdin=PIPE, stdout=PIPE, cwd=REPOSITORY)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"begun\n"
        half = [each for each in far.folder.iterdir() if each.name.startswith(content.key)]
        assert len(half) == 1

        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()

        _wait_until_swept(far, content)
        with far.storage() as storage:
            volume = storage.ensure(content, deadline=_deadline())
            assert Path(volume.path).read_bytes() == DATA + b"interrupted"
            assert volume.name != half[0].name
    finally:
        end(owner)
        for pipe in (owner.stdin, owner.stdout):
            if pipe is not None:
                pipe.close()


def _wait_until_swept(far: FarHost, content: Content) -> None:
    """Open storage until it has swept: for a moment libvirtd still holds the broken stream's file."""

    def look() -> Observation[bool]:
        with far.storage() as storage:
            left = [name for name in storage.names() if name.startswith(content.key)]
        return Observation(None if left else True, f"volumes {left}")

    wait_for("the sweep of the broken upload", look, _deadline())


_WORKER = """\
import sys
from pathlib import Path, PurePosixPath
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.storage import Content, open_storage
from harness.provisioning.wait import Deadline

class Stalling(Content):
    def chunks(self):
        for chunk in super().chunks():
            yield chunk
            print("begun", flush=True)
            sys.stdin.read()

uri, folder, near, key, kind = sys.argv[1:]
deadline = Deadline.after(60)
with Connection.open(uri, deadline=deadline) as connection:
    with open_storage(
        connection, PurePosixPath(folder), state=Path(near) / "state", tell=print
    ) as storage:
        shape = {"stalling": Stalling, "plain": Content}[kind]
        content = shape(title="a disk", path=Path(near) / "disk", key=key)
        print(storage.ensure(content, deadline=deadline).name)
"""


def _worker(far: FarHost, content: Content, kind: str) -> list[str]:
    places = (far.uri, str(far.folder), str(far.near))
    return [sys.executable, "-c", _WORKER, *places, content.key, kind]


def test_workers_that_come_at_once_upload_once(far: FarHost) -> None:
    content = far.content(DATA + b"workers")
    workers = [
        spawn(_worker(far, content, "plain"), stdout=PIPE, cwd=REPOSITORY) for _ in range(3)
    ]
    names = []
    uploads = 0
    for worker in workers:
        out, err = worker.communicate(timeout=PATIENCE_S)
        assert worker.returncode == 0, err.decode()
        lines = out.decode().splitlines()
        names.append(lines[-1])
        uploads += any("100 %" in line for line in lines)

    assert len(set(names)) == 1
    assert uploads == 1


def test_restarted_daemon_finds_the_pool_again(
    settings: Settings, daemon_folder: Path, tmp_path: Path
) -> None:
    with requirements(settings):
        load_libvirt()
    with (
        private_daemon(daemon_folder, kind=DaemonKind.SESSION, deadline=_deadline()) as daemon,
        Connection.open(daemon.far_uri, deadline=_deadline()) as connection,
        open_storage(
            connection, PurePosixPath(tmp_path / "far"), state=tmp_path / "state"
        ) as storage,
    ):
        path = tmp_path / "disk"
        path.write_bytes(b"kept")
        content = Content(title="a disk", path=path, key="e" * 32)
        volume = storage.ensure(content, deadline=_deadline())

        daemon.restart(_deadline())
        connection.reopen(_deadline())

        assert storage.ensure(content, deadline=_deadline()) == volume


def test_far_host_sees_nothing_of_this_one(far: FarHost) -> None:
    content = far.content(b"near")
    inside = far.transport.read_text().split(" -- ")[0].split()[2:]

    answer = LocalRunner().run([*inside, "--", "ls", str(content.path.parent)], timeout_s=10)

    assert (answer.exit_code, answer.stdout) == (0, "")
