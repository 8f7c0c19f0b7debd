"""A hostile registry: which secrets it gets, how long it can delay, and how much it can store."""

from __future__ import annotations

import base64
import gzip
import json
import os
import stat
import struct
import time
import zipfile
from typing import TYPE_CHECKING

import pytest

from harness.artifact_cache import KEY_DIGITS
from harness.cli import main
from harness.progress import Progress, ProgressEvent, Stage
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline
from harness.shared_store import StoreError
from harness.shared_store.answers import FILE_TYPE, REST_TYPE, TITLE
from harness.shared_store.client import Patience, RegistryClient
from harness.shared_store.source import SharedCache
from suites.fakes.clock import FakeClock
from suites.host.shared_store.adversary import NAME, Adversary, Request, adversary, rest, zipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.provisioning.wait import Clock
    from suites.host.shared_store.adversary import Answer

SECRET = base64.b64encode(b"user:hunter2").decode()
BASIC = f"Basic {SECRET}"
QUICK = Patience(tries=2, pause_s=0.01, timeout_s=0.4, stall_bytes=1000)
DISK = {"disk.qcow2": os.urandom(20_000)}


@pytest.fixture
def registry() -> Iterator[Adversary]:
    with adversary() as made:
        made.have(DISK)
        yield made


@pytest.fixture
def other() -> Iterator[Adversary]:
    """Yield another host, which must not get the credentials of the registry."""
    with adversary() as made:
        yield made


@pytest.fixture(autouse=True)
def login(registry: Adversary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a Docker configuration that has a login for this registry only."""
    logins = {"auths": {f"127.0.0.1:{registry.port}": {"auth": SECRET}}}
    (tmp_path / "config.json").write_text(json.dumps(logins))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Puller:
    """Pulls from a registry into a folder, and keeps the reported events."""

    def __init__(self, registry: Adversary, folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self.client = RegistryClient(registry.address, patience=QUICK, clock=clock)
        self.into = folder / "into"
        self.into.mkdir()
        self.partial = folder / "partial"
        self.cache = SharedCache(client=self.client, repository="images", partial=self.partial)
        self.events: list[ProgressEvent] = []

    def pull(self) -> bool:
        return self.cache.pull(NAME, self.into, progress=Progress("x"))

    def fail(self) -> str:
        with pytest.raises(StoreError) as caught:
            self.pull()
        return str(caught.value)

    def fetch(self, within_s: float = 60.0) -> bool:
        return self.cache.fetch(
            NAME,
            self.into,
            inputs={"qemu": "7.2"},
            progress=Progress("x", self.events.append),
            deadline=Deadline.after(within_s),
        )

    def said(self) -> str:
        return "\n".join(each.message for each in self.events if each.stage is Stage.REFUSED)

    def files(self) -> list[str]:
        return sorted(path.relative_to(self.into).as_posix() for path in self.into.rglob("*"))


@pytest.fixture
def puller(registry: Adversary, tmp_path: Path) -> Puller:
    return Puller(registry, tmp_path)


def only(part: str, answer: Answer) -> Answer:
    """Return an answer that applies only to requests whose path contains `part`."""
    return lambda request: part in request.path and answer(request)


def wants_login(then: Answer, challenge: str = 'Basic realm="r"') -> Answer:
    """Return an answer that asks for the credentials before `then` answers."""

    def answer(request: Request) -> bool:
        if request.headers.get("Authorization") is None and "/token" not in request.path:
            return request.reply(401, WWW_Authenticate=challenge)
        return then(request)

    return answer


def test_password_reaches_the_registry(registry: Adversary, puller: Puller) -> None:
    registry.lie = wants_login(lambda _request: False)

    assert puller.pull()

    assert registry.proofs == {BASIC}
    assert (puller.into / "disk.qcow2").read_bytes() == DISK["disk.qcow2"]


def test_refresh_token_of_docker_login_is_exchanged_for_a_token(
    registry: Adversary, tmp_path: Path
) -> None:
    login = {"auth": base64.b64encode(b"00000000-0000:").decode(), "identitytoken": "r3fresh"}
    auths = {f"127.0.0.1:{registry.port}": login}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    forms = []

    def answer(request: Request) -> bool:
        if request.path != "/token":
            return False
        forms.append(request.rfile.read(int(request.headers["Content-Length"])))
        return request.reply(200, b'{"access_token": "t0k"}')

    registry.lie = wants_login(answer, f'Bearer realm="{registry.url}/token",service="s"')
    client = RegistryClient(registry.address)

    assert client.tags("images") == [NAME]

    assert b"refresh_token=r3fresh" in forms[0].split(b"&")
    assert registry.proofs == {"Bearer t0k"}


def test_client_finds_the_basic_challenge_among_several_www_authenticate_headers(
    registry: Adversary, puller: Puller
) -> None:
    def lie(request: Request) -> bool:
        if request.headers.get("Authorization") is not None:
            return False
        request.send_response(401)
        for challenge in ("Negotiate", 'Basic realm="r"'):
            request.send_header("WWW-Authenticate", challenge)
        request.send_header("Content-Length", "0")
        request.end_headers()
        return True

    registry.lie = lie

    assert puller.pull()

    assert registry.proofs == {BASIC}


def test_password_is_sent_again_after_a_redirect_within_the_registry(
    registry: Adversary, puller: Puller
) -> None:
    def lie(request: Request) -> bool:
        if request.path.startswith("/v2/t/images/tags"):
            return request.reply(307, Location="/v2/canonical/tags/list")
        return request.reply(200, b'{"tags": ["a"]}')

    registry.lie = wants_login(lie)

    assert puller.client.tags("images") == ["a"]


def test_push_checks_a_redirected_blob_only_with_head_requests(
    registry: Adversary, other: Adversary, puller: Puller
) -> None:
    """A signed URL of a blob in a cloud's storage is valid for one method only."""
    registry.lie = lambda request: request.reply(307, Location=f"{other.url}/x")
    other.lie = lambda request: request.reply(200 if request.command == "HEAD" else 403)

    _push(puller)

    assert [command for command, _, _ in other.seen] == ["HEAD"]


@pytest.mark.parametrize(
    ("location", "pushed"),
    [
        ("/v2/u?_state=a", "/v2/u?_state=a&digest=sha256:1"),
        ("id", "/v2/t/images/blobs/uploads/id?digest=sha256:1"),
        ("", None),
    ],
)
def test_upload_is_sent_to_the_location_header_of_the_registry(
    registry: Adversary, puller: Puller, location: str, pushed: str | None
) -> None:
    def lie(request: Request) -> bool:
        request.rfile.read(int(request.headers.get("Content-Length") or 0))
        status = {"HEAD": 404, "POST": 202}.get(request.command, 201)
        return request.reply(status, Location=location)

    registry.lie = lie

    if pushed is None:
        with pytest.raises(StoreError, match="does not say to which URL it is to be pushed"):
            _push(puller)
    else:
        _push(puller)

    assert [path for command, path, _ in registry.seen if command == "PUT"] == [
        each for each in (pushed,) if each is not None
    ]


def _upload(other: str) -> Answer:
    def answer(request: Request) -> bool:
        if request.command == "HEAD":
            return request.reply(404)
        request.rfile.read(int(request.headers.get("Content-Length") or 0))
        return request.reply(202, Location=f"{other}/upload?x=1")

    return answer


def _push(puller: Puller) -> None:
    puller.into.joinpath("file").write_bytes(b"content")
    puller.client.push_blob("images", puller.into / "file", "sha256:1", "it")


@pytest.mark.parametrize(
    ("lie", "act"),
    [
        *(
            pytest.param(
                lambda url, status=status: (
                    lambda request: request.reply(status, Location=f"{url}/x")
                ),
                act,
                id=f"{status} {name}",
            )
            for status in (301, 302, 303, 307, 308)
            for name, act in {
                "manifest": lambda puller: puller.client.manifest("images", "x"),
                "blob": lambda puller: puller.client.small_blob("images", "x", "it"),
                "tags": lambda puller: puller.client.tags("images"),
                "delete": lambda puller: puller.client.delete("images", "x", "it"),
                "upload": _push,
            }.items()
        ),
        pytest.param(
            lambda url: lambda request: request.reply(200, b'{"tags": ["a"]}', Link=f"<{url}/x>"),
            lambda puller: puller.client.tags("images"),
            id="Link of a next page",
        ),
        pytest.param(_upload, _push, id="Location of an upload"),
    ],
)
def test_password_is_not_sent_to_an_address_that_the_registry_chose(
    registry: Adversary,
    other: Adversary,
    puller: Puller,
    lie: Callable[[str], Answer],
    act: Callable[[Puller], object],
) -> None:
    registry.lie = wants_login(lie(other.url))
    # The other host also asks for a password.
    other.lie = lambda request: request.reply(401, WWW_Authenticate='Basic realm="r"')

    with pytest.raises(StoreError):
        act(puller)

    assert registry.proofs == {BASIC}
    assert other.proofs == set()


@pytest.mark.parametrize("target", ["{url}/v2/t/images/tags/list?n=1", "http://[::1", "file:///x"])
def test_next_page_of_tags_on_another_host_is_not_requested(
    registry: Adversary, other: Adversary, puller: Puller, target: str
) -> None:
    link = f"<{target.format(url=other.url)}>; rel=next"
    registry.lie = lambda request: request.reply(200, b'{"tags": ["a"]}', Link=link)

    with pytest.raises(
        StoreError, match="sent for the next page of the list of 'images' is refused"
    ):
        puller.client.tags("images")

    assert other.seen == []


@pytest.mark.parametrize("is_redirected", [False, True])
def test_password_is_not_sent_to_a_token_service_on_another_host_without_https(
    registry: Adversary, other: Adversary, puller: Puller, *, is_redirected: bool
) -> None:
    realm = f"{registry.url if is_redirected else other.url}/token"
    registry.lie = wants_login(
        only("/token", lambda request: request.reply(302, Location=f"{other.url}/token")),
        f'Bearer realm="{realm}",service="s"',
    )
    other.lie = lambda request: request.reply(200, b'{"token": "t0k"}')

    assert puller.pull()

    assert other.proofs == set()
    assert registry.proofs - {BASIC} == {"Bearer t0k"}


@pytest.mark.parametrize(
    "challenge", ['Basic realm="r"', 'Bearer realm="{url}/token",service="s"']
)
def test_second_401_ends_the_request(registry: Adversary, puller: Puller, challenge: str) -> None:
    answer = challenge.format(url=registry.url)

    def lie(request: Request) -> bool:
        if "/token" in request.path:
            return request.reply(200, b'{"token": "t"}')
        return request.reply(401, WWW_Authenticate=answer)

    registry.lie = lie

    said = puller.fail()

    assert "answered 401 Unauthorized to the request for the manifest" in said
    assert "the registry refused the log-in; log in by `docker login 127.0.0.1:" in said
    assert len([path for _, path, _ in registry.seen if "/token" not in path]) == 2


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("file:///etc/passwd", "is not a URL of http or https"),
        ("ftp://127.0.0.1:1/x", "is not a URL of http or https"),
        ("gopher://x", "is not a URL of http or https"),
        ("http://[::1", "is not a URL (Invalid IPv6 URL)"),
        ("http://127.0.0.1:99999/", "is not a URL (Port out of range 0-65535)"),
        ("http://user:pw@127.0.0.1/", "is not the URL of a host"),
        ("//", "leads to '//' once more"),
    ],
)
def test_invalid_redirect_is_reported_in_a_sentence(
    registry: Adversary, puller: Puller, location: str, why: str
) -> None:
    registry.lie = lambda request: request.reply(302, Location=location)

    said = puller.fail()

    assert "answered 302 to the request for the manifest" in said
    assert why in said


def test_body_of_a_redirect_is_not_read(registry: Adversary, puller: Puller) -> None:
    target = f"{registry.url}/v2/t/images/manifests/2"
    head = f"HTTP/1.1 302 Found\r\nLocation: {target}\r\n\r\n".encode()
    registry.lie = only(NAME, lambda request: request.flood(head, bytes(1 << 16)))

    assert puller.pull()

    assert registry.flooded < 32 << 20


def _with(layers: Callable[[Adversary], list[dict[str, object]]]) -> Callable[[Adversary], None]:
    """Return a function that stores the disk and additional layers in a registry."""
    return lambda registry: registry.have(DISK, *layers(registry))


def _with_rest(archive: bytes) -> Callable[[Adversary], None]:
    return _with(lambda registry: [rest(registry, archive)])


def _with_trailing_data(registry: Adversary) -> None:
    packed = gzip.compress(b"x", 1) + b"more"
    registry.have({"a": b"x"})
    registry.manifest["layers"][0] |= {"digest": registry.blob(packed), "size": len(packed)}


def _with_disk_on(name: str) -> Callable[[Adversary], None]:
    """Return a function that stores a disk with a backing file in a registry."""
    header = struct.pack(">4sIQIIQIIQ", b"QFI\xfb", 3, 104, len(name), 16, 1 << 20, 0, 0, 0)
    disk = header.ljust(104, b"\0") + name.encode()
    return lambda registry: registry.have({"disk.qcow2": disk.ljust(4096, b"\0")})


def _with_large_layer(registry: Adversary) -> None:
    registry.manifest["layers"][0]["size"] = 10**15


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        pytest.param(
            _with(lambda registry: [registry.layer("more", b"x")]),
            "has the file 'more', which its description does not list",
            id="layer not listed",
        ),
        pytest.param(
            _with_large_layer,
            "for the file 'disk.qcow2', which has only 20000",
            id="layer too large",
        ),
        pytest.param(_with_trailing_data, "goes on after the end of the file", id="trailing data"),
        pytest.param(
            _with_rest(zipped({f"{number}": bytes(100 << 20) for number in range(3)})),
            "HARNESS_LIMIT_STORE_OTHER_MIB",
            id="zip bomb",
        ),
        pytest.param(
            _with_rest(zipped({f"{number}": b"" for number in range(10_001)})),
            "HARNESS_LIMIT_STORE_OTHER_FILES",
            id="many files",
        ),
        pytest.param(
            _with_rest(zipped({f"{number:0250}": b"" for number in range(20_000)})),
            "its list of files is too long",
            id="long list of files",
        ),
        pytest.param(
            _with_rest(zipped({"../a": b"x"})),
            "'../a', which it may not contain",
            id="path outside",
        ),
        pytest.param(
            lambda registry: registry.have(
                {"1/initrd.img": b"x"}, rest(registry, zipped({"../a": b"x"}))
            ),
            "'../a', which it may not contain",
            id="path outside, after a folder",
        ),
        pytest.param(
            _with_rest(zipped({"disk.qcow2": b"x"})),
            "lists the file 'disk.qcow2' twice",
            id="file twice",
        ),
        pytest.param(
            _with_rest(zipped({"a": b"/etc/passwd"}, mode=stat.S_IFLNK | 0o777)),
            "which is not a plain file",
            id="symbolic link",
        ),
        pytest.param(
            _with_rest(zipped({"a": b""}, mode=stat.S_IFCHR | 0o666)),
            "which is not a plain file",
            id="device",
        ),
        pytest.param(
            _with_rest(zipped({"a": b"x"}, method=zipfile.ZIP_LZMA)),
            "compressed by a method that is not allowed here",
            id="unknown method of packing",
        ),
        pytest.param(
            _with_disk_on("/etc/shadow"),
            "has the backing file '/etc/shadow', so QEMU would open another file of this host",
            id="disk on a file of the host",
        ),
        pytest.param(_with_disk_on("a" * 2000), "is damaged: The name of", id="damaged disk"),
        pytest.param(_with_rest(b"PK\5\6" + bytes(18)[:17]), "can't be unpacked", id="no zip"),
    ],
)
def test_pulled_artifact_that_differs_from_its_description_is_refused(
    registry: Adversary, puller: Puller, lie: Callable[[Adversary], None], why: str
) -> None:
    lie(registry)

    assert not puller.fetch()

    assert why in puller.said()
    assert puller.said().endswith(f" This host makes '{NAME}'.")
    assert "\n" not in puller.said()
    assert puller.files() == []
    assert sum(path.stat().st_size for path in puller.partial.glob("*")) < 100_000


def test_pulled_disk_whose_backing_file_is_a_host_file_is_deleted(
    registry: Adversary, puller: Puller
) -> None:
    _with_disk_on("/etc/shadow")(registry)

    assert not puller.fetch()

    assert list(puller.partial.iterdir()) == []


def test_decompression_bomb_is_refused_but_a_sparse_file_is_pulled(
    registry: Adversary, puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only holes may exceed the packed size: the memory of a guest is mostly zeros."""
    monkeypatch.setattr("harness.shared_store.packing._FREE_BYTES", 1 << 20)
    registry.have({"ram": bytes(20 << 20) + os.urandom(1000)})
    assert puller.pull()
    assert (puller.into / "ram").stat().st_blocks * 512 < 1 << 20

    registry.have({"bomb": b"\1" * (20 << 20)})

    assert "HARNESS_LIMIT_STORE_DATA_TIMES" in puller.fail()
    assert (puller.into / "bomb").stat().st_size < 6 << 20


def test_artifact_with_two_identical_files_is_pulled(registry: Adversary, puller: Puller) -> None:
    files = {"1/initrd.img": b"same", "2/initrd.img": b"same", "empty": b""}
    registry.have(files, rest(registry, zipped({"evidence/console.log": b"booted"})))

    assert puller.pull()

    for title, content in {**files, "evidence/console.log": b"booted"}.items():
        assert (puller.into / title).read_bytes() == content
    assert list(puller.partial.iterdir()) == []


def _is_disk(request: Request) -> bool:
    return request.path.endswith(request.registry.manifest["layers"][0]["digest"])


def test_pull_continues_after_dropped_connections_if_each_connection_sends_data(
    registry: Adversary, puller: Puller
) -> None:
    """The number of dropped connections is ten times the limit of tries."""

    def lie(request: Request) -> bool:
        if not _is_disk(request):
            return False
        blob = registry.blobs[request.path.rpartition("/")[2]]
        begin = int(request.headers.get("Range", "bytes=0-")[6:-1])
        request.send_response(206 if begin else 200)
        request.send_header("Content-Range", f"bytes {begin}-{len(blob) - 1}/{len(blob)}")
        request.send_header("Content-Length", str(len(blob) - begin))
        request.end_headers()
        request.wfile.write(blob[begin : begin + 1000])
        request.close_connection = True
        return True

    registry.lie = lie

    assert puller.pull()

    assert (puller.into / "disk.qcow2").read_bytes() == DISK["disk.qcow2"]
    assert len([path for _, path, _ in registry.seen if "/blobs/" in path]) > 20


@pytest.mark.parametrize("is_compressible", [False, True])
def test_pull_succeeds_if_the_registry_ignores_range_requests(
    registry: Adversary, puller: Puller, *, is_compressible: bool
) -> None:
    """The registry ignores the requested range and answers 200."""
    content = bytes(3 << 20) if is_compressible else DISK["disk.qcow2"]
    registry.have({"disk.qcow2": content})
    answers: list[bool] = []

    def lie(request: Request) -> bool:
        if not _is_disk(request):
            return False
        blob = registry.blobs[request.path.rpartition("/")[2]]
        answers.append("Range" in request.headers)
        sent = len(blob) if len(answers) == 3 else len(blob) // 2 + len(answers)
        request.send_response(200)
        request.send_header("Content-Length", str(len(blob)))
        request.end_headers()
        request.wfile.write(blob[:sent])
        request.close_connection = True
        return True

    registry.lie = lie

    assert puller.pull()

    assert answers == [False, True, True]
    assert (puller.into / "disk.qcow2").read_bytes() == content
    assert list(puller.partial.iterdir()) == []


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_blob_is_downloaded_again_if_the_partial_download_is_damaged(
    registry: Adversary, puller: Puller, size: int
) -> None:
    """After a crash of the host, the end of a file may have zeros."""
    digest = registry.manifest["layers"][0]["digest"]
    puller.partial.mkdir()
    part = puller.partial / f"{NAME}.{digest.removeprefix('sha256:')[:KEY_DIGITS]}"
    part.write_bytes(bytes(size))

    def lie(request: Request) -> bool:
        blob = registry.blobs[digest]
        if not _is_disk(request) or "Range" not in request.headers:
            return False
        extent = f"bytes {size}-{len(blob) - 1}/{len(blob)}"
        return request.reply(206, blob[size:], Content_Range=extent)

    registry.lie = lie

    assert puller.pull()

    assert (puller.into / "disk.qcow2").read_bytes() == DISK["disk.qcow2"]


@pytest.mark.parametrize("extent", ["bytes 0-19999/20000", "bytes 9-19999/20000", "junk", ""])
def test_answer_with_a_wrong_content_range_is_refused(
    registry: Adversary, puller: Puller, extent: str
) -> None:
    """The data that were received earlier are kept, and the next pull continues after them."""

    def lie(request: Request) -> bool:
        if not _is_disk(request):
            return False
        blob = registry.blobs[request.path.rpartition("/")[2]]
        if "Range" in request.headers:
            return request.reply(206, blob, Content_Range=extent)
        request.send_response(200)
        request.send_header("Content-Length", str(len(blob)))
        request.end_headers()
        request.wfile.write(blob[:1000])
        request.close_connection = True
        return True

    registry.lie = lie

    assert "sent a wrong range of the file 'disk.qcow2'" in puller.fail()
    assert [path.stat().st_size for path in puller.partial.iterdir()] == [1000]

    registry.lie = lambda _request: False
    assert puller.pull()
    assert (puller.into / "disk.qcow2").read_bytes() == DISK["disk.qcow2"]


def test_artifact_description_with_a_wrong_digest_is_refused(
    registry: Adversary, puller: Puller
) -> None:
    """The description lists the digests of all files, so its own digest must be right."""
    digest = registry.manifest["config"]["digest"]
    registry.blobs[digest] = registry.blobs[digest].replace(b"7.2", b"8.2")

    assert not puller.fetch()

    assert f"The description of '{NAME}' in the store" in puller.said()
    assert "is damaged: its digest is sha256:" in puller.said()
    assert puller.files() == []


def _drip_after(head: str, *, is_resumed: bool = False) -> Answer:
    def lie(request: Request) -> bool:
        begin = int(request.headers.get("Range", "bytes=0-")[6:-1])
        if is_resumed and begin:
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {begin}-99998/99999")
            request.end_headers()
        else:
            request.wfile.write(head.encode())
        return request.drip(bytes(3000))

    return lie


OK = "HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("part", "head", "is_resumed"),
    [
        ("/manifests/", "", False),
        ("/manifests/", f"{OK}X: ", False),
        ("/manifests/", f"{OK}Content-Length: 3000\r\n\r\n", False),
        ("/manifests/", f"{OK}Transfer-Encoding: chunked\r\n\r\n1000\r\n", False),
        ("/blobs/", f"{OK}Content-Length: 3000\r\n\r\n", False),
        ("/blobs/", f"{OK}Content-Length: 3000\r\n\r\n", True),
    ],
)
def test_too_slow_answer_of_the_registry_ends_the_request(
    registry: Adversary, puller: Puller, part: str, head: str, *, is_resumed: bool
) -> None:
    answer = _drip_after(head, is_resumed=is_resumed)
    registry.lie = lambda request: (
        part in request.path and (part != "/blobs/" or _is_disk(request)) and answer(request)
    )
    begun = time.monotonic()

    said = puller.fail()

    assert "sent fewer than 1000 bytes within 0.4 s" in said
    assert ("in 2 tries" if part == "/manifests/" else "2 times in a row") in said
    assert time.monotonic() - begun < 20


def test_endless_answer_headers_end_at_the_time_limit(
    registry: Adversary, puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_STORE_SECONDS", "1")
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    registry.lie = lambda request: request.flood(head, b"X: y\r\n" * 1000)

    assert "HARNESS_LIMIT_STORE_SECONDS" in puller.fail()


def test_slow_pull_is_ended_at_half_of_the_time_limit(registry: Adversary, puller: Puller) -> None:
    """The registry is fast enough to continue but never finishes."""
    registry.have({"disk.qcow2": bytes(1 << 20) + os.urandom(1 << 20)})

    def slowly(request: Request) -> bool:
        if not _is_disk(request):
            return False
        request.send_response(200)
        request.send_header("Content-Length", str(registry.manifest["layers"][0]["size"]))
        request.end_headers()
        while not registry.is_over.wait(0.05):
            request.wfile.write(bytes(2000))
        return True

    registry.lie = slowly
    begun = time.monotonic()

    assert not puller.fetch(within_s=4.0)

    assert 1.5 < time.monotonic() - begun < 3.5
    assert "before the deadline" in puller.said()


@pytest.mark.parametrize(
    ("asked", "pauses"),
    [
        ("7", [7.0]),
        ("Fri, 21 Aug 2026 12:00:40 GMT", [40.0]),
        ("Fri, 21 Aug 2026 11:00:00 GMT", [0.0]),
        ("soon", [0.01]),
    ],
)
def test_client_waits_for_the_time_in_the_retry_after_header(
    registry: Adversary, tmp_path: Path, asked: str, pauses: list[float]
) -> None:
    clock = FakeClock()
    answers = iter([429 if asked == "7" else 503])
    registry.lie = lambda request: (
        (status := next(answers, 0)) != 0 and request.reply(status, Retry_After=asked)
    )

    assert Puller(registry, tmp_path, clock).pull()

    assert clock.sleeps == pauses


def test_too_long_retry_after_time_ends_the_pull(registry: Adversary, tmp_path: Path) -> None:
    clock = FakeClock()
    registry.lie = lambda request: request.reply(429, Retry_After="301")

    said = Puller(registry, tmp_path, clock).fail()

    assert "answered 429 Too Many Requests" in said
    assert "which is too long; try later" in said
    assert clock.sleeps == []


def test_registry_answer_above_the_size_limit_is_refused(
    registry: Adversary, puller: Puller
) -> None:
    registry.lie = lambda request: request.flood(f"{OK}\r\n".encode(), b"[" * (1 << 16))

    assert "HARNESS_LIMIT_STORE_ANSWER_MIB" in puller.fail()

    assert registry.flooded < 64 << 20


def test_list_of_tags_above_the_limit_is_refused(
    registry: Adversary, puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_STORE_TAGS", "20")
    registry.lie = lambda request: request.reply(
        200,
        json.dumps({"tags": [f"a{len(registry.seen)}"]}).encode(),
        Link=f"</v2/t/images/tags/list?last={len(registry.seen)}>" * (len(registry.seen) < 100),
    )

    with pytest.raises(StoreError, match="HARNESS_LIMIT_STORE_TAGS"):
        puller.client.tags("images")


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (lambda request: request.wfile.write(b"HTTP/1.1 \x1b]0;x\x07\r\n\r\n"), r"\x1b]0;x\x07"),
        (lambda request: request.reply(500, b""), "answered 500 Internal Server Error"),
        (
            lambda request: request.wfile.write(
                b"HTTP/1.1 403 \x1b[2J" + b"x" * 60_000 + b"\r\n\r\n"
            ),
            r"answered 403 \x1b[2J",
        ),
        (lambda request: request.reply(200, b'{"layers": [], "layers": []}'), "'layers' twice"),
        (lambda request: request.reply(200, b'{"x": NaN}'), "NaN is not a JSON number"),
        (lambda request: request.wfile.write(b"SSH-2.0\r\n"), "SSH-2.0"),
        (
            lambda request: request.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200),
            "headers",
        ),
    ],
)
def test_invalid_answer_is_reported_in_a_short_sentence(
    registry: Adversary, puller: Puller, lie: Callable[[Request], object], why: str
) -> None:
    def answer(request: Request) -> bool:
        lie(request)
        request.close_connection = True
        return True

    registry.lie = answer

    said = puller.fail()

    assert why in said
    assert "\x1b" not in said
    assert len(said) < 1000


def accepts_upload(receive: Answer) -> Answer:
    """Return an answer that accepts an upload, whose content `receive` then handles."""

    def answer(request: Request) -> bool:
        if request.command == "HEAD":
            return request.reply(404)
        if request.command == "POST":
            return request.reply(202, Location="/upload")
        return receive(request)

    return answer


def test_push_to_a_registry_that_reads_too_slowly_ends_with_an_error(
    registry: Adversary, puller: Puller, tmp_path: Path
) -> None:
    file = tmp_path / "blob"
    file.write_bytes(bytes(16 << 20))

    def receive(request: Request) -> bool:
        while not registry.is_over.wait(0.02) and request.rfile.read(1):
            pass
        return True

    registry.lie = accepts_upload(receive)

    with pytest.raises(StoreError, match=r"can't be reached for it in 2 tries: "):
        puller.client.push_blob("images", file, "sha256:1", "it")


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (413, "answered 413 .*limits the size of uploads; raise that limit"),
        (507, "answered 507 .*the registry's disk is full"),
        (201, "can't be reached for it in 2 tries: "),
    ],
)
def test_early_answer_during_an_upload_is_reported(
    registry: Adversary, puller: Puller, tmp_path: Path, status: int, why: str
) -> None:
    file = tmp_path / "blob"
    file.write_bytes(bytes(16 << 20))

    def receive(request: Request) -> bool:
        request.close_connection = True
        return request.reply(status)

    registry.lie = accepts_upload(receive)

    with pytest.raises(StoreError, match=why):
        puller.client.push_blob("images", file, "sha256:1", "it")


def test_pulled_artifact_with_a_malformed_description_is_not_stored_in_the_cache(
    registry: Adversary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its files are valid, but its description does not describe an image."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))

    assert main(["store", "pull", f"--store={registry.url}/t"]) == 2

    assert "is malformed: " in capsys.readouterr().err
    assert [path for path in (tmp_path / "xdg").rglob(NAME) if path.parent.name != ".work"] == []


def test_control_characters_in_titles_of_layers_are_escaped(
    registry: Adversary, puller: Puller
) -> None:
    registry.manifest["layers"].append(
        {
            "mediaType": FILE_TYPE,
            "digest": f"sha256:{0:064}",
            "size": 1,
            "annotations": {TITLE: "\x1b[2J"},
        }
    )

    assert r"'\x1b[2J'" in puller.fail()
    assert REST_TYPE not in puller.files()
