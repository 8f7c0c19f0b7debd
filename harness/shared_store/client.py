"""Sends requests to a registry (OCI distribution specification 1.1), and explains its errors.

docs/design-decisions.md says why the harness does not use oras-py for these requests.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from harness.artifact_cache.manifest import fact_of
from harness.http_headers import content_range, retry_after
from harness.http_requests import (
    HttpOpener,
    NoDowngrade,
    Pace,
    PacedFile,
    RefusedUrlError,
    StalledError,
    joined,
    origin,
    read_whole,
    why_not_followed,
)
from harness.limits import STORE_ANSWER_MIB, STORE_SECONDS, STORE_TAGS
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline, WaitTimeoutError
from harness.shared_store import StoreError
from harness.shared_store.answers import next_page, read_object, read_page
from harness.shared_store.credentials import Authorizer, read_basic, read_identity_token
from harness.visible_text import shortened, visible_line

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
_REASON_BYTES = 200
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, kw_only=True)
class Patience:
    """The limits at which a request fails.

    A try fails when fewer than `stall_bytes` arrive within `timeout_s`. The request fails after
    `tries` tries in a row that were too slow or received no new byte. If the registry requests a
    pause by Retry-After, the client pauses. A pause longer than `longest_pause_s` is an error.
    """

    tries: int = 4
    pause_s: float = 1.0
    timeout_s: float = 60.0
    stall_bytes: int = 1 << 16
    longest_pause_s: float = 300.0


class _PlainRedirects(NoDowngrade):
    """Follows redirects. Other servers do not get the registry's credentials."""

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
        if made is not None and origin(made.full_url) != origin(req.full_url):
            made.remove_header("Authorization")
        return made


@dataclass(frozen=True, kw_only=True)
class _Answer:
    status: int
    headers: Message
    body: bytes


class RegistryClient:
    """Sends requests to one registry, and authenticates if the registry requires it.

    Without a deadline, each method ends after the limit `store-seconds`.
    """

    def __init__(
        self,
        address: Address,
        *,
        patience: Patience | None = None,
        clock: Clock = SYSTEM_CLOCK,
        opener: HttpOpener | None = None,
    ) -> None:
        self.address = address
        self._patience = Patience() if patience is None else patience
        self._clock = clock
        self._opener = HttpOpener(_PlainRedirects) if opener is None else opener
        self._authorizer = Authorizer(
            read_basic(str(address)),
            identity=read_identity_token(str(address)),
            registry=address.url("", ""),
            get=self._get_token,
        )

    def deadline(self) -> Deadline:
        """Return the deadline of a pull, push or list that starts now."""
        return Deadline.after(STORE_SECONDS.value, self._clock)

    def manifest(
        self, repository: str, tag: str, *, deadline: Deadline | None = None
    ) -> tuple[dict[str, Any], str] | None:
        """Return a tag's manifest and the manifest's digest, or None if there is no such tag."""
        what = f"the manifest of '{tag}'"
        url = self.address.url(repository, f"manifests/{tag}")
        answer = self._ask(
            "GET", url, what, headers={"Accept": MANIFEST_TYPE}, allowed={404}, deadline=deadline
        )
        if answer.status == 404:
            return None
        manifest = read_object(
            answer.body,
            f"The store '{self.address}' sent a malformed answer to the request for {what}",
        )
        return manifest, f"sha256:{hashlib.sha256(answer.body).hexdigest()}"

    def small_blob(
        self, repository: str, digest: str, what: str, *, deadline: Deadline | None = None
    ) -> bytes:
        """Return a blob's content after checking its digest."""
        url = self.address.url(repository, f"blobs/{digest}")
        content = self._ask("GET", url, what, deadline=deadline).body
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
        deadline: Deadline | None = None,
    ) -> None:
        """Append the missing bytes of a blob to the file `part`.

        If the digest of the complete file is wrong, remove the file. Then fetch the whole blob if
        the file had bytes from an earlier pull, else raise StoreError. Raises OSError if the disk
        fails.
        """
        url = self.address.url(repository, f"blobs/{digest}")
        deadline = deadline or self.deadline()
        failures, best = 0, _size(part)
        is_resumed = best > 0
        while (have := _size(part)) < size:
            is_slow = False
            try:
                self._append(
                    url, part, have, size=size, what=what, progress=progress, deadline=deadline
                )
                failure = "the connection ended early"
            except (
                *(urllib.error.URLError, http.client.HTTPException),
                *(ConnectionError, ssl.SSLError, TimeoutError),
            ) as error:
                failure = _reason(error)
                is_slow = isinstance(error, StalledError)
            except WaitTimeoutError as error:
                raise self._late(what) from error
            after = _size(part)
            failures = 0 if after > best and not is_slow else failures + 1
            best = max(best, after)
            if after < size and failures >= self._patience.tries:
                raise StoreError(
                    f"{_start(what)} could not be pulled from the store '{self.address}': "
                    f"{failure} after {after} of {size} bytes, {failures} times in a row; the "
                    "received part is kept, and the next pull continues there."
                )
            if after < size:
                self._pause(self._patience.pause_s, what, deadline)
        found = f"sha256:{fact_of(part).sha256}"
        if found != digest:
            part.unlink()
            if not is_resumed:
                raise self.damaged(what, digest, found)
            # The bytes from an earlier pull may be wrong, for example after a crash of this host.
            self.fetch_blob(
                repository, digest, size, part, what=what, progress=progress, deadline=deadline
            )

    def damaged(self, what: str, digest: str, found: str) -> StoreError:
        """Return the error for content that differs from its digest."""
        return StoreError(
            f"{_start(what)} in the store '{self.address}' is damaged: its digest is "
            f"{found[:19]}…, but {digest[:19]}… was pushed. The received data is removed, and "
            "a new push repairs the store after the registry has removed the damaged data "
            "(`harness store gc`)."
        )

    def push_blob(
        self,
        repository: str,
        path: Path,
        digest: str,
        what: str,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        """Push a file as a blob, unless the registry already has this blob."""
        url = self.address.url(repository, f"blobs/{digest}")
        deadline = deadline or self.deadline()
        if self._ask("HEAD", url, what, allowed={404}, deadline=deadline).status != 404:
            return
        url = self.address.url(repository, "blobs/uploads/")
        started = self._ask("POST", url, what, deadline=deadline).headers.get("Location")
        if not started:
            raise StoreError(
                f"The store '{self.address}' does not say to which URL {what} is to be pushed; look "
                "into the registry's log."
            )
        try:
            location = joined(url, started)
        except RefusedUrlError as error:
            raise StoreError(
                f"The store '{self.address}' redirects the push of {what} to a URL that is refused: {error}."
            ) from error
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
            deadline=deadline,
        )

    def push_manifest(
        self, repository: str, tag: str, content: bytes, *, deadline: Deadline | None = None
    ) -> None:
        """Push a manifest under a tag. The registry must have all blobs that the manifest lists."""
        self._ask(
            "PUT",
            self.address.url(repository, f"manifests/{tag}"),
            f"the manifest of '{tag}'",
            headers={"Content-Type": MANIFEST_TYPE},
            data=content,
            deadline=deadline,
        )

    def tags(self, repository: str, *, deadline: Deadline | None = None) -> list[str]:
        """Return the sorted tags of a repository. A repository that does not exist has no tags."""
        what = f"the list of '{repository}'"
        deadline = deadline or self.deadline()
        url: str | None = self.address.url(repository, "tags/list")
        found: set[str] = set()
        while url is not None:
            answer = self._ask("GET", url, what, allowed={404}, deadline=deadline)
            if answer.status == 404:
                return []
            page = read_page(
                answer.body,
                f"The list of '{repository}' in the store '{self.address}' is not a list of tags in JSON",
            )
            following = next_page(", ".join(answer.headers.get_all("Link") or ()))
            # Without this check, a page without new tags would be requested again and again.
            is_end = following is None or found.issuperset(page)
            found.update(page)
            if len(found) > STORE_TAGS.value:
                raise StoreError(str(STORE_TAGS.error(f"{_start(what)} in '{self.address}'")))
            url = None if following is None or is_end else self._page_after(url, following, what)
        return sorted(found)

    def _page_after(self, url: str, reference: str, what: str) -> str:
        problem = (
            f"The URL that the store '{self.address}' sent for the next page of {what} is refused"
        )
        try:
            following = joined(url, reference)
        except RefusedUrlError as error:
            raise StoreError(f"{problem}: {error}.") from error
        if origin(following) != origin(url):
            raise StoreError(f"{problem}: '{following}' is on another host.")
        return following

    def delete(self, repository: str, digest: str, what: str) -> None:
        """Delete a manifest. The registry's garbage collection removes the manifest's blobs."""
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
        deadline: Deadline,
    ) -> None:
        headers = {"Range": f"bytes={have}-"} if have else {}
        with (
            self._open(
                "GET", url, what, headers=headers, allowed={_NO_RANGE}, deadline=deadline
            ) as response,
            part.open("ab", buffering=0) as sink,
        ):
            if response.status == _NO_RANGE:
                part.unlink()
                raise StoreError(
                    f"{_start(what)} in the store '{self.address}' is truncated: it has at most "
                    f"{have} of {size} bytes. The partial download is deleted."
                )
            if response.status == http.HTTPStatus.PARTIAL_CONTENT:
                if content_range(response.headers)[0] != have:
                    raise StoreError(
                        f"The store '{self.address}' sent a wrong range of {what}; the range "
                        f"from byte {have} was requested."
                    )
            elif have:
                sink.truncate(0)
                have = 0
            # If the answer is too long, one byte too many is written, which makes the digest wrong.
            # Further bytes are not written, since they could fill the disk.
            while have <= size and (chunk := response.read1(min(_CHUNK, size + 1 - have))):
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
        deadline: Deadline | None = None,
    ) -> _Answer:
        """Send a request, and return the registry's answer, which must be small."""
        failure = ""
        deadline = deadline or self.deadline()
        for attempt in range(self._patience.tries):
            if attempt:
                self._pause(self._patience.pause_s, what, deadline)
            try:
                with self._open(
                    method,
                    url,
                    what,
                    headers=headers,
                    data=data,
                    file=file,
                    allowed=allowed,
                    deadline=deadline,
                ) as answer:
                    return _Answer(
                        status=answer.status,
                        headers=answer.headers,
                        body=self._read(answer, what),
                    )
            except (OSError, http.client.HTTPException) as error:
                failure = _reason(error)
            except WaitTimeoutError as error:
                raise self._late(what) from error
        raise StoreError(
            f"The store '{self.address}' can't be reached for {what} in "
            f"{self._patience.tries} tries: {failure}; check the address and the network."
        )

    def _read(self, answer: http.client.HTTPResponse, what: str) -> bytes:
        body = read_whole(answer, STORE_ANSWER_MIB.bytes)
        if len(body) > STORE_ANSWER_MIB.bytes:
            raise StoreError(
                str(STORE_ANSWER_MIB.error(f"{_start(what)} in the store '{self.address}'"))
            )
        if getattr(answer, "length", None):
            raise ConnectionError("the connection ended early")
        return body

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
        deadline: Deadline,
    ) -> http.client.HTTPResponse:
        """Return the response to a request; raises StoreError if the registry answers with an error."""
        tries = self._patience.tries
        has_answered = False
        while True:
            pace = self._pace(deadline)
            with contextlib.nullcontext() if file is None else file.open("rb") as body:
                request = urllib.request.Request(  # noqa: S310 - Address allows http and https
                    url,
                    method=method,
                    data=data if body is None else PacedFile(body, pace),
                    headers={**(headers or {}), **self._authorizer.headers(url)},
                )
                try:
                    return self._opener.open(request, pace)
                except urllib.error.HTTPError as error:
                    tries -= 1
                    if error.code in (allowed or ()):
                        return error  # type: ignore[return-value]
                    error.close()
                    challenge = ", ".join(error.headers.get_all("WWW-Authenticate") or ())
                    if (
                        error.code == http.HTTPStatus.UNAUTHORIZED
                        and not has_answered
                        and self._authorizer.answer(challenge, url=error.url)
                    ):
                        has_answered = True
                        continue
                    self._wait_for_another_try(
                        error, what, tries, deadline, has_answered=has_answered
                    )
                except RefusedUrlError as error:
                    raise StoreError(
                        f"The request for {what} can't be sent to the store '{self.address}': {error}."
                    ) from error

    def _wait_for_another_try(
        self,
        error: urllib.error.HTTPError,
        what: str,
        tries: int,
        deadline: Deadline,
        *,
        has_answered: bool,
    ) -> None:
        """Pause before the request is sent again. Raise StoreError if another try can't succeed."""
        not_followed = why_not_followed(error)
        # urllib's reason for a redirect has several lines, so the reason is left out.
        reason = (
            f" {shortened(visible_line(error.reason), _REASON_BYTES)}" if not not_followed else ""
        )
        answer = (
            f"The store '{self.address}' answered {error.code}{reason} to the request for {what}"
        )
        if error.code in _TEMPORARY and tries:
            asked_s = retry_after(error.headers, self._clock)
            if asked_s is not None and asked_s > self._patience.longest_pause_s:
                raise StoreError(
                    f"{answer}, and asks for a pause of {asked_s:.0f} s, which is too long; try later."
                ) from error
            self._pause(self._patience.pause_s if asked_s is None else asked_s, what, deadline)
            return
        remedy = {
            401: f"{'the registry refused the log-in; ' if has_answered else ''}log in by `docker login {self.address.host}`",
            403: "ask the operator of the registry for the right to do this",
            404: "check the address",
            405: "the registry forbids this; allow deletion in its configuration",
            413: "the registry, or a proxy in front of it, limits the size of uploads; raise that limit",
            429: "the registry limits the number of requests; try later",
            507: "the registry's disk is full; free some space on it",
        }.get(error.code, "look into the registry's log")
        if not_followed is not None:
            remedy = f"the redirect is not followed: {not_followed}"
        raise StoreError(f"{answer}; {remedy}.") from error

    def _pause(self, pause_s: float, what: str, deadline: Deadline) -> None:
        if pause_s >= deadline.remaining_s():
            raise self._late(what)
        self._clock.sleep(pause_s)

    def _late(self, what: str) -> StoreError:
        return StoreError(
            f"The request for {what} to the store '{self.address}' did not end before the "
            f"deadline; {STORE_SECONDS.variable} allows {STORE_SECONDS.value} s for a pull, a push "
            "or a list."
        )

    def _pace(self, deadline: Deadline) -> Pace:
        return Pace(
            stall_s=self._patience.timeout_s,
            stall_bytes=self._patience.stall_bytes,
            deadline=deadline,
        )

    def _get_token(self, url: str, headers: Mapping[str, str], form: bytes | None = None) -> bytes:
        request = urllib.request.Request(url, form, dict(headers))  # noqa: S310 - Authorizer says so
        deadline = self.deadline().sooner(self._patience.timeout_s)
        try:
            with self._opener.open(request, self._pace(deadline)) as answer:
                return self._read(answer, "a token")
        except (http.client.HTTPException, WaitTimeoutError) as error:
            raise OSError(str(error)) from error


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _reason(error: Exception) -> str:
    """Return a clause that says why a try failed."""
    if isinstance(error, StalledError):
        return f"it {error}"
    return str(getattr(error, "reason", error)).strip() or type(error).__name__


def _start(what: str) -> str:
    return what[:1].upper() + what[1:]
