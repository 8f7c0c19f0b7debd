"""Which password a registry gets, and which token services may also get the password."""

from __future__ import annotations

import base64
import json
import urllib.parse
from typing import TYPE_CHECKING

import pytest

from harness.shared_store.credentials import Authorizer, read_basic, read_identity_token

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

OURS, THEIRS = (base64.b64encode(each).decode() for each in (b"ann:ours", b"bob:theirs"))


@pytest.mark.parametrize(
    ("auths", "expected"),
    [
        ({"r.example": {"auth": OURS}, "s.example": {"auth": THEIRS}}, OURS),
        ({"s.example": {"auth": THEIRS}, "r.example": {"auth": OURS}}, OURS),
        ({"https://r.example": {"auth": OURS}}, OURS),
        ({"r.example": {"auth": OURS}, "https://r.example": {"auth": THEIRS}}, OURS),
        ({"https://r.example/v1/": {"auth": OURS}}, OURS),
        ({"r.example": {"auth": THEIRS}, "r.example/team": {"auth": OURS}}, OURS),
        ({"r.example/team": {"auth": THEIRS}, "r.example/team/cache": {"auth": OURS}}, OURS),
        ({"r.example/tea": {"auth": THEIRS}, "r.example": {"auth": OURS}}, OURS),
        ({"https://r.example/v1/": {"auth": THEIRS}, "r.example/team/": {"auth": OURS}}, OURS),
        ({"http://r.example": {}, "r.example/v2/": {"auth": OURS}}, OURS),
        ({"r.example/other": {"auth": THEIRS}}, None),
        ({"r.example/team/v1": {"auth": THEIRS}}, None),
        ({"r.example/team/cache/other": {"auth": THEIRS}, "r.example": {"auth": OURS}}, OURS),
        ({"r.example/tea": {"auth": THEIRS}, "r.example": {}}, None),
        ({"https://r.example.evil/v1/": {"auth": THEIRS}, "evil/r.example": {"auth": OURS}}, None),
        ({"https://r.example@evil/": {"auth": THEIRS}}, None),
        ({"r.example": {"username": "ann", "password": "ours"}}, OURS),
        ({"r.example": {"username": "ann", "password": "x", "auth": OURS}}, OURS),
        ({"r.example": {"auth": f"{OURS[:4]}\r\n{OURS[4:]}\n"}}, OURS),
        ({"r.example": {"username": "ann"}}, None),
        ({"r.example:5000": {"auth": THEIRS}}, None),
        ({"r.example": {}, "s.example": {"auth": THEIRS}}, None),
        ({"r.example": {"auth": "no base64!"}}, None),
        ({"r.example": {"auth": ["x"]}}, None),
        ({"r.example": {"auth": ""}}, None),
        ({}, None),
        ([], None),
    ],
)
def test_password_is_read_only_from_the_docker_config_entry_of_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auths: object, expected: str | None
) -> None:
    (tmp_path / "config.json").write_text("\ufeff" + json.dumps({"auths": auths}))

    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert read_basic("r.example/team/cache") == expected
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
    assert read_basic("r.example") is None


def test_credentials_are_read_from_the_home_folder_unless_docker_config_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text(
        json.dumps({"auths": {"r.example": {"auth": OURS}}})
    )

    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    assert read_basic("r.example") == OURS
    monkeypatch.setenv("DOCKER_CONFIG", "")
    assert read_basic("r.example") == OURS


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"auth": OURS, "identitytoken": "r3fresh"}, "r3fresh"),
        ({"identitytoken": "r3fresh"}, "r3fresh"),
        ({"auth": OURS}, None),
        ({"identitytoken": ""}, None),
        ({"identitytoken": ["r3fresh"]}, None),
        (["identitytoken"], None),
    ],
)
def test_refresh_token_is_read_from_the_entry_of_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: object, expected: str | None
) -> None:
    other = {"identitytoken": "of another registry"}
    auths = {"s.example": other, "r.example": entry}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))

    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert read_identity_token("r.example") == expected


class Services:
    """Fake token services, which record each URL and whether credentials were sent."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []

    def get(self, url: str, headers: Mapping[str, str]) -> bytes:
        self.asked.append((url, "Authorization" in headers))
        return b'{"token": "t0k"}'


@pytest.mark.parametrize(
    ("registry", "realm", "is_asked", "is_told"),
    [
        ("https://r.example", "https://r.example/token", True, True),
        ("https://r.example", "https://auth.example/token", True, True),
        ("https://r.example", "http://r.example/token", False, False),
        ("https://r.example", "file:///etc/passwd", False, False),
        ("https://r.example", "http://[::1", False, False),
        ("https://r.example", "https://r.example@evil.example/token", False, False),
        ("http://r.example", "http://r.example/token", True, True),
        ("http://r.example", "http://r.example:80/token", True, True),
        ("http://r.example", "http://r.example:81/token", True, False),
        ("http://r.example", "https://auth.example/token", True, False),
        ("http://r.example", "http://auth.example/token", True, False),
    ],
)
def test_token_service_on_another_host_gets_the_password_only_if_the_registry_uses_https(
    registry: str, realm: str, *, is_asked: bool, is_told: bool
) -> None:
    services = Services()
    authorizer = Authorizer(OURS, registry=f"{registry}/v2/", get=services.get)

    challenge = f'Bearer realm="{realm}",service="s",scope="repository:a:pull"'
    assert authorizer.answer(challenge, url=f"{registry}/v2/a") == is_asked

    asked = f"{realm}?service=s&scope=repository%3Aa%3Apull"
    assert services.asked == ([(asked, is_told)] if is_asked else [])
    proof = {"Authorization": "Bearer t0k"} if is_asked else {}
    assert authorizer.headers(f"{registry}/v2/b") == proof
    assert authorizer.headers("https://storage.example/b") == {}


@pytest.mark.parametrize(
    "url", ["http://r.example/v2/a", "https://r.example:5000/v2/a", "https://r.example.org/v2/a"]
)
def test_challenge_of_another_host_is_not_answered(url: str) -> None:
    services = Services()
    authorizer = Authorizer(OURS, registry="https://r.example/v2/", get=services.get)

    assert not authorizer.answer('Basic realm="r"', url=url)
    assert not authorizer.answer('Bearer realm="https://r.example/token"', url=url)

    assert services.asked == []
    assert authorizer.answer('Basic realm="r"', url="https://r.example/v2/a")
    assert authorizer.headers(url) == {}
    assert authorizer.headers("https://R.example:443/v2/a") != {}


SERVICE = 'Bearer realm="https://r.example/token",service="s"'


@pytest.mark.parametrize(
    ("challenge", "query"),
    [
        (f'Basic realm="r", {SERVICE}', "service=s"),
        (f'{SERVICE}, Basic realm="r", charset="UTF-8"', "service=s"),
        (f"Negotiate YIIab==, {SERVICE}", "service=s"),
        ('bearer\tRealm = "https://r.example/token" , SERVICE = s', "service=s"),
        (r'Bearer realm="https://r.example/token",service="a \"b\", c"', "service=a+%22b%22%2C+c"),
        ('Bearer error="x, realm=y",realm="https://r.example/token",service=""', "service="),
        ('Digest realm="r", nonce="x,", Basic realm="Bearer realm=x"', None),
        ('Negotiate, Basic realm="r"', None),
        ('Bearer realm="http://evil.example/token", Basic realm="r"', None),
    ],
)
def test_token_is_preferred_if_the_registry_offers_several_schemes(
    challenge: str, query: str | None
) -> None:
    services = Services()
    authorizer = Authorizer(OURS, registry="https://r.example/v2/", get=services.get)

    assert authorizer.answer(challenge, url="https://r.example/v2/a")

    asked = [] if query is None else [(f"https://r.example/token?{query}", True)]
    assert services.asked == asked
    proof = f"Basic {OURS}" if query is None else "Bearer t0k"
    assert authorizer.headers("https://r.example/v2/a") == {"Authorization": proof}


@pytest.mark.parametrize(
    ("challenge", "content"),
    [("", b"{}"), ("Bearer x", b"{}"), ('Bearer realm="https://a"', b"<html>")],
)
def test_challenge_that_cannot_be_answered_is_ignored(challenge: str, content: bytes) -> None:
    authorizer = Authorizer(None, registry="https://r.example/v2/", get=lambda *_: content)

    assert not authorizer.answer(challenge, url="https://r.example/v2/a")


@pytest.mark.parametrize(("basic", "answers"), [(OURS, [True, False]), (None, [False, False])])
def test_refused_password_is_not_tried_again(basic: str | None, answers: list[bool]) -> None:
    authorizer = Authorizer(basic, registry="https://r.example/v2/", get=Services().get)

    assert [
        authorizer.answer('Basic realm="r"', url="https://r.example/v2/a") for _ in range(2)
    ] == answers
    proof = {} if basic is None else {"Authorization": f"Basic {basic}"}
    assert authorizer.headers("https://r.example/v2/a") == proof


def test_latest_challenge_decides_how_requests_are_authenticated() -> None:
    authorizer = Authorizer(OURS, registry="https://r.example/v2/", get=Services().get)

    for challenge in ('Bearer realm="https://r.example/token"', 'Basic realm="r"'):
        assert authorizer.answer(challenge, url="https://r.example/v2/a")

    assert authorizer.headers("https://r.example/v2/a") == {"Authorization": f"Basic {OURS}"}


@pytest.mark.parametrize(
    ("registry", "realm", "is_told"),
    [
        ("https://r.example", "https://r.example/oauth2/token", True),
        ("https://r.example", "https://auth.example/token", True),
        ("http://r.example", "http://r.example/token", True),
        ("http://r.example", "https://auth.example/token", False),
    ],
)
def test_refresh_token_is_posted_only_to_a_token_service_that_may_get_the_password(
    registry: str, realm: str, *, is_told: bool
) -> None:
    seen: list[tuple[str, Mapping[str, str], dict[str, list[str]] | None]] = []

    def get(url: str, headers: Mapping[str, str], form: bytes | None = None) -> bytes:
        fields = None if form is None else urllib.parse.parse_qs(form.decode())
        seen.append((url, headers, fields))
        return b'{"access_token": "t0k"}'

    authorizer = Authorizer(OURS, identity="r3fresh&", registry=f"{registry}/v2/", get=get)

    challenge = f'Bearer realm="{realm}",service="s",scope="repository:a:pull"'
    assert authorizer.answer(challenge, url=f"{registry}/v2/a")

    form = {
        "grant_type": ["refresh_token"],
        "client_id": ["harness"],
        "refresh_token": ["r3fresh&"],
        "service": ["s"],
        "scope": ["repository:a:pull"],
    }
    asked = f"{realm}?service=s&scope=repository%3Aa%3Apull"
    assert seen == ([(realm, {}, form)] if is_told else [(asked, {}, None)])
    assert authorizer.headers(f"{registry}/v2/b") == {"Authorization": "Bearer t0k"}
