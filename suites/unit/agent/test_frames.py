"""Frames on a stream that may be split, started and damaged anywhere."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.agent import frames
from harness.agent.frames import Decoder, ProtocolError
from suites.docs.pages import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = st.sampled_from(sorted(frames.NAMES.keys() - {frames.SYNC}))
FRAMES = st.lists(st.tuples(KINDS, st.integers(0, 0xFFFFFFFF), st.binary(max_size=200)))


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        yield data[start:end]


@given(sent=FRAMES, cuts=st.lists(st.integers(0, 1 << 20)))
def test_decoder_returns_the_same_frames_wherever_the_stream_is_split(
    sent: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(frames.encode(*frame) for frame in sent)
    decoder = Decoder(is_synced=True)

    assert [frame for piece in pieces(stream, cuts) for frame in decoder.feed(piece)] == sent


@given(garbage=st.binary(max_size=300), sent=FRAMES, cuts=st.lists(st.integers(0, 1 << 20)))
def test_frames_after_a_sync_frame_are_decoded_whatever_bytes_precede_it(
    garbage: bytes, sent: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    stream = garbage + frames.SYNC_FRAME + b"".join(frames.encode(*frame) for frame in sent)
    decoder = Decoder(is_synced=False)

    assert [frame for piece in pieces(stream, cuts) for frame in decoder.feed(piece)] == sent


@given(data=st.binary(max_size=2000))
def test_decoding_arbitrary_bytes_raises_no_other_error_than_a_protocol_error(data: bytes) -> None:
    decoder = Decoder(is_synced=True)

    with contextlib.suppress(ProtocolError):
        for kind, _request, payload in decoder.feed(data):
            assert kind in frames.NAMES
            assert len(payload) <= frames.MAX_PAYLOAD


def test_frame_over_the_length_limit_is_refused_after_earlier_frames_were_decoded() -> None:
    good = frames.encode(frames.PING, 7)
    bad = bytes((frames.DATA,)) + bytes(4) + (frames.MAX_PAYLOAD + 1).to_bytes(4, "big")
    decoder = Decoder(is_synced=True)
    found = decoder.feed(good + bad)

    assert next(found) == (frames.PING, 7, b"")
    with pytest.raises(
        ProtocolError, match=r"'data' has a length of 65537 bytes; the limit is 65536"
    ):
        next(found)

    decoder.lose_sync()
    assert list(decoder.feed(frames.SYNC_FRAME + good)) == [(frames.PING, 7, b"")]


def test_decoder_that_loses_sync_decodes_nothing_before_the_next_complete_sync_frame() -> None:
    decoder = Decoder(is_synced=True)
    stream = frames.encode(frames.PING, 1) + frames.encode(frames.PING, 2)

    for _ in decoder.feed(stream):
        decoder.lose_sync()

    assert list(decoder.feed(stream)) == []
    assert list(decoder.feed(frames.SYNC_FRAME + stream))[1] == (frames.PING, 2, b"")
    assert list(decoder.feed(frames.SYNC_FRAME[:9])) == []
    decoder.lose_sync()
    assert list(decoder.feed(frames.SYNC_FRAME[9:] + stream)) == [], "The mark was not whole."


def test_sync_mark_is_found_even_if_it_is_split_between_two_reads() -> None:
    stream = frames.SYNC_FRAME + frames.encode(frames.PING, 1)
    for cut in range(len(stream)):
        decoder = Decoder(is_synced=False)
        parts = [b"garbage" * 9 + stream[:cut], stream[cut:]]

        assert [each for part in parts for each in decoder.feed(part)] == [(frames.PING, 1, b"")]


def test_message_of_any_length_up_to_the_limit_is_decoded_completely() -> None:
    most = frames.MAX_MESSAGE // frames.MAX_PAYLOAD
    for parts, short in ((1, 0), (1, 1), (2, 0), (2, frames.MAX_PAYLOAD - 1), (most, 0)):
        message = bytes(range(256)) * (parts * frames.MAX_PAYLOAD // 256)
        message = message[: len(message) - short]

        got = list(Decoder(is_synced=True).feed(frames.encode_message(frames.RUN, 3, message)))

        assert [kind for kind, _, _ in got] == [frames.MORE] * (parts - 1) + [frames.RUN]
        assert b"".join(payload for _, _, payload in got) == message


def test_error_distinguishes_an_overlong_frame_and_an_overlong_message_and_invalid_json() -> None:
    with pytest.raises(ProtocolError, match="A frame of 65537 bytes"):
        frames.encode(frames.DATA, 1, bytes(65537))
    with pytest.raises(ProtocolError, match="A message of 8388609 bytes"):
        frames.encode_message(frames.RUN, 1, bytes(frames.MAX_MESSAGE + 1))
    with pytest.raises(ProtocolError, match="A frame's payload is not JSON: "):
        frames.from_json(b"{")
    with pytest.raises(ProtocolError, match="A frame's payload is not a JSON object"):
        frames.from_json(b"[]")


def test_agent_loader_of_the_image_uses_the_same_frame_constants_as_the_agent() -> None:
    """The loader runs before the agent arrives, so it cannot import the agent's frames."""
    loader = REPOSITORY / "images/debian-12/root/usr/lib/harness/agent-loader"
    said = dict(re.findall(r"^([A-Z_]+) = (.+)$", loader.read_text(), re.MULTILINE))

    assert said["HEADER_BYTES"] == str(frames.HEADER_BYTES)
    assert said["MAX_PAYLOAD"] == str(frames.MAX_PAYLOAD)
    assert ast.literal_eval(said["SYNC_FRAME"]) == frames.SYNC_FRAME
    assert "BOOT, PROGRAM, PROGRAM_END, HELLO = 0x01, 0x02, 0x03, 0x10" in loader.read_text()
    assert (frames.BOOT, frames.PROGRAM, frames.PROGRAM_END, frames.HELLO) == (1, 2, 3, 0x10)


def test_decoder_discards_bytes_before_the_first_sync_frame() -> None:
    """A console that prints into the port may do so for hours."""
    decoder = Decoder(is_synced=False)

    for _ in range(100):
        assert list(decoder.feed(b"x" * 5000)) == []
    assert len(decoder._buffer) < len(frames.SYNC_FRAME)
    assert list(decoder.feed(frames.SYNC_FRAME + frames.encode(frames.PING, 1))) == [
        (frames.PING, 1, b"")
    ]
