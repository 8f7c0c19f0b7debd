"""Anonymous files between the harness and a shell."""

from __future__ import annotations

import os

from harness.shell.protocol import Memory


def test_write_from_an_earlier_position_overwrites_nothing() -> None:
    """Two processes that share a memfd's position may write at the same one at the same time."""
    memory = Memory("shared")
    os.write(memory.fd, b"first\n")
    os.lseek(memory.fd, 0, os.SEEK_SET)

    os.write(memory.fd, b"second\n")

    assert memory.text() == "first\nsecond\n"
    memory.close()


def test_replaced_text_is_the_only_content_and_is_read_from_its_beginning() -> None:
    memory = Memory("script")
    memory.replace("a longer text than the next one")

    memory.replace("short")

    assert os.read(memory.fd, 100) == b"short"
    assert memory.text() == "short"
    memory.close()
