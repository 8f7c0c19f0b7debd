"""Events that cross from one process to another by a socket."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from harness.progress import ProgressEvent, Stage
from harness.progress.relay import Receiver, Sender

if TYPE_CHECKING:
    from pathlib import Path

_EVENT = ProgressEvent(subject="node-1", stage=Stage.BUSY, message="waits", until=12.5)


def test_events_arrive_with_their_worker(tmp_path: Path) -> None:
    taken: list[tuple[ProgressEvent, str]] = []
    receiver = Receiver(tmp_path, lambda event, worker: taken.append((event, worker)))

    for worker in ("gw0", "gw1"):
        with contextlib.closing(Sender(receiver.place, worker)) as sender:
            sender(_EVENT)
    receiver.close()

    assert taken == [(_EVENT, "gw0"), (_EVENT, "gw1")]


def test_long_message_is_cut_and_arrives(tmp_path: Path) -> None:
    taken: list[ProgressEvent] = []
    receiver = Receiver(tmp_path, lambda event, _worker: taken.append(event))

    with contextlib.closing(Sender(receiver.place, "gw0")) as sender:
        sender(ProgressEvent(subject="node-1", stage=Stage.CONSOLE, message="\x01" * 100_000))
    receiver.close()

    assert len(taken[0].message) == 2000


def test_sender_continues_when_the_receiver_is_gone(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path, lambda _event, _worker: None)
    receiver.close()

    with contextlib.closing(Sender(receiver.place, "gw0")) as sender:
        sender(_EVENT)
