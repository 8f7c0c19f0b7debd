"""Authenticates requests to a registry by tokens, or by the password that `docker login` stored."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

from harness.http_requests import origin
from harness.shared_store import StoreError
from harness.shared_store.answers import read_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: A scheme, or a parameter with a token or a quoted string as its value (RFC 9110, section 11.3).
_PART = re.compile(
    r"""(?P<name>[\w!#$%&'*+.^`|~-]+)"""
    r"""(?:\s*(?P<is>=)\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[\w!#$%&'*+.^`|~-]+)))?""",
    re.ASCII,
)
_ESCAPED = re.compile(r"\\(.)")
_NAME = re.compile("(?:https?://)?(?:([^/]+)/v[12]|(.+?))/?")
"""HOST, HOST/PATH, or a URL such as https://HOST/v1/, as Kubernetes and old versions of Docker write it."""


def read_basic(place: str) -> str | None:
    """Return the base64 of `user:password` for a registry from Docker's configuration, or None.

    `place` is HOST[:PORT][/PATH].

    `docker login` and `oras login` write this configuration. Other programs may write the keys
    `username` and `password` in place of `auth`. Credential helpers (`credsStore`) are not used.
    """
    entry = _read_entry(place)
    known, user, password = (entry.get(key) for key in ("auth", "username", "password"))
    if not known and user and password:
        known = base64.b64encode(f"{user}:{password}".encode(errors="replace")).decode()
    if not isinstance(known, str) or not known:
        return None
    known = known.replace("\r", "").replace("\n", "")  # Docker ignores line breaks here
    try:
        base64.b64decode(known, validate=True)
    except ValueError:
        return None
    return known


def read_identity_token(place: str) -> str | None:
    """Return the refresh token of a registry from Docker's configuration, or None.

    `az acr login` writes a refresh token as `identitytoken`, together with an invalid password.
    """
    known = _read_entry(place).get("identitytoken")
    return known if isinstance(known, str) and known else None


def _read_entry(place: str) -> Mapping[str, object]:
    def precedence(name: str) -> tuple[int, bool]:
        # Podman and Kubernetes also write HOST/PATH, and the longest such name applies.
        found = _NAME.fullmatch(name)
        plain = "" if found is None else found[1] or found[2]
        return len(plain) if f"{place}/".startswith(f"{plain}/") else 0, name == plain

    try:
        folder = Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser()
        auths = json.loads((folder / "config.json").read_bytes())["auths"]
        fitting = (name for name in auths if precedence(name)[0])
        ordered = sorted(fitting, key=precedence, reverse=True)
        entry: object = next(filter(None, (auths.get(name) for name in ordered)), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        # RuntimeError means that the home folder is not known, or that values are nested too
        # deeply.
        return {}
    return entry if isinstance(entry, dict) else {}


class Authorizer:
    """Answers a registry's challenge by a password, or by a token that a token service returns.

    `get` fetches a URL with headers and returns the content. With a form as third argument, `get`
    posts the form. `get` raises OSError or ValueError if the request fails. `registry` is the
    registry's URL. The password is sent to the registry itself. A token service on another host
    gets the password only if both the service and the registry have https URLs. The refresh token
    `identity` is sent only to a token service that may get the password (RFC 6749, section 6).
    """

    def __init__(
        self,
        basic: str | None,
        *,
        registry: str,
        get: Callable[..., bytes],
        identity: str | None = None,
    ) -> None:
        self._basic = basic
        self._identity = identity
        self._registry = origin(registry)
        self._get = get
        self._headers: dict[str, str] = {}

    def headers(self, url: str) -> Mapping[str, str]:
        """Return headers with the credentials for a URL of the registry, and no headers for any other URL."""
        return self._headers if origin(url) == self._registry else {}

    def answer(self, challenge: str, *, url: str) -> bool:
        """Process a `WWW-Authenticate` header from `url`. Return whether a retry can succeed.

        If the registry offers several schemes, a token is preferred to the password.
        """
        try:
            if origin(url) != self._registry:
                return False
        except ValueError:
            return False
        schemes = _schemes(challenge)
        for scheme in ("bearer", "basic"):
            with contextlib.suppress(OSError, ValueError, StoreError):
                if scheme in schemes and self._answer(scheme, schemes[scheme]):
                    return True
        return False

    def _answer(self, scheme: str, fields: Mapping[str, str]) -> bool:
        proof = {} if self._basic is None else {"Authorization": f"Basic {self._basic}"}
        if scheme == "basic":
            is_new = bool(proof) and self._headers != proof
            self._headers = proof
            return is_new
        if "realm" not in fields:
            return False
        service = origin(fields["realm"])
        is_encrypted = self._registry[0] == service[0] == "https"
        if self._registry[0] == "https" and not is_encrypted:
            return False
        wanted = {key: fields[key] for key in ("service", "scope") if key in fields}
        is_trusted = service == self._registry or is_encrypted
        if self._identity is not None and is_trusted:
            form = {
                **wanted,
                "grant_type": "refresh_token",
                "client_id": "harness",
                "refresh_token": self._identity,
            }
            answer = self._get(fields["realm"], {}, urllib.parse.urlencode(form).encode())
        else:
            joint = "&" if "?" in fields["realm"] else "?"
            answer = self._get(
                f"{fields['realm']}{joint}{urllib.parse.urlencode(wanted)}",
                proof if is_trusted else {},
            )
        self._headers = {"Authorization": f"Bearer {read_token(answer)}"}
        return True


def _schemes(challenge: str) -> dict[str, dict[str, str]]:
    """Return the parameters of each scheme in a `WWW-Authenticate` header, with names in lower case."""
    schemes: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for part in _PART.finditer(challenge):
        name = part["name"].lower()
        if part["is"] is None:
            fields = schemes.setdefault(name, {})
        elif part["quoted"] is None:
            fields[name] = part["plain"]
        else:
            fields[name] = _ESCAPED.sub(r"\1", part["quoted"])
    return schemes
