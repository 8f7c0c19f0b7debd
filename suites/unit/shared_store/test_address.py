"""The address of a shared store, and how its registry is convinced of who asks."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.shared_store import Address, StoreError
from harness.shared_store.credentials import Authorizer, read_basic
from harness.shared_store.packing import pack, read_files, unpack_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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


@pytest.mark.parametrize("text", ["", "ftp://x", "host/UPPER", "host/a//b", "a b", "host?x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match=r"--store: .* is no address of a registry"):
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


def test_basic_challenge_is_answered_once_by_the_password() -> None:
    authorizer = Authorizer(BASIC, get=no_service)

    assert authorizer.answer('Basic realm="x"')
    assert authorizer.headers == {"Authorization": f"Basic {BASIC}"}
    assert not authorizer.answer('Basic realm="x"'), "The registry refused it."


def test_bearer_challenge_is_answered_by_a_token_of_its_service() -> None:
    asked: list[tuple[str, Mapping[str, str]]] = []

    def get(url: str, headers: Mapping[str, str]) -> bytes:
        asked.append((url, headers))
        return b'{"token": "t0k"}'

    authorizer = Authorizer(BASIC, get=get)

    assert authorizer.answer(
        'Bearer realm="https://auth.example/token",service="reg",scope="repository:a:pull"'
    )
    assert asked == [
        (
            "https://auth.example/token?service=reg&scope=repository%3Aa%3Apull",
            {"Authorization": f"Basic {BASIC}"},
        )
    ]
    assert authorizer.headers == {"Authorization": "Bearer t0k"}


@pytest.mark.parametrize(
    ("challenge", "content"),
    [("", b""), ("Negotiate", b""), ('Bearer realm="https://a"', b"<html>"), ("Bearer x", b"{}")],
)
def test_challenge_that_cannot_be_answered_is_left(challenge: str, content: bytes) -> None:
    assert not Authorizer(None, get=lambda _url, _headers: content).answer(challenge)


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
    "files",
    [
        {"../outside": {"size": 1, "sha256": "x"}},
        {"/etc/passwd": {"size": 1, "sha256": "x"}},
        {"manifest.json": {"size": 1, "sha256": "x"}},
    ],
)
def test_artifact_that_names_a_file_outside_its_folder_is_refused(
    files: Mapping[str, object],
) -> None:
    with pytest.raises(StoreError, match="is not one of its own"):
        read_files(json.dumps({"files": files}).encode(), "image-1")


@pytest.mark.parametrize("manifest", [b"", b"{}", b'{"files": 3}', b'{"files": {"a": {}}}'])
def test_malformed_description_is_refused(manifest: bytes) -> None:
    with pytest.raises(StoreError, match=r"The manifest of 'image-1' is malformed"):
        read_files(manifest, "image-1")


def test_file_that_is_not_gzip_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"not gzip")

    with pytest.raises(StoreError, match=r"The file 'disk' of 'image-1' can't be decompressed"):
        unpack_file(tmp_path / "part", tmp_path / "disk", {"size": 8, "sha256": "x"}, "image-1")
