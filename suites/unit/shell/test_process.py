"""Creates and clears the anonymous files of a shell; no shell runs."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from harness.shell.process import ShellFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.shell.protocol import Memory


def _texts(memories: Sequence[Memory]) -> list[str]:
    return [memory.text() for memory in memories]


def test_clearing_empties_only_the_outputs_of_one_example() -> None:
    with contextlib.closing(ShellFiles.create()) as files:
        for memory in files.memories():
            os.write(memory.fd, b"left")

        files.outputs[1].clear()

        second = [
            getattr(files.outputs[1], name)
            for name in ("out", "err", "stray_err", "stray_out", "records")
        ]
        others = [memory for memory in files.memories() if memory not in second]
        assert _texts(second) == [""] * 5
        assert _texts(others) == ["left"] * (len(files.memories()) - 5)
        for memory in second:
            os.write(memory.fd, b"next")
        assert _texts(second) == ["next"] * 5


def test_memfds_are_closed_if_a_further_memfd_cannot_be_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    create = os.memfd_create

    def refuse(name: str) -> int:
        if len(made) == 12:
            raise OSError(24, "Too many open files")
        made.append(create(name))
        return made[-1]

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(OSError, match="Too many"):
        ShellFiles.create()

    for fd in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
