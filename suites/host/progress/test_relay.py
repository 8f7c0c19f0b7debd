"""The socket by which workers send progress events to the main process."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from harness.progress import ProgressEvent, Stage, relay
from harness.progress.relay import Receiver, Sender

if TYPE_CHECKING:
    from pathlib import Path

_EVENT = ProgressEvent(subject="node-1", stage=Stage.BUSY, message="waits", until=12.5)


def test_events_arrive_with_the_name_of_their_worker(tmp_path: Path) -> None:
    taken: list[tuple[ProgressEvent, str]] = []
    receiver = Receiver(tmp_path, lambda event, worker: taken.append((event, worker)))

    for worker in ("gw0", "gw1"):
        with contextlib.closing(Sender(receiver.place, worker)) as sender:
            sender(_EVENT)
    receiver.close()

    assert taken == [(_EVENT, "gw0"), (_EVENT, "gw1")]


def test_receiver_refuses_a_folder_whose_path_is_too_long(tmp_path: Path) -> None:
    (tmp_path / ("x" * 200)).mkdir()

    with pytest.raises(OSError, match="too long"):
        Receiver(tmp_path / ("x" * 200), lambda _event, _worker: None)


def test_long_progress_message_is_truncated(tmp_path: Path) -> None:
    taken: list[ProgressEvent] = []
    receiver = Receiver(tmp_path, lambda event, _worker: taken.append(event))

    with contextlib.closing(Sender(receiver.place, "gw0")) as sender:
        sender(ProgressEvent(subject="node-1", stage=Stage.CONSOLE, message="\x01" * 100_000))
    receiver.close()

    assert len(taken[0].message) == 2000


def test_malformed_datagrams_are_ignored(tmp_path: Path) -> None:
    taken: list[ProgressEvent] = []
    receiver = Receiver(tmp_path, lambda event, _worker: taken.append(event))
    wrong = (b"{", b"[]", b"3", b"{}", b'{"worker": "gw0", "stage": "x"}', b"\xff")
    unknown = b'{"worker": "gw0", "stage": "busy", "subject": "a", "message": "b", "more": 1}'

    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as other:
        for content in (*wrong, unknown):
            other.sendto(content, receiver.place)
    with contextlib.closing(Sender(receiver.place, "gw0")) as sender:
        sender(_EVENT)
    receiver.close()

    assert taken == [_EVENT]


def test_sender_does_not_block_if_nobody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_SEND_S", 0.001)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as silent:
        silent.bind(str(tmp_path / "progress"))
        with contextlib.closing(Sender(str(tmp_path / "progress"), "gw0")) as sender:
            for _ in range(600):
                sender(_EVENT)


def test_sender_continues_when_the_receiver_is_gone(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path, lambda _event, _worker: None)
    receiver.close()

    with contextlib.closing(Sender(receiver.place, "gw0")) as sender:
        sender(_EVENT)
