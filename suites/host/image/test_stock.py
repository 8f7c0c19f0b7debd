"""Stock images: fetched once, judged by signature and digest, repeatable by a lock file."""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness.errors import BadInputError
from harness.image import ImageEvent, ImageFetchError, Stage, StockImage
from harness.image.lockfile import Lock, write_lock
from harness.image.source import Algorithm, LocalImage
from harness.image.stock import StockStore, Terms, open_local
from harness.provisioning.command import CommandResult, LocalRunner, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.unit.image.imageserver import Handler, ImageServer, PausingClock, cut_at, serving
from suites.unit.image.stockfolder import (
    DIGEST,
    ENTRY,
    FILE,
    IMAGE,
    LIST,
    OTHER_IMAGE,
    PUBLISHER,
    STRANGER,
    a_qcow2,
    a_stock,
    names_below,
    published_files,
    write_stock,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness.provisioning.command import Runner
    from harness.published.removal import Removal

UNSIGNED = ENTRY.partition("signature:")[0]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this host's proxy play no part."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[ImageServer]:
    with serving(published_files()) as images:
        yield images


class Fetching:
    """A store and a catalogue in a temporary folder, and what the store said."""

    def __init__(
        self,
        top: Path,
        folder: str,
        *,
        more: str = "",
        entry: str = ENTRY,
        runner: Runner | None = None,
    ) -> None:
        self.folder = top / "stock"
        self.catalogue = top / "catalogue"
        self.lock = self.catalogue / "tiny.lock"
        self.stock = a_stock(self.catalogue, folder=folder, more=more, entry=entry)
        self.events: list[ImageEvent] = []
        self.store = StockStore(self.folder, runner=runner)

    def run(
        self, *, is_offline: bool = False, is_renewal: bool = False, mirrors: Sequence[str] = ()
    ) -> StockImage:
        return self.store.ensure(
            self.stock,
            deadline=Deadline.after(3600, PausingClock()),
            terms=Terms(is_offline=is_offline, is_renewal=is_renewal, mirrors=mirrors),
            listener=self.events.append,
        )

    def fail(self, *, is_offline: bool = False, mirrors: Sequence[str] = ()) -> str:
        with pytest.raises(ImageFetchError) as failure:
            self.run(is_offline=is_offline, mirrors=mirrors)
        assert list(self.folder.glob("tiny-*")) == []
        return str(failure.value)

    def refused(self) -> Mapping[str, bytes]:
        return names_below(self.folder / ".refused")


@pytest.fixture
def fetching(tmp_path: Path, server: ImageServer) -> Fetching:
    return Fetching(tmp_path, server.folder)


def test_image_is_fetched_verified_and_locked(fetching: Fetching, server: ImageServer) -> None:
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


def test_image_that_is_here_needs_no_network(fetching: Fetching, server: ImageServer) -> None:
    fetching.run()
    requests = list(server.requests)

    assert fetching.run(is_offline=True) == fetching.run()

    assert server.requests == requests


def test_nothing_but_the_image_remains(fetching: Fetching, server: ImageServer) -> None:
    server.trouble(FILE, cut_at(600))

    fetching.run()

    assert server.asked(FILE) == ["whole", "bytes=600-"]
    assert not any((fetching.folder / ".partial").iterdir())
    assert not any((fetching.folder / ".work").iterdir())


def test_truncated_list_is_refused(fetching: Fetching, server: ImageServer) -> None:
    """A list that is signed as it stands may still be half of what its publisher meant."""
    entry = UNSIGNED + f"digest: sha256:{DIGEST}\n"
    fetching.stock = a_stock(fetching.catalogue, folder=server.folder, entry=entry)
    server.put("SHA256SUMS", LIST.encode()[:100])

    assert fetching.fail() == (
        f"The list '{server.url('SHA256SUMS')}' is cut short: its line 2, "
        "'e3b0c44298fc1c149afbf4c', is no sha256 digest with a file's name. Nothing was "
        "downloaded by it; try again, or name another place with --mirror."
    )
    assert server.asked(FILE) == []


def test_list_without_the_image_is_refused(fetching: Fetching, server: ImageServer) -> None:
    entry = UNSIGNED + f"digest: sha256:{DIGEST}\n"
    fetching.stock = a_stock(fetching.catalogue, folder=server.folder, entry=entry)
    server.put("SHA256SUMS", LIST.encode().splitlines(keepends=True)[1])

    assert fetching.fail() == (
        f"The list '{server.url('SHA256SUMS')}' says nothing of 'tiny.qcow2'; it names "
        "'empty.qcow2'. Nothing was downloaded by it; see whether the list is whole, and whether "
        "the image's 'file' is right."
    )


def test_list_that_was_changed_after_it_was_signed_is_refused(
    fetching: Fetching, server: ImageServer
) -> None:
    other = hashlib.sha256(OTHER_IMAGE).hexdigest()
    server.put("SHA256SUMS", LIST.replace(DIGEST, other).encode())

    assert fetching.fail() == (
        f"The signature of the list '{server.url('SHA256SUMS')}' is not by the key {PUBLISHER}: "
        "the signature does not belong to this list. Nothing was downloaded by it; name another "
        "place with --mirror, and do not use what this one serves."
    )
    assert server.asked(FILE) == []


def test_list_signed_by_a_stranger_is_refused(fetching: Fetching, server: ImageServer) -> None:
    server.put("SHA256SUMS.gpg", published_files(signer="stranger")["SHA256SUMS.gpg"])

    assert (
        f"is not by the key {PUBLISHER}: the signature was made by another key. Nothing"
        in fetching.fail()
    )


def test_key_whose_fingerprint_is_another_is_refused(tmp_path: Path, server: ImageServer) -> None:
    """The file of the key may be exchanged; the fingerprint in the entry says which it must be."""
    fetching = Fetching(tmp_path, server.folder, entry=ENTRY.replace(PUBLISHER, STRANGER))

    assert f"is not by the key {STRANGER}: it is by the key {PUBLISHER}." in fetching.fail()


def test_signature_that_is_none_is_refused(fetching: Fetching, server: ImageServer) -> None:
    server.put("SHA256SUMS.gpg", b"<html>Please log in to the network</html>")

    assert "what lies there is no signature." in fetching.fail()


def test_right_signature_over_a_wrong_digest_keeps_the_image_aside(
    fetching: Fetching, server: ImageServer
) -> None:
    server.put(FILE, OTHER_IMAGE)
    found = hashlib.sha256(OTHER_IMAGE).hexdigest()

    failure = fetching.fail()

    aside = fetching.folder / ".refused" / f"{DIGEST[:16]}-{found[:8]}.qcow2"
    assert failure == (
        f"The image that '{server.url(FILE)}' serves has the digest sha256:{found}, but its list "
        f"names sha256:{DIGEST}. It is kept aside as '{aside}', and is never booted.\n"
        "The image 'tiny' is not there; tell whoever runs that place, or name another one with "
        "--mirror."
    )
    assert fetching.refused() == {aside.name: OTHER_IMAGE}
    assert not fetching.lock.exists()


def test_mirror_with_the_right_image_is_taken_after_one_with_a_wrong_one(
    tmp_path: Path, server: ImageServer
) -> None:
    server.put(FILE, OTHER_IMAGE)
    with serving(published_files()) as mirror:
        fetching = Fetching(tmp_path, server.folder, more=f"mirrors: ['{mirror.folder}']\n")

        image = fetching.run()

        assert mirror.requests == [f"/images/{FILE}"]
    assert image.disk.read_bytes() == IMAGE
    assert len(fetching.refused()) == 1


def test_preferred_mirror_is_asked_first(fetching: Fetching, server: ImageServer) -> None:
    with serving(published_files()) as mirror:
        fetching.run(mirrors=[mirror.folder.removesuffix("/")])

        assert mirror.asked(FILE) == ["whole"]
    assert server.requests == []


def test_part_that_a_killed_process_left_of_another_file_is_fetched_anew(
    fetching: Fetching, server: ImageServer
) -> None:
    partial = fetching.folder / ".partial"
    partial.mkdir(parents=True)
    (partial / f"{DIGEST[:16]}.part").write_bytes(OTHER_IMAGE[:900])

    image = fetching.run()

    assert image.disk.read_bytes() == IMAGE
    assert server.asked(FILE) == ["bytes=900-", "whole"]
    assert fetching.refused() == {}


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (b"\0" * 1000, "is no qcow2 image; convert it with `qemu-img convert -O qcow2`"),
        (a_qcow2(backing_at=104), "names a backing file, and so is only a part of an image"),
        (a_qcow2(features=4), "names an external data file, and so is only a part of an image"),
    ],
    ids=["raw", "backing-file", "data-file"],
)
def test_image_that_would_lead_elsewhere_is_kept_aside(
    tmp_path: Path, server: ImageServer, content: bytes, trouble: str
) -> None:
    digest = hashlib.sha256(content).hexdigest()
    server.put("SHA256SUMS", f"{digest}  {FILE}\n".encode())
    server.put(FILE, content)
    fetching = Fetching(tmp_path, server.folder, entry=UNSIGNED + f"digest: sha256:{digest}\n")

    assert f"serves {trouble}. It is kept aside as" in fetching.fail()

    assert list(fetching.refused().values()) == [content]


def test_offline_says_which_digest_is_missing(tmp_path: Path, server: ImageServer) -> None:
    fetching = Fetching(tmp_path, server.folder, more=f"digest: sha256:{DIGEST}\n")

    assert fetching.fail(is_offline=True) == (
        f"The image 'tiny' with the digest sha256:{DIGEST} is not in the cache, and offline it "
        "can't be fetched. Fetch it where there is a network: `harness image fetch --image tiny`, "
        "there or with --mirror file:///… here."
    )
    assert server.requests == []


def test_offline_without_a_lock_says_that_nothing_names_the_image(fetching: Fetching) -> None:
    assert fetching.fail(is_offline=True) == (
        "The image 'tiny' is not in the cache, and offline nothing says which one of its series "
        f"is wanted: neither 'digest' in '{fetching.catalogue / 'tiny.yaml'}' nor the lock file "
        f"'{fetching.lock}'. Fetch it once where there is a network."
    )


def test_image_from_a_stick_needs_no_network(tmp_path: Path, server: ImageServer) -> None:
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
        fetching.stock,
        Lock(file=FILE, digest=f"sha256:{digest}", signed_by=None, fetched="2026-08-21"),
    )


def test_series_that_moved_on_is_told_before_anything_is_downloaded(
    fetching: Fetching, server: ImageServer
) -> None:
    _lock_to(fetching, "1" * 64)

    assert fetching.fail() == (
        f"'{server.url(FILE)}' is sha256:{DIGEST[:16]}… by now, but sha256:1111111111111111… is "
        "wanted; the series has moved on.\nName a place that still has it with --mirror, or renew "
        f"'{fetching.lock}' with --update."
    )
    assert server.asked(FILE) == []


def test_pin_that_the_series_left_behind_is_told(tmp_path: Path, server: ImageServer) -> None:
    fetching = Fetching(tmp_path, server.folder, more=f"digest: sha256:{'1' * 64}\n")

    assert fetching.fail().endswith(
        f"with --mirror, or give another 'digest' in '{fetching.catalogue / 'tiny.yaml'}'."
    )


def test_every_place_is_told_when_none_has_the_image(tmp_path: Path, server: ImageServer) -> None:
    server.put(FILE, OTHER_IMAGE)
    with serving({}) as mirror:
        fetching = Fetching(tmp_path, server.folder, more=f"mirrors: ['{mirror.folder}']\n")

        failure = fetching.fail()

        assert f"The image that '{server.url(FILE)}' serves has the digest" in failure
        assert f"'{mirror.url(FILE)}' answered 404 Not Found." in failure


def test_renewal_takes_the_latest_and_locks_it(fetching: Fetching) -> None:
    _lock_to(fetching, "1" * 64)

    fetching.run(is_renewal=True)

    assert f'digest: "sha256:{DIGEST}"' in fetching.lock.read_text()
    assert [path.name for path in fetching.catalogue.glob("*.lock")] == ["tiny.lock"]


def test_pinned_image_writes_no_lock(tmp_path: Path, server: ImageServer) -> None:
    fetching = Fetching(tmp_path, server.folder, more=f"digest: sha256:{DIGEST}\n")

    fetching.run()

    assert not fetching.lock.exists()


def test_lock_of_another_file_is_refused(fetching: Fetching) -> None:
    _lock_to(fetching, DIGEST)
    fetching.lock.write_text(fetching.lock.read_text().replace(FILE, "other.qcow2"))

    with pytest.raises(BadInputError) as refusal:
        fetching.run()

    assert str(refusal.value) == (
        f"{fetching.lock}: key 'file': This locks 'other.qcow2', but the image 'tiny' is "
        "'tiny.qcow2' now; renew it with `harness image fetch --update`."
    )


def test_lock_that_another_process_wrote_meanwhile_stands(fetching: Fetching) -> None:
    _lock_to(fetching, DIGEST)

    _lock_to(fetching, DIGEST)
    with pytest.raises(Exception, match="has just locked the image 'tiny' to sha256:315e929c"):
        _lock_to(fetching, "1" * 64)


def test_pin_by_another_algorithm_than_the_lists_is_refused(
    tmp_path: Path, server: ImageServer
) -> None:
    fetching = Fetching(tmp_path, server.folder, more=f"digest: sha512:{'1' * 128}\n")

    with pytest.raises(BadInputError, match="pinned by sha512, but its list has sha256"):
        fetching.run()


def test_damaged_image_is_fetched_again(fetching: Fetching, server: ImageServer) -> None:
    os.truncate(fetching.run().disk, 5)
    fetching.store.close()

    image = fetching.run()

    assert image.disk.read_bytes() == IMAGE
    assert server.asked(FILE) == ["whole", "whole"]
    (sentence,) = [each.message for each in fetching.events if each.stage is Stage.REFUSED]
    assert sentence.endswith("has 5 bytes, but 1000 were published. It is made again.")


def test_damaged_image_is_told_offline(fetching: Fetching) -> None:
    os.truncate(fetching.run().disk, 5)

    with pytest.raises(ImageFetchError, match=r"offline it can't be fetched.*has 5 bytes"):
        fetching.run(is_offline=True)


class _WithoutGpgv:
    """Answers as a host on which no command is found."""

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


def test_host_without_gpgv_is_told_what_to_install(tmp_path: Path, server: ImageServer) -> None:
    fetching = Fetching(tmp_path, server.folder, runner=_WithoutGpgv())

    with pytest.raises(Exception, match="'apt-get install --no-install-recommends gpgv'"):
        fetching.run()


def test_two_processes_share_one_download(tmp_path: Path, server: ImageServer) -> None:
    """The image is held back until both have read the list, so that they surely meet."""
    write_stock(tmp_path / "catalogue", folder=server.folder)
    lists = threading.Barrier(2)

    def meet(handler: Handler) -> None:
        lists.wait(30)
        handler.serve(LIST.encode())

    server.trouble("SHA256SUMS", meet, meet)
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


def test_process_that_was_killed_leaves_its_part_and_no_lock(
    tmp_path: Path, fetching: Fetching, server: ImageServer
) -> None:
    is_half_sent, is_over = threading.Event(), threading.Event()

    def stall(handler: Handler) -> None:
        handler.serve(IMAGE, cut_at=600)
        handler.wfile.flush()
        is_half_sent.set()
        is_over.wait(30)

    server.trouble(FILE, stall)
    killed = spawn(
        [
            *(sys.executable, "-m", "harness.cli", "image", "fetch"),
            *("--image=tiny", f"--images-dir={fetching.catalogue}"),
        ],
        env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    store = StockStore(tmp_path / "cache/gpu-node-harness/stock")
    part = store.cache.private("partial") / f"{DIGEST[:16]}.part"
    try:
        assert is_half_sent.wait(30)
        wait_for("what was sent", lambda: _size_of(part, 600), Deadline.after(30))
    finally:
        killed.kill()
        killed.wait()
        is_over.set()

    image = store.ensure(fetching.stock, deadline=Deadline.after(60))

    assert image.disk.read_bytes() == IMAGE
    assert server.asked(FILE) == ["whole", "bytes=600-"]


def _size_of(path: Path, wanted: int) -> Observation[bool]:
    size = path.stat().st_size if path.exists() else 0
    return Observation(True if size == wanted else None, f"{size} bytes")


def test_local_file_is_used_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "My Bake.qcow2").write_bytes(IMAGE)

    image = open_local(LocalImage(path=tmp_path / "My Bake.qcow2"), Algorithm.SHA256)

    assert image == StockImage(
        name="my-bake",
        digest=f"sha256:{DIGEST}",
        disk=tmp_path / "My Bake.qcow2",
        virtual_bytes=3 << 20,
    )


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (b"", "The file is empty."),
        (b"raw", "The file is no qcow2 image; convert it with `qemu-img convert -O qcow2`."),
        (b"QFI\xfb", "The file is no qcow2 image; convert it with `qemu-img convert -O qcow2`."),
        (a_qcow2(version=4), "The file is a qcow2 of version 4, not 2 or 3."),
        (
            a_qcow2(backing_at=104),
            "The file names a backing file, and so is only a part of an image.",
        ),
        (
            a_qcow2(features=4),
            "The file names an external data file, and so is only a part of an image.",
        ),
        (a_qcow2(method=2), "The file is encrypted; decrypt it with `qemu-img convert`."),
        (a_qcow2(virtual_bytes=0), "The file holds a disk of 0 bytes."),
        (a_qcow2(tables=126), "The file ends after 1000 bytes, and so was cut short."),
    ],
    ids=[
        *("empty", "raw", "magic", "version", "backing-file", "data-file"),
        *("encrypted", "no-disk", "cut-short"),
    ],
)
def test_local_file_that_cannot_be_booted_is_refused(
    tmp_path: Path, content: bytes, trouble: str
) -> None:
    path = tmp_path / "my.qcow2"
    path.write_bytes(content)

    with pytest.raises(BadInputError) as refusal:
        open_local(LocalImage(path=path), Algorithm.SHA256)

    assert str(refusal.value) == f"{path}: {trouble}"


def _absent(path: Path) -> None:
    assert not path.exists()


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _below_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("")


@pytest.mark.parametrize(
    ("make", "trouble"),
    [
        (_absent, "There is no such file."),
        (_below_a_file, "There is no such file."),
        (_loop, "There is no such file."),
        (Path.mkdir, "This is a folder; name the image file in it."),
        (os.mkfifo, "This is no file, but a device, pipe or socket."),
    ],
    ids=["absent", "below-a-file", "loop", "folder", "pipe"],
)
def test_path_at_which_no_file_is_is_refused(
    tmp_path: Path, make: Callable[[Path], None], trouble: str
) -> None:
    path = tmp_path / "folder" / "my.qcow2"
    path.parent.mkdir()
    make(path)

    with pytest.raises(BadInputError) as refusal:
        open_local(LocalImage(path=path), Algorithm.SHA256)

    assert str(refusal.value) == f"{path}: {trouble}"


@pytest.mark.parametrize("refused", ["open", "stat"])
def test_local_file_that_cannot_be_read_is_refused_with_the_systems_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Root may read everything, so the system's refusal is played."""
    path = tmp_path / "my.qcow2"
    path.write_bytes(IMAGE)

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, refused, refuse)

    with pytest.raises(BadInputError) as refusal:
        open_local(LocalImage(path=path), Algorithm.SHA256)

    assert str(refusal.value) == f"{path}: The file cannot be read (Permission denied)."


@pytest.mark.parametrize("name", ["my image", "my\nimage", "-my $(image)", "My.Image"])
def test_local_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.qcow2"
    path.write_bytes(IMAGE)

    image = open_local(LocalImage(path=path), Algorithm.SHA256)

    assert (image.name, image.disk) == ("my-image", path)


def test_leavings_of_downloads_are_removed_when_nobody_downloads(
    fetching: Fetching, server: ImageServer
) -> None:
    server.put(FILE, OTHER_IMAGE)
    fetching.fail()
    (fetching.folder / ".partial/old.part").write_bytes(b"half")
    later = dt.datetime.now(tz=dt.timezone.utc) + dt.timedelta(days=31)
    kept = fetching.store.cache.gc(dt.timedelta(days=60), at=later)

    removals = fetching.store.cache.gc(dt.timedelta(days=30), at=later)

    assert kept == []
    assert [removal.reason for removal in removals] == [
        "it is partial, and 30 days old.",
        "it is refused, and 30 days old.",
    ]
    assert fetching.refused() == {}


def test_download_under_way_keeps_its_part(fetching: Fetching, server: ImageServer) -> None:
    removals: list[Removal] = []

    def collect_meanwhile(handler: Handler) -> None:
        at = dt.datetime.now(tz=dt.timezone.utc) + dt.timedelta(days=1)
        removals.extend(StockStore(fetching.folder).cache.gc(dt.timedelta(), at=at))
        handler.serve(IMAGE)

    server.trouble(FILE, cut_at(600), collect_meanwhile)

    image = fetching.run()

    assert removals == []
    assert image.disk.read_bytes() == IMAGE
