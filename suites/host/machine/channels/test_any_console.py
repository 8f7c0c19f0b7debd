"""Whatever bytes a guest prints on its console, a wait ends with a match or an error."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.machine.channels.console import Console
from harness.provisioning.wait import Deadline
from harness.visible_text import visible


@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=300),
            st.sampled_from(
                [
                    b"login: ",
                    b"Kernel panic - not syncing: x\r\n",
                    b"\x1b[2J\x1b]0;title\x07",
                    b"\xf0\x9f\x98",
                    b"\xff\xfe\x00",
                    b"\r" * 200,
                    b"\n" * 200,
                ]
            ),
        ),
        max_size=20,
    )
)
def test_wait_on_a_console_ends_with_a_match_or_an_error_for_any_bytes(
    pieces: list[bytes],
) -> None:
    ours, theirs = socket.socketpair()
    console = Console("node", ours)
    heard: list[bytes] = []
    ended = threading.Event()

    def hear(chunk: bytes) -> None:
        heard.append(chunk)
        if not chunk:
            ended.set()

    try:
        with console.tapped(hear):
            for piece in pieces:
                theirs.sendall(piece)
            theirs.shutdown(socket.SHUT_WR)
            with contextlib.suppress(HarnessError):
                assert (
                    console.wait_for("login: ", Deadline.after(20), what="a prompt") == "login: "
                )
            with contextlib.suppress(HarnessError):
                console.wait_for("never there", Deadline.after(20), what="its end")
            # A fatal message ends a wait before the end of the output was read.
            assert ended.wait(20)
        late: list[bytes] = []
        with console.tapped(late.append):
            assert late[-1:] == [b""], "who listens after the end learns of it"
        with pytest.raises(HarnessError, match=r"^Machine 'node' was expected to print") as caught:
            console.wait_for("never there", Deadline.after(20), what="its end")
        assert visible(str(caught.value)) == str(caught.value)
    finally:
        console.close()
        theirs.close()
    assert b"".join(heard) == b"".join(pieces)
