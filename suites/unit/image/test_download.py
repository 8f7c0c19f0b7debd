"""Downloads: gone on with where they stopped, given up when nothing good can come."""

from __future__ import annotations

import io
import re
import threading
import urllib.request
from http.client import HTTPMessage
from typing import TYPE_CHECKING

import pytest

from harness.image import ImageFetchError
from harness.image.download import Downloader, NoDowngrade, Patience
from harness.provisioning.wait import Deadline, WaitTimeoutError
from suites.unit.image.imageserver import (
    Handler,
    ImageServer,
    PausingClock,
    answer,
    cut_at,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = bytes(range(250)) * 4
FILE = "x.img"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this host's proxy play no part."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[ImageServer]:
    with serving({FILE: CONTENT}) as images:
        yield images


class Download:
    """A download to a temporary file, and what it said."""

    def __init__(self, folder: Path, *, patience: Patience | None = None) -> None:
        self.part = folder / "x.part"
        self.said: list[str] = []
        self.clock = PausingClock()
        self.downloader = Downloader(patience=patience, tell=self.said.append)

    def run(self, *urls: str, within_s: float = 3600.0) -> str:
        deadline = Deadline.after(within_s, self.clock)
        return self.downloader.to_file(urls, self.part, deadline=deadline)

    def fail(self, *urls: str) -> str:
        with pytest.raises(ImageFetchError) as failure:
            self.run(*urls)
        return str(failure.value)


@pytest.fixture
def download(tmp_path: Path) -> Download:
    return Download(tmp_path)


def failure_of(*troubles: str) -> str:
    """Return the sentences that a download ends with."""
    return "\n".join(
        [
            "'x.img' could not be fetched; every place was tried:",
            *(f"  {trouble}" for trouble in troubles),
            "  What came is kept, and the next try goes on with it.",
            "See whether this host has a network or needs a proxy (https_proxy),",
            "or name another place with --mirror.",
        ]
    )


def test_file_is_fetched_whole_and_nothing_else_is_left(
    server: ImageServer, download: Download, tmp_path: Path
) -> None:
    assert download.run(server.url(FILE)) == server.url(FILE)

    assert download.part.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["x.part"]
    assert download.said == ["100 % of 0.0 MiB have come"]


def test_connection_cut_at_60_percent_is_gone_on_with(
    server: ImageServer, download: Download
) -> None:
    server.trouble(FILE, cut_at(600))

    download.run(server.url(FILE))

    assert download.part.read_bytes() == CONTENT
    assert server.asked(FILE) == ["whole", "bytes=600-"]
    assert (
        f"'{server.url(FILE)}' closed the connection after 600 of 1000 bytes; trying again in 2 s"
        in download.said
    )


def test_next_process_goes_on_where_the_last_one_was_killed(
    server: ImageServer, tmp_path: Path
) -> None:
    server.trouble(FILE, cut_at(600))
    hasty = Download(tmp_path, patience=Patience(tries=1))
    assert hasty.fail(server.url(FILE)) == failure_of(
        f"'{server.url(FILE)}' closed the connection after 600 of 1000 bytes."
    )

    Download(tmp_path).run(server.url(FILE))

    assert hasty.part.read_bytes() == CONTENT
    assert server.asked(FILE) == ["whole", "bytes=600-"]


def test_file_that_changed_meanwhile_is_fetched_whole(
    server: ImageServer, download: Download
) -> None:
    server.trouble(FILE, cut_at(600))
    other = CONTENT[::-1]
    first = Download(download.part.parent, patience=Patience(tries=1))
    first.fail(server.url(FILE))
    server.put(FILE, other)

    download.run(server.url(FILE))

    assert download.part.read_bytes() == other
    assert f"'{server.url(FILE)}' has another file by now, or sends files only whole" in (
        download.said
    )


def test_server_with_nothing_beyond_what_is_here_is_asked_anew(
    server: ImageServer, download: Download
) -> None:
    download.part.write_bytes(b"x" * 1200)

    download.run(server.url(FILE))

    assert download.part.read_bytes() == CONTENT
    assert server.asked(FILE) == ["bytes=1200-", "whole"]
    assert download.said[0] == (
        f"'{server.url(FILE)}' has nothing beyond the 1200 bytes that are here (416), which are "
        "dropped; trying again"
    )


def test_file_that_was_complete_already_is_taken(server: ImageServer, download: Download) -> None:
    download.part.write_bytes(CONTENT)

    download.run(server.url(FILE))

    assert server.asked(FILE) == ["bytes=1000-"]
    assert download.part.read_bytes() == CONTENT


def test_server_that_asks_for_a_pause_gets_it(server: ImageServer, download: Download) -> None:
    server.trouble(
        FILE,
        answer(429, Retry_After="7"),
        answer(503, Retry_After="Fri, 21 Aug 2026 12:00:40 GMT"),
    )

    download.run(server.url(FILE))

    assert download.clock.pauses == [7.0, 40.0]
    assert download.said[:2] == [
        f"'{server.url(FILE)}' answered 429 Too Many Requests; trying again in 7 s",
        f"'{server.url(FILE)}' answered 503 Service Unavailable; trying again in 40 s",
    ]


def test_server_that_asks_for_too_long_a_pause_is_left(
    server: ImageServer, download: Download
) -> None:
    server.trouble(FILE, answer(429, Retry_After="86400"))

    assert download.fail(server.url(FILE)) == failure_of(
        f"'{server.url(FILE)}' answered 429 Too Many Requests, and asks to wait 86400 s."
    )
    assert download.clock.pauses == []


def test_server_that_keeps_failing_is_given_up(server: ImageServer, download: Download) -> None:
    server.trouble(FILE, *[answer(500)] * 5)

    assert download.fail(server.url(FILE)) == failure_of(
        f"'{server.url(FILE)}' answered 500 Internal Server Error, 5 times in a row."
    )
    assert download.clock.pauses == [2.0, 4.0, 8.0, 16.0]


def test_server_without_the_file_is_asked_once(server: ImageServer, download: Download) -> None:
    assert download.fail(server.url("y.img"), server.url("z.img")).splitlines()[1:3] == [
        f"  '{server.url('y.img')}' answered 404 Not Found.",
        f"  '{server.url('z.img')}' answered 404 Not Found.",
    ]
    assert download.clock.pauses == []


def test_second_place_goes_on_with_what_the_first_one_began(
    server: ImageServer, download: Download
) -> None:
    with serving({FILE: CONTENT}) as mirror:
        server.trouble(FILE, cut_at(600), answer(404))

        assert download.run(server.url(FILE), mirror.url(FILE)) == mirror.url(FILE)

        assert mirror.asked(FILE) == ["bytes=600-"]
    assert download.part.read_bytes() == CONTENT


def test_slow_trickle_is_ended(server: ImageServer, tmp_path: Path) -> None:
    sent = threading.Semaphore(0)
    is_over = threading.Event()

    def trickle(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while sent.acquire(timeout=10) and not is_over.is_set():
            handler.wfile.write(b"x")

    server.trouble(FILE, trickle)
    download = Download(tmp_path, patience=Patience(tries=1))
    # Each look of the client lets the server send one byte more.
    download.clock = PausingClock(look_s=1.0, on_look=sent.release)
    failure = download.fail(server.url(FILE))
    is_over.set()
    sent.release()

    assert failure == failure_of(f"'{server.url(FILE)}' sent fewer than 65536 bytes within 30 s.")


def test_server_that_sends_nothing_is_left(server: ImageServer, tmp_path: Path) -> None:
    is_over = threading.Event()

    def keep_silent(_handler: Handler) -> None:
        is_over.wait(10)

    server.trouble(FILE, keep_silent)
    download = Download(tmp_path, patience=Patience(tries=1, stall_s=0.1))

    failure = download.fail(server.url(FILE))
    is_over.set()

    assert failure == failure_of(f"'{server.url(FILE)}' sent nothing for 0.1 s.")


def test_server_that_is_not_there_is_named(download: Download) -> None:
    with serving({}) as gone:
        url = gone.url(FILE)

    assert re.fullmatch(
        re.escape(f"  '{url}' could not be reached (")
        + r".*Connection refused\), 5 times in a row\.",
        download.fail(url).splitlines()[1],
    )


def test_deadline_ends_the_pauses_too(server: ImageServer, download: Download) -> None:
    server.trouble(FILE, *[answer(500)] * 9)

    with pytest.raises(WaitTimeoutError) as failure:
        download.run(server.url(FILE), within_s=5.0)

    assert str(failure.value) == (
        "The time for the download is over; last seen: "
        f"'{server.url(FILE)}' answered 500 Internal Server Error."
    )
    assert download.clock.pauses == [2.0]


def test_server_that_sends_another_part_is_left(server: ImageServer, download: Download) -> None:
    download.part.write_bytes(CONTENT[:10])
    server.trouble(FILE, answer(206, Content_Range="bytes 0-9/1000"))

    assert "sent another part than it was asked for." in download.fail(server.url(FILE))


def test_proxy_of_the_environment_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({FILE: CONTENT}) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        download = Download(tmp_path)

        download.run("http://images.invalid/images/x.img")

        assert proxy.requests == ["http://images.invalid/images/x.img"]
    assert download.part.read_bytes() == CONTENT


def test_file_url_is_a_place_too(tmp_path: Path, download: Download) -> None:
    (tmp_path / FILE).write_bytes(CONTENT)

    download.run((tmp_path / "absent.img").as_uri(), (tmp_path / FILE).as_uri())

    assert download.part.read_bytes() == CONTENT


def test_redirection_from_https_to_http_is_refused() -> None:
    request = urllib.request.Request("https://example.org/x.img")

    with pytest.raises(Exception, match=r"leads to 'http://example\.org/x\.img', which is no"):
        NoDowngrade().redirect_request(
            request,
            io.BytesIO(),
            302,
            "Found",
            HTTPMessage(),
            "http://example.org/x.img",
        )


def test_small_file_that_came_cut_is_asked_for_again(
    server: ImageServer, download: Download
) -> None:
    server.trouble(FILE, cut_at(999))

    url, content = download.downloader.read(
        [server.url(FILE)], deadline=Deadline.after(60, download.clock)
    )

    assert (url, content) == (server.url(FILE), CONTENT)
    assert download.said == [
        f"'{url}' closed the connection after 999 of 1000 bytes; trying again in 2 s"
    ]
