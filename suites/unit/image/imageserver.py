"""An HTTP server in a thread, which serves files from memory and can answer with faults."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class ImageServer:
    """The files, the planned faults and the received requests of an HTTP server.

    Each request for a path uses up the first of the path's `faults`; without faults, the server
    answers correctly.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = {f"/images/{name}": content for name, content in files.items()}
        self.faults: dict[str, list[Callable[[Handler], None]]] = {}
        self.requests: list[str] = []
        self.port = 0
        #: The beginning of this host's ETags; another host has other ETags for the same content.
        self.label = ""

    @property
    def folder(self) -> str:
        return f"http://127.0.0.1:{self.port}/images/"

    def url(self, name: str) -> str:
        return f"{self.folder}{name}"

    def put(self, name: str, content: bytes) -> None:
        self.files[f"/images/{name}"] = content

    def fail_with(self, name: str, *faults: Callable[[Handler], None]) -> None:
        """Answer the next requests for a file with these faults, one for each request."""
        self.faults.setdefault(f"/images/{name}", []).extend(faults)

    def asked(self, name: str) -> list[str]:
        """Return the Range header of each request for a file; `whole` stands for a missing header."""
        return [
            request.partition(" ")[2] or "whole"
            for request in self.requests
            if request.partition(" ")[0].endswith(f"/images/{name}")
        ]


class Handler(BaseHTTPRequestHandler):
    """Answers one HTTP request; a subclass sets the server to which the request belongs."""

    server_of_images: ImageServer

    def do_GET(self) -> None:
        server = self.server_of_images
        server.requests.append(f"{self.path} {self.headers.get('Range', '')}".rstrip())
        path = self.path[self.path.index("/images/") :]
        faults = server.faults.get(path)
        if faults:
            faults.pop(0)(self)
        else:
            self.serve(server.files.get(path))

    def serve(self, content: bytes | None, *, cut_at: int | None = None) -> None:
        """Answer with a file or its requested part; stop at offset `cut_at` of the file if given."""
        if content is None:
            self.refuse(404)
            return
        begin = self._begin(content)
        if begin >= len(content):
            self.refuse(416, {"Content-Range": f"bytes */{len(content)}"})
            return
        self.send_response(206 if begin else 200)
        self.send_header("ETag", self._tag(content))
        self.send_header("Content-Length", str(len(content) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[begin:] if cut_at is None else content[begin:cut_at])

    def refuse(self, code: int, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _begin(self, content: bytes) -> int:
        asked = self.headers.get("Range")
        tag = self._tag(content)
        if asked is None or self.headers.get("If-Range", tag) != tag:
            return 0
        return int(asked.removeprefix("bytes=").removesuffix("-"))

    def _tag(self, content: bytes) -> str:
        return f'"{self.server_of_images.label}{hashlib.sha256(content).hexdigest()[:16]}"'

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing; `requests` is the log."""


def cut_at(count: int) -> Callable[[Handler], None]:
    """Return the fault that ends an answer at offset `count` of the file."""
    return lambda handler: handler.serve(
        handler.server_of_images.files[handler.path], cut_at=count
    )


def answer(code: int, **headers: str) -> Callable[[Handler], None]:
    """Return the fault that sends only a status and headers; underscores in names mean hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.refuse(code, named)


@contextlib.contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[ImageServer]:
    """Serve until the end of the block; at the end, check that no thread is left."""
    images = ImageServer(files)
    handler = type("Handler", (Handler,), {"server_of_images": images})
    with _QuietServer(("127.0.0.1", 0), handler) as server:
        images.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield images
        finally:
            server.shutdown()
            thread.join()


class _QuietServer(ThreadingHTTPServer):
    """Prints nothing if a client closes the connection early."""

    @override
    def handle_error(self, request: object, client_address: object) -> None: ...
