"""A registry is a process of the run: it answers on its socket, and is gone with its block."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.image.formats.oci import Entry, archive_of, container_image
from harness.provisioning.wait import SystemClock
from harness.registry.server import RegistryServer, running_registry
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

#: Answers as a registry does that needs a while, on the socket of its configuration; what it is sent it writes down.
_STAND_IN = """
import http.server, json, pathlib, socketserver, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, status, **headers):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with open("requests", "a") as log:
            log.write(f"{self.command} {self.path} {len(body)}\\n")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def do_GET(self):
        self.answer(200 if pathlib.Path("requests").exists() else 503)
    def do_POST(self):
        self.answer(202, Location="http://registry" + self.path + "one?_state=x")
    def do_PUT(self):
        self.answer(500 if "refused" in self.path else 201)
    def address_string(self):
        return ""
    def log_message(self, *args):
        pass

assert sys.argv[1:] == ["serve", "config.yml"]
address = json.loads(pathlib.Path("config.yml").read_text())["http"]["addr"]
pathlib.Path("pid").write_text(str(__import__("os").getpid()))
socketserver.UnixStreamServer(address, Handler).serve_forever()
"""


def stand_in(folder: Path, text: str = _STAND_IN) -> tuple[str, ...]:
    program = folder / "registry.py"
    program.write_text(text)
    return (sys.executable, "-I", str(program))


def an_archive() -> bytes:
    image = container_image([Entry(path="a", content=b"b")], entrypoint=["/a"])
    return archive_of(image, reference="mcr.microsoft.com/gpu:1")


def test_registry_answers_below_a_long_path_and_ends_with_its_block(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 120)

    with running_registry(stand_in(tmp_path), folder) as server:
        with contextlib.closing(server.connection()) as connection:
            connection.request("GET", "/v2/")
            assert connection.getresponse().status == 200
        pid = int((folder / "pid").read_text())
        os.kill(pid, 0)

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_registry_that_ends_at_its_start_is_reported_with_its_output(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "import sys; sys.exit('no such storage')")

    with (
        pytest.raises(HarnessError, match=r"ended with 1 at its start[^$]*no such storage"),
        running_registry(program, tmp_path / "registry"),
    ):
        pass


def _children() -> set[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("on_wait", "error"),
    [(lambda: None, HarnessError), (_interrupt, KeyboardInterrupt)],
    ids=["silent", "interrupted"],
)
def test_registry_whose_start_is_given_up_is_ended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_wait: Callable[[], None],
    error: type[BaseException],
) -> None:
    folder, before = tmp_path / "registry", _children()
    clock = FakeClock(on_sleep=on_wait)
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: clock.monotonic())
    monkeypatch.setattr(SystemClock, "sleep", lambda _, seconds: clock.sleep(seconds))

    with (
        pytest.raises(error),
        running_registry(stand_in(tmp_path, "import time; time.sleep(60)"), folder),
    ):
        pass

    assert _children() == before


def test_image_is_pushed_blob_by_blob_and_then_by_its_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "registry"

    with running_registry(stand_in(tmp_path), folder) as server:
        server.push(an_archive(), repository="aks/gpu", tag="580.1")

    lines = (folder / "requests").read_text().splitlines()[2:]
    assert [line.split("sha256:")[0] for line in lines[:4]] == [
        "POST /v2/aks/gpu/blobs/uploads/ 0",
        "PUT /v2/aks/gpu/blobs/uploads/one?_state=x&digest=",
        "POST /v2/aks/gpu/blobs/uploads/ 0",
        "PUT /v2/aks/gpu/blobs/uploads/one?_state=x&digest=",
    ]
    assert lines[4].startswith("PUT /v2/aks/gpu/manifests/580.1 ")
    assert all(int(line.split()[-1]) > 0 for line in (lines[1], lines[3], lines[4]))


def test_refused_push_is_an_error(tmp_path: Path) -> None:
    with (
        running_registry(stand_in(tmp_path), tmp_path / "registry") as server,
        pytest.raises(HarnessError, match=r"with 201, but answered with 500"),
    ):
        server.push(an_archive(), repository="gpu", tag="refused")


def test_registry_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RegistryServer(folder=tmp_path).push(an_archive(), repository="gpu", tag="1")
