"""A registry is a process of the run: it answers on its socket, and ends with its `with` block."""

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

#: A program that acts as a registry which starts slowly: it answers its first request with 503. It
#: listens on the socket that its configuration names, and logs the paths of the requests.
_STAND_IN = """
import http.server, json, pathlib, socketserver, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200 if pathlib.Path("requests").exists() else 503)
        with open("requests", "a") as log:
            log.write(f"{self.path}\\n")
        self.send_header("Content-Length", "0")
        self.end_headers()
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


def test_registry_runs_in_a_folder_with_a_long_path_until_the_with_block_ends(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("a" * 120)

    with running_registry(stand_in(tmp_path), folder) as server:
        with contextlib.closing(server.connection()) as connection:
            connection.request("GET", "/v2/")
            assert connection.getresponse().status == 200
        assert (folder / "requests").read_text().split() == ["/v2/"] * 3
        pid = int((folder / "pid").read_text())
        os.kill(pid, 0)

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_error_for_a_registry_that_exits_at_its_start_quotes_its_output(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "import sys; sys.exit('no such storage')")

    with (
        pytest.raises(
            HarnessError, match=r"ended with exit code 1 at its start[^$]*no such storage"
        ),
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
def test_registry_that_starts_too_slowly_or_is_interrupted_is_killed(
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


def test_push_to_a_registry_that_does_not_run_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RegistryServer(folder=tmp_path).push(an_archive(), repository="gpu", tag="1")
