"""The requests to a registry (OCI distribution specification 1.1), each with its error as a sentence.

Why this is not left to oras-py stands in docs/design-decisions.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from harness.provisioning.wait import SYSTEM_CLOCK
from harness.shared_store import StoreError
from harness.shared_store.credentials import Authorizer, read_basic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from email.message import Message
    from http.client import HTTPMessage
    from pathlib import Path
    from typing import IO

    from harness.provisioning.wait import Clock
    from harness.shared_store import Address

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CHUNK = 1 << 20
_NO_RANGE = 416
_SMALL = 64 << 20
_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})
_LONGEST_PAUSE_S = 60.0
#: By the OCI distribution specification.
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_NEXT_PAGE = re.compile(r"<([^>]*)>")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """When a request is given up: after `tries` without a new byte, `timeout_s` each."""

    tries: int = 4
    pause_s: float = 1.0
    timeout_s: float = 60.0


class _PlainRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects without the registry's credentials: storage behind it refuses them."""

    @override
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None:
            made.remove_header("Authorization")
        return made


@dataclass(frozen=True, kw_only=True)
class _Answer:
    status: int
    headers: Message
    body: bytes


class RegistryClient:
    """Asks one registry, and authenticates where it wants that."""

    def __init__(
        self,
        address: Address,
        *,
        patience: Patience | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.address = address
        self._patience = Patience() if patience is None else patience
        self._clock = clock
        self._opener = urllib.request.build_opener(_PlainRedirects)
        self._authorizer = Authorizer(read_basic(address.host), get=self._get_token)

    def manifest(self, repository: str, tag: str) -> tuple[dict[str, Any], str] | None:
        """Return the manifest of a tag and its digest; None where there is none."""
        what = f"the manifest of '{tag}'"
        url = self.address.url(repository, f"manifests/{tag}")
        answer = self._ask("GET", url, what, headers={"Accept": MANIFEST_TYPE}, allowed={404})
        if answer.status == 404:
            return None
        try:
            manifest = json.loads(answer.body)
            if not isinstance(manifest["layers"], list):
                raise TypeError  # noqa: TRY301 - one error for all wrong forms
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"The store '{self.address}' has {what}, which is no manifest of an artifact."
            ) from error
        return manifest, f"sha256:{hashlib.sha256(answer.body).hexdigest()}"

    def small_blob(self, repository: str, digest: str, what: str) -> bytes:
        """Return a blob's content, verified."""
        url = self.address.url(repository, f"blobs/{digest}")
        content = self._ask("GET", url, what).body
        found = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if found != digest:
            raise self.damaged(what, digest, found)
        return content

    def fetch_blob(
        self,
        repository: str,
        digest: str,
        size: int,
        part: Path,
        *,
        what: str,
        progress: Callable[[int], None],
    ) -> None:
        """Complete the file `part` with a blob's bytes; those that it has are not fetched again.

        A blob with another digest is removed. Raises StoreError, and OSError of the disk.
        """
        url = self.address.url(repository, f"blobs/{digest}")
        failures = 0
        while (have := part.stat().st_size if part.exists() else 0) < size:
            try:
                self._append(url, part, have, size=size, what=what, progress=progress)
                failure = "the connection ended early"
            except StoreError:
                raise
            except (
                *(urllib.error.URLError, http.client.HTTPException),
                *(ConnectionError, ssl.SSLError),
            ) as error:
                failure = str(getattr(error, "reason", error)) or type(error).__name__
            except TimeoutError:
                failure = f"nothing came for {self._patience.timeout_s:.0f} s"
            after = part.stat().st_size if part.exists() else 0
            failures = 0 if after > have else failures + 1
            if after < size and failures >= self._patience.tries:
                raise StoreError(
                    f"{_start(what)} could not be pulled from the store '{self.address}': {failure} "
                    f"after {after} of {size} bytes, {failures} times in a row; what came is kept, and "
                    "the next pull goes on there."
                )
            if after < size and failures:
                self._clock.sleep(self._patience.pause_s)
        found = f"sha256:{digest_of(part)}"
        if found != digest:
            part.unlink()
            raise self.damaged(what, digest, found)

    def damaged(self, what: str, digest: str, found: str) -> StoreError:
        """Return the error for content that is not what its name says."""
        return StoreError(
            f"{_start(what)} in the store '{self.address}' is damaged: its digest is "
            f"{found[:19]}…, but {digest[:19]}… was pushed; nothing of it is kept, and a new push "
            "repairs it once the registry has dropped it (`harness store gc`)."
        )

    def push_blob(self, repository: str, path: Path, digest: str, what: str) -> None:
        """Push a file as a blob, unless the registry has it."""
        url = self.address.url(repository, f"blobs/{digest}")
        if self._ask("HEAD", url, what, allowed={404}).status != 404:
            return
        started = self._ask("POST", self.address.url(repository, "blobs/uploads/"), what)
        location = urllib.parse.urljoin(url, started.headers.get("Location") or "")
        joint = "&" if "?" in location else "?"
        self._ask(
            "PUT",
            f"{location}{joint}digest={digest}",
            what,
            headers={
                "Content-Type": "application/octet-stream",
                "Content-Length": str(path.stat().st_size),
            },
            file=path,
        )

    def push_manifest(self, repository: str, tag: str, content: bytes) -> None:
        """Push a manifest under a tag; its blobs are there."""
        self._ask(
            "PUT",
            self.address.url(repository, f"manifests/{tag}"),
            f"the manifest of '{tag}'",
            headers={"Content-Type": MANIFEST_TYPE},
            data=content,
        )

    def tags(self, repository: str) -> list[str]:
        """Return the tags of a repository by name; none where it does not exist."""
        url: str | None = self.address.url(repository, "tags/list")
        found: list[str] = []
        while url is not None:
            answer = self._ask("GET", url, f"the list of '{repository}'", allowed={404})
            if answer.status == 404:
                return []
            try:
                page = [str(tag) for tag in json.loads(answer.body).get("tags") or []]
            except (ValueError, AttributeError, TypeError) as error:
                raise StoreError(
                    f"The list of '{repository}' in the store '{self.address}' is no JSON of tags."
                ) from error
            wrong = next((tag for tag in page if not _TAG.fullmatch(tag)), None)
            if wrong is not None:
                # A tag becomes the name of a folder.
                raise StoreError(
                    f"The list of '{repository}' in the store '{self.address}' has {wrong!r}, which is no "
                    "tag of a registry; nothing of it is used."
                )
            # A page that has nothing new would be asked for again, for ever.
            following = _NEXT_PAGE.match(answer.headers.get("Link") or "")
            is_end = following is None or set(page) <= set(found)
            found += page
            url = None if following is None or is_end else urllib.parse.urljoin(url, following[1])
        return sorted(set(found))

    def delete(self, repository: str, digest: str, what: str) -> None:
        """Delete a manifest; the registry's own garbage collection frees its blobs."""
        self._ask("DELETE", self.address.url(repository, f"manifests/{digest}"), what)

    def _append(
        self,
        url: str,
        part: Path,
        have: int,
        *,
        size: int,
        what: str,
        progress: Callable[[int], None],
    ) -> None:
        headers = {"Range": f"bytes={have}-"} if have else {}
        with (
            self._open("GET", url, what, headers=headers, allowed={_NO_RANGE}) as response,
            part.open("ab", buffering=0) as sink,
        ):
            if response.status == _NO_RANGE:
                part.unlink()
                raise StoreError(
                    f"{_start(what)} in the store '{self.address}' is truncated: it ends after {have} "
                    "bytes or before; nothing of it is kept."
                )
            if have and response.status != http.HTTPStatus.PARTIAL_CONTENT:
                sink.truncate(0)
                have = 0
            # What comes beyond the size shows by the digest, and must not fill the disk.
            while have <= size and (chunk := _received(response)):
                sink.write(chunk)
                have += len(chunk)
                progress(len(chunk))

    def _ask(
        self,
        method: str,
        url: str,
        what: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        file: Path | None = None,
        allowed: set[int] | None = None,
    ) -> _Answer:
        """Return the answer to a request whose content is small."""
        failure = ""
        for _ in range(self._patience.tries):
            try:
                with self._open(
                    method, url, what, headers=headers, data=data, file=file, allowed=allowed
                ) as answer:
                    return _Answer(
                        status=answer.status, headers=answer.headers, body=answer.read(_SMALL)
                    )
            except (OSError, http.client.HTTPException) as error:  # noqa: PERF203 - few tries
                failure = str(getattr(error, "reason", error)) or type(error).__name__
                self._clock.sleep(self._patience.pause_s)
        raise StoreError(
            f"The store '{self.address}' can't be reached for {what}: {failure}, "
            f"{self._patience.tries} times; check the address and the network."
        )

    def _open(
        self,
        method: str,
        url: str,
        what: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        file: Path | None = None,
        allowed: set[int] | None = None,
    ) -> http.client.HTTPResponse:
        """Return the response to a request; raises StoreError for an answer that is an error."""
        tries = self._patience.tries
        while True:
            with contextlib.nullcontext() if file is None else file.open("rb") as body:
                request = urllib.request.Request(  # noqa: S310 - Address allows http and https
                    url,
                    method=method,
                    data=data if body is None else body,
                    headers={**(headers or {}), **self._authorizer.headers},
                )
                try:
                    response: http.client.HTTPResponse = self._opener.open(
                        request, timeout=self._patience.timeout_s
                    )
                except urllib.error.HTTPError as error:
                    tries -= 1
                    if error.code in (allowed or ()):
                        return error  # type: ignore[return-value]
                    error.close()
                    self._refused(error, what, tries)
                else:
                    return response

    def _refused(self, error: urllib.error.HTTPError, what: str, tries: int) -> None:
        """Return where the request may be repeated, after a pause; raise StoreError elsewhere."""
        challenge = error.headers.get("WWW-Authenticate") or ""
        if error.code == 401 and tries and self._authorizer.answer(challenge):
            return
        if error.code in _TEMPORARY and tries:
            asked = error.headers.get("Retry-After") or ""
            pause_s = float(asked) if asked.isdecimal() else self._patience.pause_s
            self._clock.sleep(min(pause_s, _LONGEST_PAUSE_S))
            return
        remedy = {
            401: f"log in by `docker login {self.address.host}`",
            403: "ask who runs the registry for the right to do this",
            404: "check the address",
            405: "the registry forbids this; allow deletion in its configuration",
            429: "it limits how often it is asked; try later",
            507: "the registry's disk is full; free some",
        }.get(error.code, "look into the registry's log")
        raise StoreError(
            f"The store '{self.address}' answered {error.code} {error.reason} to the request for "
            f"{what}; {remedy}."
        ) from error

    def _get_token(self, url: str, headers: Mapping[str, str]) -> bytes:
        if not url.startswith(("https://", f"{self.address.scheme}://")):
            raise OSError(f"The registry names '{url}' for log-in, which is not encrypted.")
        request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - as above
        with self._opener.open(request, timeout=self._patience.timeout_s) as answer:
            content: bytes = answer.read(_SMALL)
            return content


def digest_of(path: Path) -> str:
    """Return a file's SHA-256."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _received(response: http.client.HTTPResponse) -> bytes:
    """Return what came; raises ConnectionError for trouble that could else be taken for the disk's."""
    try:
        return response.read1(_CHUNK)
    except (TimeoutError, ConnectionError):
        raise
    except OSError as error:
        raise ConnectionError(str(error)) from error


def _start(what: str) -> str:
    return what[:1].upper() + what[1:]
