"""Authenticates requests to a registry: what `docker login` or `oras login` stored, and tokens."""

from __future__ import annotations

import base64
import json
import os
import re
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FIELD = re.compile(r'(\w+)="([^"]*)"')


def read_basic(host: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return `user:password` in base64 for a registry, from Docker's configuration; None without.

    Helpers of credentials (`credsStore`) are not asked.
    """
    variables = os.environ if environment is None else environment
    folder = Path(variables.get("DOCKER_CONFIG") or "~/.docker").expanduser()
    try:
        auths = json.loads((folder / "config.json").read_text())["auths"]
        entry = auths.get(host) or auths.get(f"https://{host}") or {}
        known = entry.get("auth")
        base64.b64decode(known or "", validate=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return known if isinstance(known, str) and known else None


class Authorizer:
    """Answers a registry's challenge: by a password, or by a token that its service gives for one.

    `get` fetches a URL with headers and returns the content; it raises OSError.
    """

    def __init__(
        self, basic: str | None, *, get: Callable[[str, Mapping[str, str]], bytes]
    ) -> None:
        self._basic = basic
        self._get = get
        self.headers: dict[str, str] = {}

    def answer(self, challenge: str) -> bool:
        """Take up the value of `WWW-Authenticate`; return whether a request has a chance now."""
        scheme, _, rest = challenge.partition(" ")
        proof = {} if self._basic is None else {"Authorization": f"Basic {self._basic}"}
        if scheme.lower() == "basic":
            is_new = bool(proof) and self.headers != proof
            self.headers = proof
            return is_new
        fields = dict(_FIELD.findall(rest))
        if scheme.lower() != "bearer" or "realm" not in fields:
            return False
        query = {key: fields[key] for key in ("service", "scope") if key in fields}
        try:
            answer = json.loads(
                self._get(f"{fields['realm']}?{urllib.parse.urlencode(query)}", proof)
            )
            token = answer.get("token") or answer["access_token"]
        except (OSError, ValueError, KeyError, AttributeError):
            return False
        self.headers = {"Authorization": f"Bearer {token}"}
        return True
