"""The address of a shared store, and how its registry is convinced of who asks."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import io
import json
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
from harness.provisioning.wait import Deadline
from harness.shared_store import Address, StoreError
from harness.shared_store.answers import CREATED, FILE_TYPE, TITLE, read_files
from harness.shared_store.client import Patience, RegistryClient
from harness.shared_store.credentials import Authorizer, read_basic
from harness.shared_store.packing import DataBudget, pack, unpack_file
from harness.shared_store.source import ARTIFACT_TYPE, SharedCache

if TYPE_CHECKING:
    import http.client
    from collections.abc import Mapping
    from pathlib import Path

    from harness.http_requests import Pace

DIGEST = f"sha256:{0:064}"
BASIC = base64.b64encode(b"user:secret").decode()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("registry.example", "https://registry.example/v2/gpu-node-harness/images/tags/list"),
        ("http://127.0.0.1:5000/", "http://127.0.0.1:5000/v2/gpu-node-harness/images/tags/list"),
        ("https://ghcr.io/team/ci-1", "https://ghcr.io/v2/team/ci-1/images/tags/list"),
    ],
)
def test_address_names_a_registry_and_a_prefix(text: str, url: str) -> None:
    assert Address.parse(text).url("images", "tags/list") == url


@pytest.mark.parametrize(
    "text", ["", "ftp://x", "host/UPPER", "host/a//b", "a b", "host?x", "x" * 2000]
)
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match=r"--store: .* is not the address of a registry"):
        Address.parse(text)


def configured(folder: Path, content: object) -> str | None:
    (folder / "config.json").write_text(json.dumps(content))
    return read_basic("registry.example", {"DOCKER_CONFIG": str(folder)})


def test_password_of_docker_login_is_taken(tmp_path: Path) -> None:
    assert configured(tmp_path, {"auths": {"registry.example": {"auth": BASIC}}}) == BASIC


@pytest.mark.parametrize(
    "content", [{}, {"auths": {}}, {"auths": {"registry.example": {}}}, {"auths": 3}, []]
)
def test_without_a_login_there_is_no_password(tmp_path: Path, content: object) -> None:
    assert configured(tmp_path, content) is None
    assert read_basic("registry.example", {"DOCKER_CONFIG": str(tmp_path / "none")}) is None


def no_service(url: str, headers: Mapping[str, str]) -> bytes:
    raise AssertionError(url, headers)


REGISTRY = "https://registry.example/v2/"


def test_basic_challenge_is_answered_once_by_the_password() -> None:
    authorizer = Authorizer(BASIC, registry=REGISTRY, get=no_service)

    assert authorizer.answer('Basic realm="x"', url=REGISTRY)
    assert authorizer.headers(REGISTRY) == {"Authorization": f"Basic {BASIC}"}
    assert not authorizer.answer('Basic realm="x"', url=REGISTRY), "The registry refused it."


@pytest.mark.parametrize(
    "elsewhere",
    [
        "http://registry.example/v2/",
        "https://registry.example:5000/v2/",
        "https://registry.example.org/v2/",
        "https://evil.example/registry.example/v2/",
    ],
)
def test_proof_is_bound_to_scheme_host_and_port(elsewhere: str) -> None:
    authorizer = Authorizer(BASIC, registry=REGISTRY, get=no_service)

    assert not authorizer.answer('Basic realm="x"', url=elsewhere), "Somebody else asks."
    assert authorizer.answer('Basic realm="x"', url=REGISTRY)
    assert authorizer.headers(elsewhere) == {}
    assert authorizer.headers("https://REGISTRY.example:443/v2/a") != {}


class Service:
    """Gives a token, and records how it was asked."""

    def __init__(self, content: bytes = b'{"token": "t0k"}') -> None:
        self.content = content
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    def get(self, url: str, headers: Mapping[str, str]) -> bytes:
        self.asked.append((url, headers))
        return self.content


def test_bearer_challenge_is_answered_by_a_token_of_its_service() -> None:
    service = Service()
    authorizer = Authorizer(BASIC, registry=REGISTRY, get=service.get)

    assert authorizer.answer(
        'Bearer realm="https://auth.example/token",service="reg",scope="repository:a:pull"',
        url=REGISTRY,
    )
    assert service.asked == [
        (
            "https://auth.example/token?service=reg&scope=repository%3Aa%3Apull",
            {"Authorization": f"Basic {BASIC}"},
        )
    ]
    assert authorizer.headers(REGISTRY) == {"Authorization": "Bearer t0k"}


@pytest.mark.parametrize(
    ("registry", "realm", "gets"),
    [
        ("https://r", "https://r/token", "password"),
        ("https://r", "https://auth.example/token", "password"),
        ("https://r", "http://r/token", "nothing"),
        ("https://r", "http://auth.example/token", "nothing"),
        ("https://r", "file:///etc/passwd", "nothing"),
        ("https://r", "ftp://r/token", "nothing"),
        ("https://r", "http://[::1", "nothing"),
        ("https://r", "https://r@evil.example/token", "nothing"),
        ("http://r", "http://r/token", "password"),
        ("http://r", "http://r:8080/token", "request"),
        ("http://r", "http://auth.example/token", "request"),
        ("http://r", "https://auth.example/token", "request"),
    ],
)
def test_password_goes_to_another_service_only_if_all_is_encrypted(
    registry: str, realm: str, gets: str
) -> None:
    service = Service()
    authorizer = Authorizer(BASIC, registry=registry, get=service.get)

    is_answered = authorizer.answer(f'Bearer realm="{realm}"', url=registry)

    assert is_answered == (gets != "nothing")
    assert [bool(headers) for _, headers in service.asked] == {
        "password": [True],
        "request": [False],
        "nothing": [],
    }[gets]


@pytest.mark.parametrize(
    ("challenge", "content"),
    [
        ("", b""),
        ("Negotiate", b""),
        ('Bearer realm="https://a"', b"<html>"),
        ("Bearer x", b"{}"),
        ('Bearer realm="https://a"', b"[" * 100_000),
        ('Bearer realm="https://a"', b'{"token": {"a": 1}}'),
        ('Bearer realm="https://a"', b'{"token": "a\\r\\nX-Header: b"}'),
        ('Bearer realm="https://a"', b'{"token": "' + b"x" * 20_000 + b'"}'),
    ],
)
def test_challenge_that_cannot_be_answered_is_left(challenge: str, content: bytes) -> None:
    authorizer = Authorizer(None, registry=REGISTRY, get=Service(content).get)

    assert not authorizer.answer(challenge, url=REGISTRY)


def a_folder(top: Path, content: bytes) -> Path:
    folder = top / "image-1"
    folder.mkdir()
    (folder / "disk").write_bytes(content)
    (folder / "evidence").mkdir()
    (folder / "evidence/console.log").write_text("booted")
    fact = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"files": {"disk": fact}}))
    return folder


def test_same_folder_gives_the_same_blobs(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, b"content" * 1000)

    first = [(blob.title, blob.digest) for blob in pack(folder, tmp_path)]
    second = [(blob.title, blob.digest) for blob in pack(folder, tmp_path)]

    assert first == second
    assert [title for title, _ in first] == ["disk", "rest"]


@pytest.mark.parametrize(
    "title",
    [
        "../outside",
        "/etc/passwd",
        "//etc/passwd",
        "a/../../outside",
        "manifest.json",
        "./manifest.json",
        "verified.json",
        "a//b",
        "a/",
        "",
        ".",
        "a\0b",
        "a\nb",
        "\x1b[2J",
        "a" * 256,
        "/".join("abcdefghijklmnopq"),
    ],
)
def test_artifact_that_names_a_file_outside_its_folder_is_refused(title: str) -> None:
    with pytest.raises(StoreError, match="which does not belong to it"):
        read_files(described({title: 1}), "image-1")


def described(sizes: Mapping[str, int]) -> bytes:
    """Return the description of a folder with files of these sizes."""
    files = {title: {"size": size, "sha256": "0" * 64} for title, size in sizes.items()}
    return json.dumps({"files": files}).encode()


def test_path_that_is_a_file_and_a_folder_is_refused() -> None:
    with pytest.raises(StoreError, match="names 'a' as a file and as a folder"):
        read_files(described({"a": 1, "a/b": 1}), "image-1")


@pytest.mark.parametrize(
    ("sizes", "limit"),
    [
        ({"a": 60 << 30, "b": 60 << 30}, "STORE_ARTIFACT_MIB"),
        ({f"a{number}": 1 for number in range(5000)}, "STORE_ARTIFACT_FILES"),
    ],
)
def test_description_beyond_a_limit_is_refused(sizes: Mapping[str, int], limit: str) -> None:
    with pytest.raises(StoreError, match=rf"HARNESS_LIMIT_{limit}"):
        read_files(described(sizes), "image-1")


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{}",
        b'{"files": 3}',
        b'{"files": {"a": {}}}',
        b'{"files": {"a": {"size": -1, "sha256": "%064d"}}}' % 0,
        b'{"files": {"a": {"size": 1e999, "sha256": "%064d"}}}' % 0,
        b'{"files": {"a": {"size": 1, "sha256": "x"}}}',
        b'{"files": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"files": {"\\ud800": {"size": 1, "sha256": "%064d"}}}' % 0,
    ],
)
def test_malformed_description_is_refused(manifest: bytes) -> None:
    with pytest.raises(StoreError, match=r"The manifest of 'image-1' is malformed"):
        read_files(manifest, "image-1")


def test_file_that_is_not_gzip_is_refused_by_name(tmp_path: Path) -> None:
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
    """Answers each request the same; stands for the network."""

    def __init__(self, body: bytes, **headers: str) -> None:
        super().__init__()
        self.body = body
        self.headers = Message()
        for name, value in headers.items():
            self.headers[name] = value
        self.requests: list[str] = []

    @override
    def open(self, request: urllib.request.Request, pace: Pace) -> http.client.HTTPResponse:
        assert pace.seconds
        self.requests.append(request.full_url)
        assert len(self.requests) < 5, "It asks for ever."
        answer: Any = urllib.response.addinfourl(io.BytesIO(self.body), self.headers, "", 200)
        answer.read1 = answer.read
        return cast("http.client.HTTPResponse", answer)


def a_client(answer: OneAnswer, address: str = "registry.example") -> RegistryClient:
    return RegistryClient(
        Address.parse(address), patience=Patience(tries=1, pause_s=0.0), opener=answer
    )


@pytest.mark.parametrize("tag", ["../../.ssh", "a/b", "", "*", ".."])
def test_tag_that_would_be_another_folder_is_refused(tag: str) -> None:
    client = a_client(OneAnswer(json.dumps({"tags": ["debian-12-1", tag]}).encode()))

    with pytest.raises(StoreError, match="is not a tag of a registry"):
        client.tags("images")


@pytest.mark.parametrize("link", ["<?last=a>; rel=next", "no link"])
def test_list_whose_next_page_has_nothing_new_ends(link: str) -> None:
    client = a_client(OneAnswer(b'{"tags": ["a", "b"]}', Link=link))

    assert client.tags("images") == ["a", "b"]


def test_answer_that_is_longer_than_the_blob_does_not_fill_the_disk(tmp_path: Path) -> None:
    got: list[int] = []
    client = a_client(OneAnswer(bytes(5 << 20)))

    with pytest.raises(StoreError, match="damaged"):
        client.fetch_blob(
            "images", "sha256:x", 10, tmp_path / "part", what="it", progress=got.append
        )

    assert sum(got) == 11


WRONG_FIELDS: list[dict[str, object]] = [
    {"size": True},
    {"size": -1},
    {"size": 0},
    {"size": float("inf")},
    {"digest": 5},
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


def test_images_of_other_programs_are_not_listed_or_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = a_cache(
        monkeypatch, tmp_path, own=a_manifest(None), other=a_manifest(None, "application/x")
    )

    assert [each.tag for each in cache.ls()] == ["own"]


@pytest.mark.parametrize(
    "pushed", ["2026-01-01T00:00:00", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00+00:00"]
)
def test_time_of_a_push_has_a_zone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pushed: str
) -> None:
    (found,) = a_cache(monkeypatch, tmp_path, own=a_manifest(pushed)).ls()

    assert found.pushed == dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    "changed",
    [
        {"layers": [5]},
        {"layers": [{}]},
        {"layers": {}},
        {"config": []},
        {"config": {"digest": "sha512:00"}},
        {"config": {"digest": "sha256:../../x"}},
        *({"layers": [{**FIELDS, **wrong}]} for wrong in WRONG_FIELDS),
    ],
)
def test_malformed_artifact_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, object]
) -> None:
    cache = a_cache(monkeypatch, tmp_path, own={**a_manifest(None), **changed})

    with pytest.raises(StoreError, match="manifest of 'own' in the store is malformed"):
        cache.ls()


def test_only_old_artifacts_are_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has no date may be of today."""
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


@pytest.mark.parametrize("days", ["-1", "nan", "inf"])
def test_age_for_removal_is_a_number_of_days(
    days: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "gc", "--store=registry.example", f"--older-than-days={days}"]) == 2

    assert "--older-than-days" in capsys.readouterr().err


def test_malformed_description_of_another_artifact_is_an_error_of_the_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Trouble with the store never fails a test, which makes the artifact itself."""
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
