"""Commands in a guest by ssh: the text that is sent, and how the answer is parsed."""

from __future__ import annotations

import pytest

from harness.machine.channels.ssh import (
    find_ending,
    render_remote,
)
from harness.provisioning.command import LocalRunner

NONCE = "0011223344556677"
HOSTILE = (
    "",
    "two words",
    "it's",
    '"double"',
    "$(reboot)",
    "`reboot`",
    "a;b&&c|d>e<f",
    "line\nbreak",
    "back\\slash",
    "*?[x]~",
    "--option",
    "-",
    "é\u2028",
    "%s\\n",
    "!history",
    "#comment",
)


def test_shell_runs_hostile_arguments_literally() -> None:
    line = render_remote(["printf", "%s\\0", *HOSTILE], timeout_s=20, env={}, nonce=NONCE)

    result = LocalRunner().run(["sh", "-c", line], timeout_s=30)

    ending = find_ending(result.stderr, NONCE)
    assert ending is not None
    assert (tuple(result.stdout.split("\0")[:-1]), ending.exit_code) == (HOSTILE, 0)


@pytest.mark.parametrize("code", [0, 3, 255])
def test_exit_code_is_found_after_an_unfinished_line(code: int) -> None:
    script = f"printf unfinished >&2; exit {code}"
    line = render_remote(["sh", "-c", script], timeout_s=20, env={}, nonce=NONCE)

    result = LocalRunner().run(["sh", "-c", line], timeout_s=30)

    ending = find_ending(result.stderr, NONCE)
    assert ending is not None
    assert (ending.exit_code, ending.stderr, result.exit_code) == (code, "unfinished", 0)
