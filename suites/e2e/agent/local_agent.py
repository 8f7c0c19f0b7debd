"""Runs the real agent as a process of this host, without a machine; the images' loader starts it."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.machine.channels.agent import Agent
from harness.payload import build_agent
from harness.provisioning.command import spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.docs.pages import REPOSITORY

if TYPE_CHECKING:
    from harness.provisioning.command import ChildProcess

_LOADER = REPOSITORY / "images/debian-12/root/usr/lib/harness/agent-loader"
#: The agent ignores SIGINT, as does a process that a shell starts in the background.
_START = 'trap "" INT; echo 300 >/proc/self/oom_score_adj; exec "$@"'


def soon(seconds: float = 30.0) -> Deadline:
    return Deadline.after(seconds)


def start_agent(port: socket.socket, folder: Path) -> ChildProcess:
    """Start the loader on `port`, with an OOM score other than the default."""
    return spawn(
        [
            *("sh", "-c", _START, "sh", sys.executable, "-I", "-S"),
            *(str(_LOADER), f"fd:{port.fileno()}", str(folder)),
        ],
        pass_fds=[port.fileno()],
    )


class LocalAgent:
    """An agent at one end of a socket pair, and the agent's client at the other end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ours, self.theirs = socket.socketpair()
        self.client = Agent("local", ours, build_agent().content)
        self.process = start_agent(self.theirs, folder)

    def restarts(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = start_agent(self.theirs, self._folder)

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()
        self.theirs.close()


def wait_until_gone(pid: int) -> None:
    def poll() -> Observation[bool]:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                return Observation(None, "it runs")
        return Observation(value=True, seen="it has gone")

    wait_for(f"process {pid} to be gone", poll, soon())
