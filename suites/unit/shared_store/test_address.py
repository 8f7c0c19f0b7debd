"""The address of a shared store, and what its registry may answer."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
import urllib.response
from email.message import Message
from typing import TYPE_CHECKING, Any, cast

import pytest
from typing_extensions import override

from harness.artifact_cache import FileFact
from harness.cli import main
from harness.errors import BadInputError
from harness.http_requests import HttpOpener
from harness.progress import Progress
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline
from harness.shared_store import Address, StoreError
from harness.shared_store.answers import CREATED, FILE_TYPE, TITLE, read_files
from harness.shared_store.client import MANIFEST_TYPE, Patience, RegistryClient
from harness.shared_store.packing import DataBudget, unpack_file
from harness.shared_store.source import ARTIFACT_TYPE, SharedCache
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    import http.client
    from collections.abc import Mapping
    from pathlib import Path

    from harness.http_requests import Pace
    from harness.provisioning.wait import Clock

DIGEST = f"sha256:{0:064}"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("registry.example", "https://registry.example/v2/gpu-node-harness/images/tags/list"),
        ("http://127.0.0.1:5000/", "http://127.0.0.1:5000/v2/gpu-node-harness/images/tags/list"),
        ("https://ghcr.io/team/ci-1", "https://ghcr.io/v2/team/ci-1/images/tags/list"),
    ],
)
def test_address_consists_of_a_registry_and_a_prefix(text: str, url: str) -> None:
    assert Address.parse(text).url("images", "tags/list") == url


@pytest.mark.parametrize(
    "text", ["", "ftp://x", "host/UPPER", "host/a//b", "host:0", "host:65536", "x" * 2000]
)
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match=r"--store: .* is not the address of a registry"):
        Address.parse(text)


def test_artifact_that_names_a_file_outside_its_folder_is_refused() -> None:
    with pytest.raises(StoreError, match="which it may not contain"):
        read_files(described({"../outside": 1}), "image-1")


def described(sizes: Mapping[str, int]) -> bytes:
    """Return the description of a folder with files of these sizes."""
    files = {title: {"size": size, "sha256": "0" * 64} for title, size in sizes.items()}
    return json.dumps({"files": files}).encode()


@pytest.mark.parametrize(
    ("sizes", "limit"),
    [
        ({"a": 60 << 30, "b": 60 << 30}, "STORE_ARTIFACT_MIB"),
        ({f"a{number}": 1 for number in range(5000)}, "STORE_ARTIFACT_FILES"),
    ],
)
def test_artifact_description_beyond_a_size_limit_is_refused(
    sizes: Mapping[str, int], limit: str
) -> None:
    with pytest.raises(StoreError, match=rf"HARNESS_LIMIT_{limit}"):
        read_files(described(sizes), "image-1")


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b'{"files": 3}',
        b'{"files": {"a": {}}}',
        b'{"files": {"a": {"size": -1, "sha256": "%064d"}}}' % 0,
        b'{"files": {"a": {"size": 1, "sha256": "x"}}}',
        b'{"files": {"\\ud800": {"size": 1, "sha256": "%064d"}}}' % 0,
    ],
)
def test_malformed_description_is_refused(manifest: bytes) -> None:
    with pytest.raises(StoreError, match=r"The manifest of 'image-1' is malformed"):
        read_files(manifest, "image-1")


def test_error_for_a_file_that_is_not_gzip_mentions_the_file(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"not gzip")

    with pytest.raises(StoreError, match=r"The file 'disk' of 'image-1' can't be decompressed"):
        unpack_file(
            tmp_path / "part",
            tmp_path / "disk",
            FileFact(size=8, sha256="x"),
            "image-1",
            DataBudget("image-1", 8),
        )


@pytest.mark.parametrize(
    "text", ["https://user:hunter2@registry.example/team", "user:hunter2@registry.example"]
)
def test_password_in_an_address_is_refused_and_not_printed(text: str) -> None:
    with pytest.raises(BadInputError, match="docker login") as caught:
        Address.parse(text)

    assert "hunter2" not in str(caught.value)


class OneAnswer(HttpOpener):
    """Replaces the network: gives each request the same answer."""

    def __init__(self, body: bytes, **headers: str) -> None:
        super().__init__()
        self.body = body
        self.headers = Message()
        for name, value in headers.items():
            self.headers[name] = value
        self.requests: list[str] = []
        self.statuses: list[int] = []
        self.accepted: set[str | None] = set()

    @override
    def open(self, request: urllib.request.Request, pace: Pace) -> http.client.HTTPResponse:
        assert pace.seconds
        self.requests.append(request.full_url)
        self.accepted.add(request.get_header("Accept"))
        assert len(self.requests) < 5, "It asks for ever."
        if self.statuses:
            url, status = request.full_url, self.statuses.pop(0)
            raise urllib.error.HTTPError(url, status, "", self.headers, io.BytesIO())
        answer: Any = urllib.response.addinfourl(io.BytesIO(self.body), self.headers, "", 200)
        answer.read1 = answer.read
        return cast("http.client.HTTPResponse", answer)


def a_client(answer: OneAnswer, *, tries: int = 1, clock: Clock = SYSTEM_CLOCK) -> RegistryClient:
    patience = Patience(tries=tries, pause_s=0.0)
    address = Address.parse("registry.example")
    return RegistryClient(address, patience=patience, opener=answer, clock=clock)


@pytest.mark.parametrize("tag", ["a/b", "", ".."])
def test_tag_that_is_empty_or_a_path_is_refused(tag: str) -> None:
    client = a_client(OneAnswer(json.dumps({"tags": ["debian-12-1", tag]}).encode()))

    with pytest.raises(StoreError, match="is not a valid tag"):
        client.tags("images")


@pytest.mark.parametrize(
    "body", [b"{}", b'{"errors": [{"code": "DENIED"}]}', b'{"tags": ""}', b'{"tags": false}']
)
def test_answer_without_a_list_of_tags_is_refused(body: bytes) -> None:
    with pytest.raises(StoreError, match="'tags' is not a JSON list"):
        a_client(OneAnswer(body)).tags("images")


def test_repository_whose_list_of_tags_is_null_has_no_tags() -> None:
    assert a_client(OneAnswer(b'{"name": "images", "tags": null}')).tags("images") == []


def test_request_for_a_manifest_accepts_only_its_media_type() -> None:
    answer = OneAnswer(b"{}")

    assert a_client(answer).manifest("images", "a") is not None

    assert answer.accepted == {MANIFEST_TYPE}


@pytest.mark.parametrize(
    ("statuses", "asked", "slept"),
    [([503, 503], "7", [7.0, 7.0]), ([503] * 3, "7", [7.0, 7.0]), ([503], "50", [])],
    ids=["kept", "three tries", "beyond the deadline"],
)
def test_request_is_repeated_after_the_pause_that_the_registry_asks_for(
    statuses: list[int], asked: str, slept: list[float]
) -> None:
    clock, answer = FakeClock(), OneAnswer(b"{}")
    answer.headers["Retry-After"] = asked
    answer.statuses = list(statuses)
    client = a_client(answer, tries=3, clock=clock)
    deadline = Deadline.after(50, clock)

    if len(slept) == len(statuses):
        assert client.manifest("images", "a", deadline=deadline) is not None
    else:
        with pytest.raises(StoreError):
            client.manifest("images", "a", deadline=deadline)

    assert clock.sleeps == slept
    assert answer.statuses == []


def test_partial_file_is_removed_after_a_range_error(tmp_path: Path) -> None:
    part, answer = tmp_path / "part", OneAnswer(b"")
    part.write_bytes(b"12345")
    answer.statuses = [416]

    with pytest.raises(StoreError, match="is truncated"):
        a_client(answer).fetch_blob(
            "images", "sha256:x", 10, part, what="it", progress=lambda _: None
        )

    assert not part.exists()


@pytest.mark.parametrize("link", ["<?last=a>; rel=next", "no link"])
def test_list_of_tags_ends_if_its_next_page_has_no_new_tag(link: str) -> None:
    client = a_client(OneAnswer(b'{"tags": ["a", "b"]}', Link=link))

    assert client.tags("images") == ["a", "b"]


def test_list_of_several_pages_has_the_tags_of_all_pages() -> None:
    class Paged(OneAnswer):
        @override
        def open(self, request: urllib.request.Request, pace: Pace) -> http.client.HTTPResponse:
            pages = [b'{"tags": ["b", "a"]}', b'{"tags": ["c"]}', b'{"tags": ["a", "d"]}']
            number = len(self.requests)
            self.body = pages[number]
            del self.headers["Link"]
            if number + 1 < len(pages):
                self.headers["Link"] = f"<?last={number}>; rel=next"
            return super().open(request, pace)

    assert a_client(Paged(b"")).tags("images") == ["a", "b", "c", "d"]


def test_too_long_answer_is_read_only_one_byte_beyond_the_blob_size(tmp_path: Path) -> None:
    got: list[int] = []
    client = a_client(OneAnswer(bytes(5 << 20)))

    with pytest.raises(StoreError, match="damaged"):
        client.fetch_blob(
            "images", "sha256:x", 10, tmp_path / "part", what="it", progress=got.append
        )

    assert sum(got) == 11


def test_client_gives_up_after_repeated_truncated_answers_without_range_support(
    tmp_path: Path,
) -> None:
    """Bytes that an earlier try had already received are not progress."""

    class Breaking(OneAnswer):
        @override
        def open(self, request: urllib.request.Request, pace: Pace) -> http.client.HTTPResponse:
            self.body = b"123" if len(self.requests) % 2 else b"12345"
            return super().open(request, pace)

    client = a_client(Breaking(b""), tries=3)

    with pytest.raises(StoreError, match=r"ended early after 3 of 10 bytes, 3 times in a row"):
        client.fetch_blob(
            "images", "sha256:x", 10, tmp_path / "part", what="it", progress=lambda _: None
        )

    assert (tmp_path / "part").read_bytes() == b"123"


WRONG_FIELDS: list[dict[str, object]] = [
    {"size": True},
    {"size": 0},
    {"digest": f"sha256:{0:063}"},
    {"annotations": {}},
]
FIELDS = {"annotations": {TITLE: "disk"}, "digest": DIGEST, "size": 5, "mediaType": FILE_TYPE}


def a_manifest(pushed: str | None, kind: str = ARTIFACT_TYPE) -> dict[str, object]:
    notes = {} if pushed is None else {CREATED: pushed}
    return {
        "artifactType": kind,
        "config": {"digest": DIGEST},
        "layers": [FIELDS],
        "annotations": notes,
    }


def a_cache(
    monkeypatch: pytest.MonkeyPatch, folder: Path, **manifests: dict[str, object]
) -> SharedCache:
    """Return a cache whose store has these manifests by their tags."""
    client = RegistryClient(Address.parse("registry.example"))
    monkeypatch.setattr(client, "tags", lambda _repository, **_words: sorted(manifests))
    monkeypatch.setattr(
        client, "manifest", lambda _repository, tag, **_words: (manifests[tag], tag)
    )
    return SharedCache(client=client, repository="images", partial=folder)


def test_images_of_other_programs_are_not_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = a_cache(
        monkeypatch, tmp_path, own=a_manifest(None), other=a_manifest(None, "application/x")
    )

    assert [each.tag for each in cache.ls()] == ["own"]


@pytest.mark.parametrize(
    "changed",
    [
        {"layers": [{}]},
        {"layers": {}},
        {"config": []},
        {"config": {"digest": "sha512:00"}},
        *({"layers": [{**FIELDS, **wrong}]} for wrong in WRONG_FIELDS),
    ],
)
def test_error_mentions_the_artifact_with_a_malformed_manifest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, object]
) -> None:
    cache = a_cache(monkeypatch, tmp_path, own={**a_manifest(None), **changed})

    with pytest.raises(StoreError, match="manifest of 'own' in the store is malformed"):
        cache.ls()


def test_store_gc_removes_old_artifacts_and_keeps_undated_artifacts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An artifact without a date may be new."""
    cache = a_cache(
        monkeypatch, tmp_path, old=a_manifest("2020-01-01T00:00:00"), undated=a_manifest(None)
    )
    removed: list[str] = []
    monkeypatch.setattr(
        cache.client, "delete", lambda _repository, tag, _what: removed.append(tag)
    )
    monkeypatch.setattr(
        "harness.cli.store.open_shared_caches", lambda _settings: {"images": cache}
    )

    assert main(["store", "gc", "--store=registry.example"]) == 0

    assert removed == ["old"]
    assert "Kept images/undated" in capsys.readouterr().out


def test_malformed_description_of_another_artifact_does_not_fail_the_fetch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An error of the store does not fail a test: the test makes the artifact itself."""
    other = a_manifest(None)
    cache = a_cache(monkeypatch, tmp_path, **{"booted-1": other})
    monkeypatch.setattr(
        cache.client,
        "manifest",
        lambda _repository, tag, **_words: (other, tag) if tag == "booted-1" else None,
    )
    monkeypatch.setattr(cache.client, "small_blob", lambda *_words, **_more: b"[]")
    into = tmp_path / "into"
    into.mkdir()

    assert not cache.fetch(
        "booted-2",
        into,
        inputs={"qemu": "7.2"},
        progress=Progress("x"),
        deadline=Deadline.after(60),
    )
