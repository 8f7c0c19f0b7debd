"""Records the film of the README in a terminal: `python -m docs.generator.film FILE.cast`; `./dev film` draws it.

It is what happened, at the speed at which it happened; the drawing cuts pauses to some seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pexpect

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS, LINES = 96, 30
#: Machines without KVM, on a host that has other work.
_COMMAND_S = 1800.0
_KEY_S = 0.04
#: Before a command is entered.
_READ_S = 0.5
_PROMPT = "$ "
_TEST = '''\
"""What the film in the README runs."""

from harness import expect
from harness.api import NodeRequest


def test_baked_node_compiles_nothing(boot_node, baked_image, h100):
    node = boot_node(NodeRequest(name="node", image=baked_image, gpus=[h100]))

    evidence = node.evidence()

    expect.decided(evidence, action="install-skip-build", reason="ok")
    expect.gpu_bound(evidence, device=h100)


def test_node_reaches_the_registry(clone, cloud_init_done):
    machine = clone(cloud_init_done)
    machine.guest.output_of("sh", "-c", "echo nameserver 127.0.0.1 >/etc/resolv.conf")

    machine.guest.output_of("curl", "-sS", "http://mcr.microsoft.com/v2/")
'''

_COMMANDS = (
    "cat test_node.py",
    "pytest -s -k compiles_nothing",
    "pytest -s -k registry",
    "harness resume evidence/*registry* -- cat /etc/resolv.conf",
)


class Recording:
    """An asciicast of version 2: what a terminal printed, with the seconds since its start."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._events: list[str] = []

    def write(self, printed: str) -> None:
        self._events.append(json.dumps([round(time.monotonic() - self._start, 3), "o", printed]))

    def flush(self) -> None:
        """Keep all: nothing waits in a buffer."""

    def text(self) -> str:
        header = {"version": 2, "width": COLUMNS, "height": LINES, "title": "gpu-node-harness"}
        return "\n".join([json.dumps(header), *self._events, ""])


def record(folder: Path, commands: Sequence[str]) -> str:
    """Type commands into a shell in `folder`, and return the asciicast of its terminal."""
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    shell = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile"],
        cwd=str(folder),
        env={**environment, "PS1": _PROMPT, "TERM": "xterm-256color"},
        dimensions=(LINES, COLUMNS),
        encoding="utf-8",
        timeout=_COMMAND_S,
    )
    # pexpect waits as long before each key.
    shell.delaybeforesend = _KEY_S
    # Bracketed paste would be in the film.
    shell.sendline("bind 'set enable-bracketed-paste off'; clear")
    shell.expect_exact(_PROMPT)
    shell.expect_exact(_PROMPT)
    recording = Recording()
    shell.logfile_read = recording
    recording.write(_PROMPT)
    for command in commands:
        for key in command:
            shell.send(key)
            # It is read when it comes, so that its time is right.
            shell.expect_exact(key)
        shell.delaybeforesend = _READ_S
        shell.sendline()
        shell.expect(rf"\n{_PROMPT.replace('$', chr(92) + '$')}$")
        shell.delaybeforesend = _KEY_S
    shell.close()
    return recording.text()


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the film of the README.")
    parser.add_argument("file", type=Path, metavar="FILE.cast")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_node.py").write_text(_TEST)
        (Path(folder) / "pytest.ini").write_text(
            "[pytest]\naddopts = -q -p no:randomly -p no:cacheprovider --image=debian-12\n"
        )
        arguments.file.write_text(record(Path(folder), _COMMANDS))


if __name__ == "__main__":
    main()
