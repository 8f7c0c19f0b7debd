"""A fake registry on the loopback that sends the wrong answers of a test, and records requests."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from harness.shared_store import Address
from harness.shared_store.answers import FILE_TYPE, REST_TYPE, TITLE
from harness.shared_store.source import ARTIFACT_TYPE

NAME = "x-0123456789abcdef"
#: Answers a request and returns True, or returns False to let the registry answer correctly.
Answer = Callable[["Request"], bool]


class Request(http.server.BaseHTTPRequestHandler):
    """Handles one request to `registry`, which a subclass sets."""

    protocol_version = "HTTP/1.1"
    registry: Adversary

    def reply(self, status: int, body: bytes = b"", **headers: str) -> bool:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True

    def flood(self, head: bytes, piece: bytes) -> bool:
        """Send `head`, and then `piece` repeatedly while the client reads, up to 256 MiB."""
        self.close_connection = True
        self.wfile.write(head)
        while not self.registry.is_over.is_set() and self.registry.flooded < 256 << 20:
            self.wfile.write(piece)
            self.registry.flooded += len(piece)
        return True

    def drip(self, content: bytes) -> bool:
        """Send a byte every 20 ms."""
        self.close_connection = True
        for number in range(len(content)):
            self.wfile.write(content[number : number + 1])
            if self.registry.is_over.wait(0.02):
                break
        return True

    def _answer(self) -> None:
        registry = self.registry
        registry.seen.append((self.command, self.path, self.headers.get("Authorization")))
        with contextlib.suppress(ConnectionError):
            if not registry.lie(self):
                registry.answer(self)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - as http.server calls them

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing; the requests are in `seen`."""


@dataclass
class Adversary:
    """A registry's artifact, the wrong answers that it sends, and the requests that it got."""

    lie: Answer = lambda _request: False
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)
    flooded: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        """The URL with the registry's port; other hosts of a test have other ports."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> Address:
        return Address.parse(f"{self.url}/t")

    @property
    def proofs(self) -> set[str]:
        """Return the credentials that clients sent to the registry."""
        return {proof for _, _, proof in self.seen if proof is not None}

    def blob(self, content: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blobs[digest] = content
        return digest

    def layer(self, title: str, content: bytes, kind: str = FILE_TYPE) -> dict[str, Any]:
        packed = gzip.compress(content, 1, mtime=0) if kind == FILE_TYPE else content
        return {
            "mediaType": kind,
            "digest": self.blob(packed),
            "size": len(packed),
            "annotations": {TITLE: title},
        }

    def have(self, files: Mapping[str, bytes], *more: dict[str, Any]) -> None:
        """Store an artifact of these files, with the additional layers `more`."""
        facts = {
            title: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for title, content in files.items()
        }
        own = json.dumps({"files": facts, "parts": {"qemu": "7.2"}}).encode()
        self.manifest = {
            "artifactType": ARTIFACT_TYPE,
            "config": {"digest": self.blob(own)},
            "layers": [*(self.layer(*each) for each in files.items()), *more],
        }

    def answer(self, request: Request) -> None:
        path = request.path
        if "/tags/list" in path:
            request.reply(200, json.dumps({"tags": [NAME]}).encode())
        elif "/manifests/" in path:
            request.reply(200 if self.manifest else 404, json.dumps(self.manifest).encode())
        elif (blob := self.blobs.get(path.rpartition("/")[2])) is not None:
            begin = int(request.headers.get("Range", "bytes=0-")[6:-1])
            extent = {"Content-Range": f"bytes {begin}-{len(blob) - 1}/{len(blob)}"}
            request.reply(206 if begin else 200, blob[begin:], **(extent if begin else {}))
        else:
            request.reply(404)


def zipped(
    entries: Mapping[str, bytes], *, mode: int = 0, method: int = zipfile.ZIP_DEFLATED
) -> bytes:
    """Return a zip archive of the entries, each with the file mode `mode`."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in entries.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = method
            entry.external_attr = mode << 16
            archive.writestr(entry, content)
    return made.getvalue()


def rest(registry: Adversary, archive: bytes) -> dict[str, Any]:
    """Return the layer that packs all files without their own layers into one archive."""
    return registry.layer("rest", archive, REST_TYPE)


@contextlib.contextmanager
def adversary() -> Iterator[Adversary]:
    """Run a registry until the end of the block."""
    registry = Adversary()
    handler = type("Handler", (Request,), {"registry": registry})
    with _QuietServer(("127.0.0.1", 0), handler) as server:
        registry.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            registry.is_over.set()
            server.shutdown()
            thread.join()


class _QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    @override
    def handle_error(self, request: object, client_address: object) -> None: ...
