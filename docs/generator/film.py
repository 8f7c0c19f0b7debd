"""Records the README's film in a terminal: `python -m docs.generator.film FILE.cast`.

`./dev film` also converts the recording to an SVG. The film shows the real output of the commands,
but not their real times: long pauses are shortened, and the film pauses after each scene.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pexpect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COLUMNS, LINES = 98, 32
#: A longer pause in the output of a command is shortened to this time.
PAUSE_S = 0.5
#: How long the film pauses after a scene.
READ_S = 5.0
#: The time limit of a command, for machines without KVM on a busy host.
_COMMAND_S = 1200.0
_WORD_S = 0.12
_WORD = re.compile(r"\S+\s*")
_EMPTY_SCREEN = "\x1b[H\x1b[2J"
_PROMPT = "$ "
#: The test file that the film shows and runs.
TEST = """\
from harness import expect
from harness.api import NodeRequest


def test_baked_driver(boot_node, baked_image, h100):
    node = boot_node(NodeRequest(name="gpu-node", image=baked_image, gpus=[h100]))

    evidence = node.evidence()
    expect.decided(evidence, "install-skip-build", reason="ok")  # the fast path
    expect.gpu_bound(evidence, device=h100)


def test_lost_record(boot_node, baked_image, h100):
    lose = ["sh", "-c", "rm -r /opt/azure/aks-gpu/dkms-marker /usr/src/linux-headers-*"]
    node = boot_node(NodeRequest(name="gpu-node", image=baked_image, gpus=[h100], before=[lose]))

    expect.provisioned(node.evidence())
"""

#: For each scene, a note that says what the command shows, and the command.
SCENES = (
    (
        "# 1. Two tests. The first requests a node with an emulated H100.",
        "cat test_node.py",
    ),
    (
        "# 2. It boots. The driver is in its image, so that provisioning compiles nothing.",
        "pytest -s -k baked_driver",
    ),
    (
        "# 3. The second node has lost the record of its driver and the kernel's headers.",
        "pytest -s -k lost_record",
    ),
    (
        "# 4. It has left its machine, as it was when the test failed. Look into it.",
        "harness resume evidence/*lost*12 -- ls -l /usr/src",
    ),
)


class Recording:
    """An asciicast of version 2: a terminal's output, each part with its time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._seconds = 0.0
        self._events: list[str] = []

    def write(self, printed: str) -> None:
        now = self._clock()
        self._seconds += min(now - self._last, PAUSE_S)
        self._last = now
        self._events.append(json.dumps([round(self._seconds, 3), "o", printed]))

    def flush(self) -> None:
        """Do nothing: pexpect calls this method, but `write` has already stored the output."""

    def hold(self, seconds: float) -> None:
        """Add a pause to the recording, so that a viewer can read the screen."""
        self._seconds += seconds

    def text(self) -> str:
        header = {"version": 2, "width": COLUMNS, "height": LINES, "title": "gpu-node-harness"}
        return "\n".join([json.dumps(header), *self._events, ""])


def record(folder: Path, scenes: Sequence[Sequence[str]]) -> str:
    """Type commands into a shell in `folder`, and return the asciicast of the terminal.

    Each scene begins with an empty screen.
    """
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    shell = pexpect.spawn(
        "bash",
        # No readline: its control sequences, such as bracketed paste, must not be in the film.
        ["--norc", "--noprofile", "--noediting"],
        cwd=str(folder),
        env={**environment, "PS1": _PROMPT, "TERM": "xterm-256color", "HISTFILE": ""},
        dimensions=(LINES, COLUMNS),
        encoding="utf-8",
        timeout=_COMMAND_S,
    )
    # pexpect waits this long before it sends each word.
    shell.delaybeforesend = _WORD_S
    shell.expect_exact(_PROMPT)
    recording = Recording()
    shell.logfile_read = recording
    for scene in scenes:
        recording.write(f"{_EMPTY_SCREEN}{_PROMPT}")
        for line in scene:
            for word in _WORD.findall(line):
                shell.send(word)
                # The echo of the word is read at once, so that its recorded time is right.
                shell.expect_exact(word)
            shell.sendline()
            shell.expect(rf"\n{re.escape(_PROMPT)}$")
        recording.hold(READ_S)
    recording.write("")
    shell.close()
    return recording.text()


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the film of the README.")
    parser.add_argument("file", type=Path, metavar="FILE.cast")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_node.py").write_text(TEST)
        (Path(folder) / "pytest.ini").write_text(
            "[pytest]\naddopts = -q --tb=no -p no:randomly -p no:cacheprovider --image=debian-12\n"
        )
        arguments.file.write_text(record(Path(folder), SCENES))


if __name__ == "__main__":
    main()
