"""Downloads are resumed where they stopped, and fail if another try cannot succeed."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import pytest

from harness.image import ImageFetchError
from harness.image.cloud.download import Downloader, Patience
from harness.provisioning.wait import Deadline, WaitTimeoutError
from suites.fakes.clock import FakeClock
from suites.unit.image.imageserver import (
    Handler,
    ImageServer,
    answer,
    cut_at,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTENT = bytes(range(250)) * 4
FILE = "x.img"


@pytest.fixture
def server() -> Iterator[ImageServer]:
    with serving({FILE: CONTENT}) as images:
        yield images


class Download:
    """A download to a temporary file, and the messages that it reported."""

    def __init__(self, folder: Path, *, patience: Patience | None = None) -> None:
        self.part = folder / "x.part"
        self.said: list[str] = []
        self.clock = FakeClock()
        self.downloader = Downloader(patience=patience, report=self.said.append)

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


def whole_cut_at(count: int) -> Callable[[Handler], None]:
    """Send the first bytes of the file, whatever range the client requests."""

    def serve(handler: Handler) -> None:
        del handler.headers["Range"]
        cut_at(count)(handler)

    return serve


def failure_of(*errors: str) -> str:
    """Return the expected message of a failed download."""
    return "\n".join(
        [
            "'x.img' could not be downloaded from any of these URLs:",
            *(f"  {error}" for error in errors),
            "  The partial file is kept, and the next run resumes it.",
            "Check the network and the proxy (https_proxy), or name another location with",
            "--mirror.",
        ]
    )


def test_complete_download_leaves_only_the_partial_file(
    server: ImageServer, download: Download, tmp_path: Path
) -> None:
    assert download.run(server.url(FILE)) == server.url(FILE)

    assert download.part.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["x.part"]
    assert download.said == ["100 % of 0.0 MiB downloaded"]


def test_download_that_was_interrupted_at_60_percent_is_resumed(
    server: ImageServer, download: Download
) -> None:
    server.fail_with(FILE, cut_at(600))

    download.run(server.url(FILE))

    assert download.part.read_bytes() == CONTENT
    assert server.asked(FILE) == ["whole", "bytes=600-"]
    assert (
        f"'{server.url(FILE)}' closed the connection after 600 of 1000 bytes; trying again in 2 s"
        in download.said
    )


def test_number_of_tries_does_not_limit_a_download_that_makes_progress(
    server: ImageServer, tmp_path: Path
) -> None:
    download = Download(tmp_path, patience=Patience(tries=2, stall_bytes=100))
    server.fail_with(FILE, *(cut_at(each) for each in range(100, 1000, 100)))

    download.run(server.url(FILE))

    assert download.part.read_bytes() == CONTENT
    assert len(server.asked(FILE)) == 10
    assert download.clock.sleeps == [2.0] * 9


def test_download_that_never_exceeds_its_largest_earlier_size_ends_the_tries(
    server: ImageServer, tmp_path: Path
) -> None:
    """A server without range requests sends the file from its start each time."""
    download = Download(tmp_path, patience=Patience(tries=3, stall_bytes=1))
    server.fail_with(FILE, *(whole_cut_at(each) for each in (600, 300, 500, 300, 500)))

    failure = download.fail(server.url(FILE))

    assert "3 times in a row" in failure
    assert len(server.asked(FILE)) == 3


def test_next_process_resumes_the_download_of_a_killed_process(
    server: ImageServer, tmp_path: Path
) -> None:
    server.fail_with(FILE, cut_at(600))
    hasty = Download(tmp_path, patience=Patience(tries=1))
    assert hasty.fail(server.url(FILE)) == failure_of(
        f"'{server.url(FILE)}' closed the connection after 600 of 1000 bytes."
    )

    Download(tmp_path).run(server.url(FILE))

    assert hasty.part.read_bytes() == CONTENT
    assert server.asked(FILE) == ["whole", "bytes=600-"]


def test_changed_file_is_downloaded_from_the_start(
    server: ImageServer, download: Download
) -> None:
    server.fail_with(FILE, cut_at(600))
    other = CONTENT[::-1]
    first = Download(download.part.parent, patience=Patience(tries=1))
    first.fail(server.url(FILE))
    server.put(FILE, other)

    download.run(server.url(FILE))

    assert download.part.read_bytes() == other
    assert (
        f"'{server.url(FILE)}' has changed, or does not support ranges; downloading the whole file"
        in (download.said)
    )


@pytest.mark.parametrize(
    ("size", "faults"),
    [
        (1200, []),
        (1200, [answer(416)]),
        (1200, [answer(416, Content_Range="bytes */junk")]),
        (1000, [answer(416)]),
        (600, [answer(416, Content_Range="bytes */1000")]),
    ],
    ids=[
        "size in the answer",
        "no size in the answer",
        "malformed size",
        "same size",
        "range refused",
    ],
)
def test_partial_file_is_replaced_if_the_server_has_no_further_bytes(
    server: ImageServer, download: Download, size: int, faults: list[Callable[[Handler], None]]
) -> None:
    """Only a server that reports the size shows whether the file is complete."""
    download.part.write_bytes(b"x" * size)
    server.fail_with(FILE, *faults)

    download.run(server.url(FILE))

    assert download.part.read_bytes() == CONTENT
    assert server.asked(FILE) == [f"bytes={size}-", "whole"]
    assert download.said[0] == (
        f"'{server.url(FILE)}' has no bytes after the first {size} (416); the partial file is deleted; "
        "trying again"
    )


def test_complete_file_is_not_downloaded_again(server: ImageServer, download: Download) -> None:
    download.part.write_bytes(CONTENT)

    download.run(server.url(FILE))

    assert server.asked(FILE) == ["bytes=1000-"]
    assert download.part.read_bytes() == CONTENT


def test_retry_after_header_is_respected(server: ImageServer, download: Download) -> None:
    server.fail_with(
        FILE,
        answer(429, Retry_After="7"),
        answer(503, Retry_After="Fri, 21 Aug 2026 12:00:47 GMT"),
    )

    download.run(server.url(FILE))

    assert download.clock.sleeps == [7.0, 40.0]
    assert download.said[:2] == [
        f"'{server.url(FILE)}' answered 429 Too Many Requests; trying again in 7 s",
        f"'{server.url(FILE)}' answered 503 Service Unavailable; trying again in 40 s",
    ]


def test_retry_after_header_with_too_long_a_pause_ends_the_tries(
    server: ImageServer, download: Download
) -> None:
    server.fail_with(FILE, answer(429, Retry_After="86400"))

    assert download.fail(server.url(FILE)) == failure_of(
        f"'{server.url(FILE)}' answered 429 Too Many Requests, and asks for a pause of 86400 s."
    )
    assert download.clock.sleeps == []


def test_repeated_server_errors_end_the_tries(server: ImageServer, download: Download) -> None:
    server.fail_with(FILE, *[answer(500)] * 5)

    assert download.fail(server.url(FILE)) == failure_of(
        f"'{server.url(FILE)}' answered 500 Internal Server Error, 5 times in a row."
    )
    assert download.clock.sleeps == [2.0, 4.0, 8.0, 16.0]


def test_missing_file_is_requested_once(server: ImageServer, download: Download) -> None:
    assert download.fail(server.url("y.img"), server.url("z.img")).splitlines()[1:3] == [
        f"  '{server.url('y.img')}' answered 404 Not Found.",
        f"  '{server.url('z.img')}' answered 404 Not Found.",
    ]
    assert download.clock.sleeps == []


def test_download_from_the_first_url_is_resumed_from_the_second_url(
    server: ImageServer, download: Download
) -> None:
    with serving({FILE: CONTENT}) as mirror:
        mirror.label = "of the mirror "
        server.fail_with(FILE, cut_at(600), answer(404))

        assert download.run(server.url(FILE), mirror.url(FILE)) == mirror.url(FILE)

        assert mirror.asked(FILE) == ["bytes=600-"]
    assert not any("downloading the whole file" in each for each in download.said)
    assert download.part.read_bytes() == CONTENT


def test_too_slow_download_ends(server: ImageServer, tmp_path: Path) -> None:
    sent = threading.Semaphore(0)
    is_over = threading.Event()

    def trickle(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while sent.acquire(timeout=10) and not is_over.is_set():
            handler.wfile.write(b"x")

    server.fail_with(FILE, trickle)
    download = Download(tmp_path, patience=Patience(tries=1))
    # Each time the client reads its clock, the server may send one more byte.
    download.clock = FakeClock(look_s=1.0, on_look=sent.release)
    failure = download.fail(server.url(FILE))
    is_over.set()
    sent.release()

    assert failure == failure_of(f"'{server.url(FILE)}' sent fewer than 65536 bytes within 30 s.")


def test_try_ends_if_the_server_is_silent(server: ImageServer, tmp_path: Path) -> None:
    is_over = threading.Event()

    def keep_silent(_handler: Handler) -> None:
        is_over.wait(10)

    server.fail_with(FILE, keep_silent)
    download = Download(tmp_path, patience=Patience(tries=1, stall_s=0.1))

    failure = download.fail(server.url(FILE))
    is_over.set()

    assert failure == failure_of(f"'{server.url(FILE)}' sent nothing for 0.1 s.")


def test_error_has_the_url_of_an_unreachable_server(download: Download) -> None:
    with serving({}) as gone:
        url = gone.url(FILE)

    assert re.fullmatch(
        re.escape(f"  '{url}' could not be reached (")
        + r".*Connection refused\), 5 times in a row\.",
        download.fail(url).splitlines()[1],
    )


def test_download_does_not_sleep_beyond_the_deadline(
    server: ImageServer, download: Download
) -> None:
    server.fail_with(FILE, *[answer(500)] * 9)

    with pytest.raises(WaitTimeoutError) as failure:
        download.run(server.url(FILE), within_s=5.0)

    assert str(failure.value) == (
        "The download did not end before its deadline; the last error: "
        f"'{server.url(FILE)}' answered 500 Internal Server Error."
    )
    assert download.clock.sleeps == [2.0]


def test_download_fails_without_a_further_try_if_the_answer_has_a_wrong_range(
    server: ImageServer, download: Download
) -> None:
    download.part.write_bytes(CONTENT[:10])
    server.fail_with(FILE, answer(206, Content_Range="bytes 0-9/1000"))

    assert "sent a range that was not requested." in download.fail(server.url(FILE))


def test_proxy_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({FILE: CONTENT}) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        download = Download(tmp_path)

        download.run("http://images.invalid/images/x.img")

        assert proxy.requests == ["http://images.invalid/images/x.img"]
    assert download.part.read_bytes() == CONTENT


@pytest.mark.parametrize(
    "proxy", ["http://proxy:port", "http://a b:1", "http:/proxy", "http:/me:secret@proxy"]
)
def test_malformed_proxy_ends_the_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy)

    failure = Download(tmp_path).fail("http://images.invalid/images/x.img")

    assert "'http://images.invalid/images/x.img' can't be requested (" in failure
    assert "times in a row" not in failure
    assert "secret" not in failure


@pytest.mark.parametrize("name", ["missing", "", "file/x"])
def test_unreadable_file_url_is_tried_only_once(
    download: Download, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()

    failure = download.fail(f"file://{tmp_path}/{name}")

    assert "could not be reached ([Errno" in failure
    assert "times in a row" not in failure


def test_proxy_that_sends_data_before_the_encryption_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\nLog in first.")

    with serving({}) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setattr(Handler, "do_CONNECT", accept, raising=False)

        failure = Download(tmp_path).fail("https://images.invalid/x.img")

    assert "'https://images.invalid/x.img' could not be reached (" in failure


def test_truncated_small_file_is_requested_again(server: ImageServer, download: Download) -> None:
    server.fail_with(FILE, cut_at(999))

    url, content = download.downloader.read(
        [server.url(FILE)], deadline=Deadline.after(60, download.clock)
    )

    assert (url, content) == (server.url(FILE), CONTENT)
    assert download.said == [
        f"'{url}' closed the connection after 999 of 1000 bytes; trying again in 2 s"
    ]
