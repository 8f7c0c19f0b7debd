"""Anonymous files between the harness and a shell."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from harness.limits import SHELL_OUTPUT, LimitError
from harness.shell.protocol import Memory, RecordReader, make_pipes, records_in

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_write_to_a_memfd_appends_whatever_its_position() -> None:
    """Two processes that share a memfd's position may write at this position at the same time."""
    memory = Memory("shared")
    os.write(memory.fd, b"first\n")
    os.lseek(memory.fd, 0, os.SEEK_SET)

    os.write(memory.fd, b"second\n")

    assert memory.text() == "first\nsecond\n"
    memory.close()


def test_replace_leaves_only_the_new_text_and_rewinds_the_memfd() -> None:
    memory = Memory("script")
    memory.replace("a longer text than the next one")

    memory.replace("sh\0ort")

    assert os.read(memory.fd, 100) == b"sh\0ort"
    assert memory.text() == "short"
    memory.close()


@pytest.fixture
def pipe() -> Iterator[tuple[RecordReader, int]]:
    """Yield a reader, and the writing end of its pipe."""
    reading, writing = os.pipe()
    reader = RecordReader(reading)
    yield reader, writing
    reader.close()
    os.close(writing)


def test_stream_of_records_is_read_up_to_the_limit(
    pipe: tuple[RecordReader, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHELL_OUTPUT.variable, "1")
    reader, writing = pipe
    part = b"x" * (1 << 14)

    for _ in range(64):
        os.write(writing, part)
        reader.read()
    os.write(writing, part)
    with pytest.raises(LimitError, match="the limit 'shell-output-mib'"):
        reader.read()

    reader.received = 0
    os.write(writing, part)
    assert reader.read()


def test_record_is_complete_although_it_arrives_in_several_chunks(
    pipe: tuple[RecordReader, int],
) -> None:
    reader, writing = pipe
    for piece in (b"fi", b"rs", b"t\0", b"2\0a", b"b\0"):
        os.write(writing, piece)
        reader.read()
        assert reader.next_record() is None
    os.write(writing, b"c\0second\x000\0")
    reader.read()

    assert reader.next_record() == ("first", ["ab", "c"])
    assert reader.next_record() == ("second", [])
    assert list(records_in(b"a\x001\0x\0b\x000\0")) == [("a", ["x"]), ("b", [])]
    for cut in (b"a\x002\0x\0", b"a\x00-1\0x\0"):
        with pytest.raises(ValueError, match="the last record is incomplete"):
            list(records_in(cut))


def test_text_that_a_trap_prints_between_records_is_skipped() -> None:
    """A trap that a called function has set may print to the descriptor for records."""
    called, when = b"called\x001\x005\0", b"\0when\x002\x005\x000\0"
    begun, ended = ("called", ["5"]), ("when", ["5", "0"])

    for printed in (b"", b"D\n", b"a\0b\0"):
        assert list(records_in(called + printed + when)) == [begun, ended], printed
    for printed in (b"", b"bye\n", b"a\0b\0"):
        assert list(records_in(called + printed)) == [begun], printed


def test_pipes_are_closed_if_a_further_pipe_cannot_be_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    pipe = os.pipe

    def refuse() -> tuple[int, int]:
        if made:
            raise OSError(24, "Too many open files")
        made.extend(pipe())
        return made[0], made[1]

    monkeypatch.setattr(os, "pipe", refuse)
    with pytest.raises(OSError, match="Too many"):
        make_pipes(2)

    for fd in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_record_with_too_many_empty_fields_is_refused(pipe: tuple[RecordReader, int]) -> None:
    """An empty field takes one byte in the stream, but more bytes in memory."""
    reader, writing = pipe

    def flood() -> None:
        for _ in range(1 << 7):
            os.write(writing, bytes(1 << 14))
            reader.read()

    with pytest.raises(ValueError, match="no record has so many fields"):
        flood()
    with pytest.raises(ValueError, match="no record has so many fields"):
        list(records_in(bytes((1 << 20) + 1)))


def test_memfd_is_read_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHELL_OUTPUT.variable, "1")
    memory = Memory("trial")
    os.truncate(memory.fd, 1 << 40)

    with pytest.raises(LimitError, match="the limit 'shell-output-mib'"):
        memory.text()

    assert len(memory.data(end=1 << 20)) == 1 << 20
    memory.close()
