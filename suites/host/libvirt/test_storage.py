"""Storage of a remote libvirt; the remote host is a daemon that does not see this host's files."""

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
from harness.machine.libvirt.daemon_layout import DaemonKind
from harness.machine.libvirt.private_daemon import private_daemon
from harness.machine.libvirt.storage import CHUNK, Content, Storage, open_storage
from harness.plugin.select import requirements
from harness.provisioning.command import PIPE, LocalRunner, end, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.host.libvirt.conftest import PATIENCE_S, short_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.machine.libvirt.private_daemon import PrivateDaemon
    from harness.machine.libvirt.storage import Volume
    from harness.settings import Settings

REPOSITORY = Path(__file__).parents[3]


class RemoteStorage:
    """A remote host: how to reach it, where its files lie, and what is only local."""

    def __init__(self, daemon: PrivateDaemon, local: Path, folder: Path) -> None:
        self.uri = daemon.remote_uri
        self.transport = daemon.transport
        self.local = local
        self.folder = folder

    @contextlib.contextmanager
    def storage(self, reports: list[str] | None = None) -> Iterator[Storage]:
        report = (lambda _: None) if reports is None else reports.append
        with (
            Connection.open(self.uri, deadline=_deadline()) as connection,
            open_storage(
                connection,
                PurePosixPath(self.folder),
                state=self.local / "state",
                report=report,
            ) as storage,
        ):
            yield storage

    def content(self, data: bytes, name: str = "disk") -> Content:
        path = self.local / name
        path.write_bytes(data)
        key = hashlib.sha256(data).hexdigest()[:32]
        return Content(title=f"the file '{name}'", path=path, key=key)


def _deadline() -> Deadline:
    return Deadline.after(PATIENCE_S)


@pytest.fixture(scope="module", params=list(DaemonKind), ids=lambda kind: kind.value)
def remote(
    request: pytest.FixtureRequest, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RemoteStorage]:
    folder = tmp_path_factory.mktemp("f")
    local = folder / "local"
    local.mkdir()
    with contextlib.ExitStack() as stack:
        with requirements(settings):
            load_libvirt()
            daemon = stack.enter_context(
                private_daemon(
                    stack.enter_context(short_folder()),
                    kind=request.param,
                    deadline=_deadline(),
                    hidden=[local],
                )
            )
        yield RemoteStorage(daemon, local, folder / "remote")


DATA = bytes(range(256)) * 5000


def test_content_is_uploaded_whole_with_progress(remote: RemoteStorage) -> None:
    reports: list[str] = []
    with remote.storage(reports) as storage:
        volume = storage.ensure(remote.content(DATA), deadline=_deadline())

        assert Path(volume.path).read_bytes() == DATA
    assert len(DATA) > 4 * CHUNK
    assert reports == [f"uploaded 100 % of the file 'disk' (1 MiB) to '{remote.uri}'"]


def test_large_upload_is_reported_in_tenths(
    remote: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "_LARGE", len(DATA))
    reports: list[str] = []
    with remote.storage(reports) as storage:
        storage.ensure(remote.content(DATA + b"large"), deadline=_deadline())

    assert reports[0].startswith("uploaded 20 % of the file 'disk'")
    assert reports[-1].startswith("uploaded 100 % of")


def test_content_is_uploaded_once_for_all_runs(remote: RemoteStorage) -> None:
    with remote.storage() as storage:
        first = storage.ensure(remote.content(b"once"), deadline=_deadline())
    before = Path(first.path).stat()

    with remote.storage() as storage:
        second = storage.ensure(remote.content(b"once"), deadline=_deadline())

        assert second == first
        assert [name for name in storage.names() if name == first.name] == [first.name]
    assert Path(first.path).stat().st_ino == before.st_ino


def test_content_that_was_cut_short_there_is_uploaded_again(remote: RemoteStorage) -> None:
    content = remote.content(b"whole")
    with remote.storage() as storage:
        first = storage.ensure(content, deadline=_deadline())
        os.truncate(first.path, 3)

        second = storage.ensure(content, deadline=_deadline())

        assert second.name != first.name
        assert Path(second.path).read_bytes() == b"whole"


def test_first_bytes_may_be_others(remote: RemoteStorage) -> None:
    content = remote.content(b"abcdef")
    with remote.storage() as storage:
        renamed = Content(title="a", path=content.path, key="d" * 32, start=b"ABC")

        volume = storage.ensure(renamed, deadline=_deadline())

        assert Path(volume.path).read_bytes() == b"ABCdef"


def test_what_is_a_machines_own_goes_with_the_run(remote: RemoteStorage) -> None:
    with remote.storage() as storage:
        content = Content(title="a seed", path=remote.content(b"seed").path, key="node-1")
        volume = storage.put(content, deadline=_deadline())
        assert storage.own_names() == [volume.name]
        assert Path(volume.path).stat().st_mode & 0o777 == 0o600

    assert not Path(volume.path).exists()


@pytest.mark.parametrize("kept", [0, 1])
def test_failed_removal_of_a_volume_does_not_keep_the_others(
    remote: RemoteStorage, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """The next run sweeps it."""
    remove = Storage.remove

    def keep_one(storage: Storage, volume: Volume) -> None:
        if volume.name == volumes[kept].name:
            raise HarnessError("It is in use.")
        remove(storage, volume)

    path = remote.content(b"seed").path
    with contextlib.ExitStack() as opened:
        storage = opened.enter_context(remote.storage())
        volumes = [
            storage.put(Content(title="a seed", path=path, key=key), deadline=_deadline())
            for key in ("kept-a", "kept-b")
        ]
        monkeypatch.setattr(Storage, "remove", keep_one)
        with pytest.raises(HarnessError, match=r"It is in use\."):
            opened.close()

    assert [Path(volume.path).exists() for volume in volumes] == [kept == 0, kept == 1]
    monkeypatch.undo()
    with remote.storage():
        assert not Path(volumes[kept].path).exists()


def test_what_a_machine_wrote_comes_back(remote: RemoteStorage) -> None:
    with remote.storage() as storage:
        content = Content(title="a disk", path=remote.content(DATA).path, key="node-3")
        volume = storage.put(content, deadline=_deadline())
        into = remote.local / "back"

        storage.fetch(volume, into, deadline=_deadline())

        assert into.read_bytes() == DATA


def test_download_that_fails_leaves_no_half_file(remote: RemoteStorage) -> None:
    with remote.storage() as storage:
        content = Content(title="a disk", path=remote.content(DATA).path, key="node-4")
        volume = storage.put(content, deadline=_deadline())
        into = remote.local / "half"

        with pytest.raises(HarnessError, match=r"download of volume .* was not complete in time"):
            storage.fetch(volume, into, deadline=Deadline.after(0))

        assert not [each for each in remote.local.iterdir() if "half" in each.name]


def test_removing_an_absent_volume_is_not_an_error(remote: RemoteStorage) -> None:
    with remote.storage() as storage:
        content = Content(title="a seed", path=remote.content(b"seed").path, key="node-2")
        volume = storage.put(content, deadline=_deadline())

        storage.remove(volume)
        storage.remove(volume)

        assert storage.own_names() == []


def test_upload_that_fails_leaves_nothing(remote: RemoteStorage) -> None:
    content = remote.content(DATA + b"fails")
    with remote.storage() as storage:
        before = storage.names()

        with pytest.raises(HarnessError, match=r"was not complete in time at .*; 0 of 1 MiB were"):
            storage._upload("half", content, Deadline.after(0), mode="0600")

        assert storage.names() == before


def test_interrupted_upload_is_not_used_and_swept(remote: RemoteStorage) -> None:
    """A run that is killed amid its upload leaves a volume without a mark."""
    content = remote.content(DATA + b"interrupted")
    owner = spawn(_worker(remote, content, "stalling"), stdin=PIPE, stdout=PIPE, cwd=REPOSITORY)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"begun\n"
        half = [each for each in remote.folder.iterdir() if each.name.startswith(content.key)]
        assert len(half) == 1

        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()

        _wait_until_swept(remote, content)
        with remote.storage() as storage:
            volume = storage.ensure(content, deadline=_deadline())
            assert Path(volume.path).read_bytes() == DATA + b"interrupted"
            assert volume.name != half[0].name
    finally:
        end(owner)
        for pipe in (owner.stdin, owner.stdout):
            if pipe is not None:
                pipe.close()


def _wait_until_swept(remote: RemoteStorage, content: Content) -> None:
    """Open storage until it has swept: for a moment libvirtd still holds the broken stream's file."""

    def poll() -> Observation[bool]:
        with remote.storage() as storage:
            left = [name for name in storage.names() if name.startswith(content.key)]
        return Observation(None if left else True, f"volumes {left}")

    wait_for("the sweep of the broken upload", poll, _deadline())


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

uri, folder, local, key, kind = sys.argv[1:]
deadline = Deadline.after(60)
with Connection.open(uri, deadline=deadline) as connection:
    with open_storage(
        connection, PurePosixPath(folder), state=Path(local) / "state", report=print
    ) as storage:
        shape = {"stalling": Stalling, "plain": Content}[kind]
        content = shape(title="a disk", path=Path(local) / "disk", key=key)
        print(storage.ensure(content, deadline=deadline).name)
"""


def _worker(remote: RemoteStorage, content: Content, kind: str) -> list[str]:
    places = (remote.uri, str(remote.folder), str(remote.local))
    return [sys.executable, "-c", _WORKER, *places, content.key, kind]


def test_workers_that_come_at_once_upload_once(remote: RemoteStorage) -> None:
    content = remote.content(DATA + b"workers")
    workers = [
        spawn(_worker(remote, content, "plain"), stdout=PIPE, cwd=REPOSITORY) for _ in range(3)
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
        Connection.open(daemon.remote_uri, deadline=_deadline()) as connection,
        open_storage(
            connection, PurePosixPath(tmp_path / "remote"), state=tmp_path / "state"
        ) as storage,
    ):
        path = tmp_path / "disk"
        path.write_bytes(b"kept")
        content = Content(title="a disk", path=path, key="e" * 32)
        volume = storage.ensure(content, deadline=_deadline())

        daemon.restart(_deadline())
        connection.reopen(_deadline())

        assert storage.ensure(content, deadline=_deadline()) == volume


def test_remote_host_sees_nothing_of_this_one(remote: RemoteStorage) -> None:
    content = remote.content(b"local")
    inside = remote.transport.read_text().split(" -- ")[0].split()[2:]

    answer = LocalRunner().run([*inside, "--", "ls", str(content.path.parent)], timeout_s=10)

    assert (answer.exit_code, answer.stdout) == (0, "")
