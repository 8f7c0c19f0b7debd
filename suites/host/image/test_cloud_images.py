"""Cloud images are fetched once, verified by signature and digest, and pinned by a lock file."""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness.errors import BadInputError, HarnessError
from harness.image import CloudImage, FirmwareType, ImageFetchError
from harness.image.cloud.lock_file import Lock, write_lock
from harness.image.cloud.source import Algorithm, LocalImage
from harness.image.cloud.store import CloudImageStore, FetchOptions, open_local
from harness.progress import ProgressEvent, Stage
from harness.provisioning.command import CommandResult, LocalRunner, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.fakes.clock import FakeClock
from suites.unit.image.cloud_image_folder import (
    DIGEST,
    ENTRY,
    FILE,
    IMAGE,
    LIST,
    OTHER_IMAGE,
    PUBLISHER,
    STRANGER,
    a_cloud_image_recipe,
    a_qcow2,
    names_below,
    published_files,
    write_cloud_image_recipe,
)
from suites.unit.image.imageserver import Handler, ImageServer, answer, cut_at, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness.artifact_cache.removal import Removal
    from harness.provisioning.command import Runner

UNSIGNED = ENTRY.partition("signature:")[0]


@pytest.fixture
def server() -> Iterator[ImageServer]:
    with serving(published_files()) as images:
        yield images


class Fetching:
    """A store and a catalogue in a temporary folder, and the progress that the store reported."""

    def __init__(
        self,
        top: Path,
        folder: str,
        *,
        more: str = "",
        entry: str = ENTRY,
        runner: Runner | None = None,
    ) -> None:
        self.folder = top / "cloud-images"
        self.catalogue = top / "catalogue"
        self.lock = self.catalogue / "tiny.lock"
        self.recipe = a_cloud_image_recipe(self.catalogue, folder=folder, more=more, entry=entry)
        self.events: list[ProgressEvent] = []
        self.store = CloudImageStore(self.folder, runner=runner)

    def run(
        self, *, is_offline: bool = False, is_renewal: bool = False, mirrors: Sequence[str] = ()
    ) -> CloudImage:
        return self.store.ensure(
            self.recipe,
            deadline=Deadline.after(3600, FakeClock()),
            options=FetchOptions(is_offline=is_offline, is_renewal=is_renewal, mirrors=mirrors),
            listener=self.events.append,
        )

    def fail(
        self, *, is_offline: bool = False, is_renewal: bool = False, mirrors: Sequence[str] = ()
    ) -> str:
        with pytest.raises(ImageFetchError) as failure:
            self.run(is_offline=is_offline, is_renewal=is_renewal, mirrors=mirrors)
        assert list(self.folder.glob("tiny-*")) == []
        return str(failure.value)

    def refused(self) -> Mapping[str, bytes]:
        return names_below(self.folder / ".refused")


@pytest.fixture
def fetching(tmp_path: Path, server: ImageServer) -> Fetching:
    return Fetching(tmp_path, server.folder)


def test_image_is_fetched_and_verified_and_locked(fetching: Fetching, server: ImageServer) -> None:
    image = fetching.run()

    assert image.disk.read_bytes() == IMAGE
    assert image.digest == f"sha256:{DIGEST}"
    assert image.virtual_bytes == 3 << 20
    assert fetching.lock.read_text().splitlines()[:-1] == [
        "# The 'tiny' that was fetched. Renew: harness image fetch --image tiny --update",
        "schema: 1",
        'file: "tiny.qcow2"',
        f'digest: "sha256:{DIGEST}"',
        f'signed_by: "{PUBLISHER}"',
    ]
    manifest = json.loads((image.disk.parent / "manifest.json").read_text())
    assert manifest["url"] == server.url(FILE)
    assert manifest["signed_by"] == PUBLISHER


def test_cached_image_needs_no_network(fetching: Fetching, server: ImageServer) -> None:
    fetching.run()
    requests = list(server.requests)

    assert fetching.run(is_offline=True) == fetching.run()

    assert server.requests == requests


def test_fetch_leaves_no_temporary_files(fetching: Fetching, server: ImageServer) -> None:
    server.fail_with(FILE, cut_at(600))

    fetching.run()

    assert server.asked(FILE) == ["whole", "bytes=600-"]
    assert not any((fetching.folder / ".partial").iterdir())
    assert not any((fetching.folder / ".work").iterdir())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (LIST.encode()[:100], "is truncated"),
        (LIST.encode().splitlines(keepends=True)[1], "has no digest of 'tiny.qcow2'"),
    ],
    ids=["truncated", "of another image"],
)
def test_list_of_digests_that_lacks_the_image_is_refused(
    fetching: Fetching, server: ImageServer, content: bytes, why: str
) -> None:
    """A validly signed list may still be incomplete."""
    entry = UNSIGNED + f"digest: sha256:{DIGEST}\n"
    fetching.recipe = a_cloud_image_recipe(fetching.catalogue, folder=server.folder, entry=entry)
    server.put("SHA256SUMS", content)

    assert why in fetching.fail()
    assert server.asked(FILE) == []


def test_signature_is_verified_if_the_temporary_folder_has_a_colon_in_its_path(
    fetching: Fetching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For gpgv, a keyring with a colon in its path is a URL."""
    folder = tmp_path / "job:1 a"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    assert fetching.run().digest == f"sha256:{DIGEST}"


def test_list_that_was_changed_after_its_signing_is_refused(
    fetching: Fetching, server: ImageServer
) -> None:
    other = hashlib.sha256(OTHER_IMAGE).hexdigest()
    server.put("SHA256SUMS", LIST.replace(DIGEST, other).encode())

    assert (
        f"has no valid signature by the key {PUBLISHER}: the signature does not match"
        in fetching.fail()
    )
    assert server.asked(FILE) == []


def test_list_that_an_unknown_key_signed_is_refused(
    fetching: Fetching, server: ImageServer
) -> None:
    server.put("SHA256SUMS.gpg", published_files(signer="stranger")["SHA256SUMS.gpg"])

    assert (
        f"has no valid signature by the key {PUBLISHER}: the signature was made by another key. No image"
        in fetching.fail()
    )


def test_key_with_another_fingerprint_is_refused(tmp_path: Path, server: ImageServer) -> None:
    """The key file may be replaced, but the key must have the fingerprint that the recipe names."""
    fetching = Fetching(tmp_path, server.folder, entry=ENTRY.replace(PUBLISHER, STRANGER))

    assert (
        f"has no valid signature by the key {STRANGER}: the signature was made by the key {PUBLISHER}."
    ) in fetching.fail()


def test_signature_file_without_a_signature_is_refused(
    fetching: Fetching, server: ImageServer
) -> None:
    server.put("SHA256SUMS.gpg", b"<html>Please log in to the network</html>")

    assert "the signature file has no signature." in fetching.fail()


def test_image_with_a_wrong_digest_is_moved_aside(fetching: Fetching, server: ImageServer) -> None:
    server.put(FILE, OTHER_IMAGE)
    found = hashlib.sha256(OTHER_IMAGE).hexdigest()

    failure = fetching.fail()

    refused_file = fetching.folder / ".refused" / f"{DIGEST[:16]}-{found[:8]}.qcow2"
    assert (
        f"has the digest sha256:{found}, but the publisher's list has sha256:{DIGEST}." in failure
    )
    assert f"moved to '{refused_file}'" in failure
    assert fetching.refused() == {refused_file.name: OTHER_IMAGE}
    assert not fetching.lock.exists()


def test_next_mirror_is_used_after_a_wrong_image(tmp_path: Path, server: ImageServer) -> None:
    server.put(FILE, OTHER_IMAGE)
    with serving(published_files()) as mirror:
        fetching = Fetching(tmp_path, server.folder, more=f"mirrors: ['{mirror.folder}']\n")

        image = fetching.run()

        assert mirror.requests == [f"/images/{FILE}"]
    assert image.disk.read_bytes() == IMAGE
    assert len(fetching.refused()) == 1


def test_image_is_fetched_from_the_location_that_lists_the_digest_of_the_image(
    tmp_path: Path, server: ImageServer
) -> None:
    """At the other location, both the image and its list have been replaced."""
    other = hashlib.sha256(OTHER_IMAGE).hexdigest()
    server.put("SHA256SUMS", f"{other}  {FILE}\n".encode())
    server.put(FILE, OTHER_IMAGE)
    with serving(published_files()) as mirror:
        more = f"mirrors: ['{mirror.folder}']\ndigest: sha256:{DIGEST}\n"
        fetching = Fetching(tmp_path, server.folder, entry=UNSIGNED, more=more)

        assert fetching.run().disk.read_bytes() == IMAGE

        assert (server.asked(FILE), mirror.asked(FILE)) == ([], ["whole"])
    assert fetching.refused() == {}


def test_location_with_a_wrong_image_is_requested_only_once(
    tmp_path: Path, server: ImageServer
) -> None:
    """The first location has no image, the second a wrong image, and the third the right one."""
    server.files.pop(f"/images/{FILE}")
    with serving({FILE: OTHER_IMAGE}) as second, serving(published_files()) as third:
        more = f"mirrors: ['{second.folder}', '{third.folder}']\n"
        fetching = Fetching(tmp_path, server.folder, more=more)

        assert fetching.run().disk.read_bytes() == IMAGE

        assert [each.asked(FILE) for each in (server, second, third)] == [["whole"]] * 3
    assert list(fetching.refused().values()) == [OTHER_IMAGE]


def test_preferred_mirror_is_used_first(fetching: Fetching, server: ImageServer) -> None:
    with serving(published_files()) as mirror:
        fetching.run(mirrors=[mirror.folder.removesuffix("/")])

        assert mirror.asked(FILE) == ["whole"]
    assert server.requests == []


def test_partial_file_of_another_image_is_replaced_by_a_whole_download(
    fetching: Fetching, server: ImageServer
) -> None:
    partial = fetching.folder / ".partial"
    partial.mkdir(parents=True)
    (partial / f"{DIGEST[:16]}.part").write_bytes(OTHER_IMAGE[:900])

    image = fetching.run()

    assert image.disk.read_bytes() == IMAGE
    assert server.asked(FILE) == ["bytes=900-", "whole"]
    assert fetching.refused() == {}


def test_next_mirror_is_used_if_both_the_resumed_and_the_whole_download_are_wrong(
    tmp_path: Path, server: ImageServer
) -> None:
    """Only a file that was resumed from a partial file is downloaded again."""
    server.put(FILE, OTHER_IMAGE)
    wrong = (lambda handler: handler.serve(OTHER_IMAGE),) * 2
    server.fail_with(FILE, *wrong, answer(404))
    with serving(published_files()) as mirror:
        fetching = Fetching(tmp_path, server.folder, more=f"mirrors: ['{mirror.folder}']\n")
        partial = fetching.store.cache.store.hidden_folder("partial")
        (partial / f"{DIGEST[:16]}.part").write_bytes(OTHER_IMAGE[:900])

        assert fetching.run().disk.read_bytes() == IMAGE

        assert (server.asked(FILE), mirror.asked(FILE)) == (["bytes=900-", "whole"], ["whole"])
    assert list(fetching.refused().values()) == [OTHER_IMAGE]


def test_image_that_refers_to_other_files_is_refused(tmp_path: Path, server: ImageServer) -> None:
    content = a_qcow2(features=4)
    digest = hashlib.sha256(content).hexdigest()
    server.put("SHA256SUMS", f"{digest}  {FILE}\n".encode())
    server.put(FILE, content)
    fetching = Fetching(tmp_path, server.folder, entry=UNSIGNED + f"digest: sha256:{digest}\n")

    assert "has an external data file" in fetching.fail()

    assert list(fetching.refused().values()) == [content]


def test_error_in_offline_mode_has_the_digest_of_the_missing_image(
    tmp_path: Path, server: ImageServer
) -> None:
    fetching = Fetching(tmp_path, server.folder, more=f"digest: sha256:{DIGEST}\n")

    assert f"with the digest sha256:{DIGEST} is not in the cache" in fetching.fail(is_offline=True)
    assert server.requests == []


def test_error_in_offline_mode_without_a_lock_file_has_the_path_of_the_lock_file(
    fetching: Fetching,
) -> None:
    assert f"nor a lock file '{fetching.lock}'" in fetching.fail(is_offline=True)


def test_renewal_of_the_lock_file_without_a_network_is_refused(
    fetching: Fetching, server: ImageServer
) -> None:
    fetching.run()
    requests = list(server.requests)

    with pytest.raises(ImageFetchError, match="without a network its version is unknown"):
        fetching.run(is_offline=True, is_renewal=True)

    assert server.requests == requests


def test_image_from_a_file_url_needs_no_network(tmp_path: Path, server: ImageServer) -> None:
    stick = tmp_path / "stick"
    stick.mkdir()
    for name, content in published_files().items():
        (stick / name).write_bytes(content)
    fetching = Fetching(tmp_path, server.folder)

    image = fetching.run(mirrors=[stick.as_uri()])

    assert image.disk.read_bytes() == IMAGE
    assert server.requests == []


def _lock_to(fetching: Fetching, digest: str) -> None:
    write_lock(
        fetching.recipe,
        Lock(file=FILE, digest=f"sha256:{digest}", signed_by=None, fetched="2026-08-21"),
    )


def test_image_that_differs_from_its_lock_file_is_reported_before_the_download(
    fetching: Fetching, server: ImageServer
) -> None:
    _lock_to(fetching, "1" * 64)

    assert f"or renew '{fetching.lock}' with --update." in fetching.fail()
    assert server.asked(FILE) == []


@pytest.mark.parametrize("is_renewal", [False, True])
@pytest.mark.parametrize("is_locked", [False, True])
def test_image_that_differs_from_its_pinned_digest_is_reported(
    tmp_path: Path, server: ImageServer, *, is_locked: bool, is_renewal: bool
) -> None:
    """Neither a lock file nor a renewal changes an image that the recipe pins."""
    fetching = Fetching(tmp_path, server.folder, more=f"digest: sha256:{'1' * 64}\n")
    if is_locked:
        _lock_to(fetching, DIGEST)

    assert fetching.fail(is_renewal=is_renewal).endswith(
        f"that still has the image, or change 'digest' in '{fetching.catalogue / 'tiny.yaml'}'."
    )


def test_error_mentions_every_location_without_the_image(
    tmp_path: Path, server: ImageServer
) -> None:
    server.put(FILE, OTHER_IMAGE)
    with serving({}) as mirror:
        fetching = Fetching(tmp_path, server.folder, more=f"mirrors: ['{mirror.folder}']\n")

        failure = fetching.fail()

        assert f"The image at '{server.url(FILE)}' has the digest" in failure
        assert f"'{mirror.url(FILE)}' answered 404 Not Found." in failure


def test_renewal_locks_the_digest_of_the_latest_image(fetching: Fetching) -> None:
    _lock_to(fetching, "1" * 64)

    fetching.run(is_renewal=True)

    assert f'digest: "sha256:{DIGEST}"' in fetching.lock.read_text()
    assert [path.name for path in fetching.catalogue.glob("*.lock")] == ["tiny.lock"]


def test_fetched_image_has_the_firmware_of_its_recipe(tmp_path: Path, server: ImageServer) -> None:
    assert Fetching(tmp_path, server.folder, more="firmware: uefi\n").run().firmware is (
        FirmwareType.UEFI
    )


def test_lock_file_for_another_image_file_is_refused(fetching: Fetching) -> None:
    _lock_to(fetching, DIGEST)
    fetching.lock.write_text(fetching.lock.read_text().replace(FILE, "other.qcow2"))

    with pytest.raises(BadInputError, match=r"tiny\.lock: key 'file': .* for 'other\.qcow2'"):
        fetching.run()


def test_digest_that_another_process_locked_is_kept(fetching: Fetching) -> None:
    _lock_to(fetching, DIGEST)

    _lock_to(fetching, DIGEST)
    with pytest.raises(Exception, match="has just locked the image 'tiny' to sha256:315e929c"):
        _lock_to(fetching, "1" * 64)


@pytest.mark.parametrize("is_renewal", [False, True])
def test_fetch_keeps_a_lock_that_was_written_meanwhile_but_a_renewal_replaces_the_lock(
    fetching: Fetching, server: ImageServer, *, is_renewal: bool
) -> None:
    def lock_meanwhile(handler: Handler) -> None:
        _lock_to(fetching, "1" * 64)
        handler.serve(IMAGE)

    server.fail_with(FILE, lock_meanwhile)

    if is_renewal:
        fetching.run(is_renewal=True)
    else:
        with pytest.raises(HarnessError, match="has just locked the image 'tiny'"):
            fetching.run()

    assert f"sha256:{DIGEST if is_renewal else '1' * 64}" in fetching.lock.read_text()


def test_pinned_digest_whose_algorithm_differs_from_the_list_is_refused(
    tmp_path: Path, server: ImageServer
) -> None:
    fetching = Fetching(tmp_path, server.folder, more=f"digest: sha512:{'1' * 128}\n")

    with pytest.raises(
        BadInputError,
        match="pinned by a sha512 digest, but the publisher's list has a sha256 digest",
    ):
        fetching.run()


def test_damaged_image_is_fetched_again(fetching: Fetching, server: ImageServer) -> None:
    os.truncate(fetching.run().disk, 5)
    fetching.store.close()

    image = fetching.run()

    assert image.disk.read_bytes() == IMAGE
    assert server.asked(FILE) == ["whole", "whole"]
    (sentence,) = [each.message for each in fetching.events if each.stage is Stage.REFUSED]
    assert sentence.endswith(
        "has 5 bytes, but its manifest states 1000. The damaged cloud image is made again."
    )


def test_damaged_image_is_reported_in_offline_mode(fetching: Fetching) -> None:
    os.truncate(fetching.run().disk, 5)

    with pytest.raises(ImageFetchError, match=r"can't be fetched offline.*has 5 bytes"):
        fetching.run(is_offline=True)


class _WithoutGpgv:
    """Runs `gpgv` as on a host without gpgv: the command is not found."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert argv[0] == "gpgv"
        del timeout_s, stdin, env
        return CommandResult(argv=tuple(argv), exit_code=127, stdout="", stderr="not found")


def test_missing_gpgv_is_reported_with_its_package(tmp_path: Path, server: ImageServer) -> None:
    fetching = Fetching(tmp_path, server.folder, runner=_WithoutGpgv())

    with pytest.raises(Exception, match="'apt-get install --no-install-recommends gpgv'"):
        fetching.run()


def test_two_processes_share_one_download(tmp_path: Path, server: ImageServer) -> None:
    """The server holds the image back until both processes have read the list."""
    write_cloud_image_recipe(tmp_path / "catalogue", folder=server.folder)
    lists = threading.Barrier(2)

    def meet(handler: Handler) -> None:
        lists.wait(30)
        handler.serve(LIST.encode())

    server.fail_with("SHA256SUMS", meet, meet)
    results: list[CommandResult] = []

    def fetch() -> None:
        results.append(
            LocalRunner().run(
                [
                    *(sys.executable, "-m", "harness.cli", "image", "fetch", "--json"),
                    *("--image=tiny", f"--images-dir={tmp_path / 'catalogue'}"),
                ],
                timeout_s=60,
                env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
            )
        )

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for result in results:
        assert result.ok, result.render()
        assert json.loads(result.stdout)["digest"] == f"sha256:{DIGEST}"
    assert server.asked("SHA256SUMS") == ["whole", "whole"]
    assert server.asked(FILE) == ["whole"]


def test_killed_process_leaves_its_partial_file_and_no_lock(
    tmp_path: Path, fetching: Fetching, server: ImageServer
) -> None:
    is_half_sent, is_over = threading.Event(), threading.Event()

    def stall(handler: Handler) -> None:
        handler.serve(IMAGE, cut_at=600)
        handler.wfile.flush()
        is_half_sent.set()
        is_over.wait(30)

    server.fail_with(FILE, stall)
    killed = spawn(
        [
            *(sys.executable, "-m", "harness.cli", "image", "fetch"),
            *("--image=tiny", f"--images-dir={fetching.catalogue}"),
        ],
        env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    store = CloudImageStore(tmp_path / "cache/gpu-node-harness/stock")
    part = store.cache.store.hidden_folder("partial") / f"{DIGEST[:16]}.part"
    try:
        assert is_half_sent.wait(30)
        wait_for("what was sent", lambda: _size_of(part, 600), Deadline.after(30))
    finally:
        killed.kill()
        killed.wait()
        is_over.set()

    image = store.ensure(fetching.recipe, deadline=Deadline.after(60))

    assert image.disk.read_bytes() == IMAGE
    assert server.asked(FILE) == ["whole", "bytes=600-"]


def _size_of(path: Path, wanted: int) -> Observation[bool]:
    size = path.stat().st_size if path.exists() else 0
    return Observation(True if size == wanted else None, f"{size} bytes")


def a_raw_disk() -> bytes:
    """Return a disk of two sectors, the first of which is a boot sector."""
    return bytes(510) + b"\x55\xaa" + bytes(512)


def test_local_raw_disk_is_accepted_as_an_image(tmp_path: Path) -> None:
    (tmp_path / "node.raw").write_bytes(a_raw_disk())

    image = open_local(LocalImage.at(tmp_path / "node.raw"), Algorithm.SHA256)

    assert (image.name, image.virtual_bytes) == ("node", 1024)


def test_digest_of_a_changed_local_file_is_computed_again(tmp_path: Path) -> None:
    """The file is digested once for each of its states."""
    path = tmp_path / "node.qcow2"
    path.write_bytes(IMAGE)
    first = open_local(LocalImage.at(path), Algorithm.SHA256)

    path.write_bytes(OTHER_IMAGE)

    assert first.digest == f"sha256:{DIGEST}"
    assert open_local(LocalImage.at(path), Algorithm.SHA256).digest != first.digest


def _pinned(tmp_path: Path, folder: str, digest: str = DIGEST) -> Fetching:
    entry = UNSIGNED.partition("sums:")[0]
    return Fetching(tmp_path, folder, entry=entry, more=f"digest: sha256:{digest}\n")


def test_pinned_image_needs_no_list_and_no_lock(tmp_path: Path, server: ImageServer) -> None:
    fetching = _pinned(tmp_path, server.folder)

    image = fetching.run()

    assert image.disk.read_bytes() == IMAGE
    assert len(server.requests) == 1
    assert not fetching.lock.exists()
    assert fetching.run(is_offline=True) == image


@pytest.mark.parametrize("is_renewal", [False, True])
def test_pinned_image_with_another_digest_is_refused(
    tmp_path: Path, server: ImageServer, *, is_renewal: bool
) -> None:
    fetching = _pinned(tmp_path, server.folder, digest="0" * 64)

    sentence = fetching.fail(is_renewal=is_renewal)

    assert f"has the digest sha256:{DIGEST}, but sha256:{'0' * 64} is needed" in sentence
    assert [*fetching.refused().values()] == [IMAGE]


def test_local_file_is_used_in_place(tmp_path: Path) -> None:
    (tmp_path / "My Bake.qcow2").write_bytes(IMAGE)

    image = open_local(LocalImage.at(tmp_path / "My Bake.qcow2"), Algorithm.SHA256)

    assert image == CloudImage(
        name="my-bake",
        digest=f"sha256:{DIGEST}",
        disk=tmp_path / "My Bake.qcow2",
        virtual_bytes=3 << 20,
    )
    other = open_local(LocalImage.at(tmp_path / "My Bake.qcow2"), Algorithm.SHA512)
    assert other.digest == f"sha512:{hashlib.sha512(IMAGE).hexdigest()}"


def test_local_file_that_cannot_be_booted_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my.qcow2"
    path.write_bytes(a_qcow2(backing_at=104))

    with pytest.raises(BadInputError, match=r"my\.qcow2: The file has a backing file"):
        open_local(LocalImage.at(path), Algorithm.SHA256)


def _absent(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (_absent, "This file does not exist."),
        (Path.mkdir, "This is a folder; give the path of the image file in it."),
        (os.mkfifo, "This is not a regular file but a device, pipe or socket."),
    ],
    ids=["absent", "folder", "pipe"],
)
def test_path_without_a_regular_file_is_refused(
    tmp_path: Path, make: Callable[[Path], None], problem: str
) -> None:
    path = tmp_path / "folder" / "my.qcow2"
    path.parent.mkdir()
    make(path)

    with pytest.raises(BadInputError) as refusal:
        open_local(LocalImage.at(path), Algorithm.SHA256)

    assert str(refusal.value) == f"{path}: {problem}"


@pytest.mark.parametrize("refused", ["open", "stat"])
def test_unreadable_local_file_is_refused_with_the_systems_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Root may read every file, so the test fakes the system's error."""
    path = tmp_path / "my.qcow2"
    path.write_bytes(IMAGE)

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, refused, refuse)

    with pytest.raises(BadInputError) as refusal:
        open_local(LocalImage.at(path), Algorithm.SHA256)

    assert str(refusal.value) == f"{path}: The file cannot be read (Permission denied)."


def test_old_leftovers_of_downloads_are_removed(fetching: Fetching, server: ImageServer) -> None:
    server.put(FILE, OTHER_IMAGE)
    fetching.fail()
    (fetching.folder / ".partial/old.part").write_bytes(b"half")
    later = dt.datetime.now(tz=dt.timezone.utc) + dt.timedelta(days=31)
    kept = fetching.store.cache.collect_unused(dt.timedelta(days=60), at=later)

    removals = fetching.store.cache.collect_unused(dt.timedelta(days=30), at=later)

    assert kept == []
    assert [removal.reason for removal in removals] == [
        "it is in the folder 'partial' of temporary files, and was not changed for 30 days.",
        "it is in the folder 'refused' of temporary files, and was not changed for 30 days.",
    ]
    assert fetching.refused() == {}


def test_partial_file_of_a_running_download_is_kept(
    fetching: Fetching, server: ImageServer
) -> None:
    removals: list[Removal] = []

    def collect_meanwhile(handler: Handler) -> None:
        at = dt.datetime.now(tz=dt.timezone.utc) + dt.timedelta(days=1)
        removals.extend(
            CloudImageStore(fetching.folder).cache.collect_unused(dt.timedelta(), at=at)
        )
        handler.serve(IMAGE)

    server.fail_with(FILE, cut_at(600), collect_meanwhile)

    image = fetching.run()

    assert removals == []
    assert image.disk.read_bytes() == IMAGE
