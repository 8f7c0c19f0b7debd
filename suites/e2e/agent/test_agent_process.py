"""Tests of the real agent as a process of this host: commands, files, waits and new clients."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.channels.agent import Agent
from harness.payload import build_agent
from suites.e2e.agent.local_agent import LocalAgent, soon, start_agent, wait_until_gone

if TYPE_CHECKING:
    from pathlib import Path


def test_result_has_the_output_and_the_exit_code_of_the_command(agent: Agent) -> None:
    result = agent.run(
        ["sh", "-c", 'cat; echo "$A $PWD" >&2; exit 3'],
        timeout_s=30,
        stdin="in\n",
        env={"A": "value"},
    )

    assert (result.exit_code, result.stdout, result.timed_out) == (3, "in\n", False)
    assert result.stderr.startswith("value /")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["true"], 0),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
        (["sh", "-c", "kill $$"], -15),
    ],
)
def test_exit_code_of_a_command_is_the_same_as_with_other_runners(
    agent: Agent, argv: list[str], code: int
) -> None:
    assert agent.run(argv, timeout_s=30).exit_code == code


def test_program_is_looked_up_on_the_given_path(agent: Agent, tmp_path: Path) -> None:
    tool = tmp_path / "own-tool"
    tool.write_text("#!/bin/sh\necho own\n")
    tool.chmod(0o755)

    assert agent.run(["own-tool"], timeout_s=30).exit_code == 127
    found = agent.run(["own-tool"], timeout_s=30, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert found.stdout == "own\n"
    assert agent.run(["own-tool"], timeout_s=30).exit_code == 127


def test_hostile_output_arrives_whole_while_other_requests_are_answered(agent: Agent) -> None:
    """The output is 100 MB without a line break; pings are sent meanwhile."""
    size = 0
    pings: list[float] = []
    pinging = threading.Event()

    def take(chunk: bytes) -> None:
        nonlocal size
        assert chunk.count(0) == len(chunk)
        size += len(chunk)

    def ping() -> None:
        while not pinging.is_set():
            pings.append(agent.ping(soon()))
            pinging.wait(0.005)

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        argv = ["head", "-c", "100M", "/dev/zero"]
        ended = agent.stream(argv, timeout_s=60, on_stdout=take)
    finally:
        pinging.set()
        thread.join()

    assert (ended.exit_code, size) == (0, 100 << 20)
    assert len(pings) > 3
    assert max(pings) < 5


def test_bytes_go_through_a_command_unchanged(agent: Agent) -> None:
    sent = os.urandom(5 << 20)
    got = bytearray()

    ended = agent.stream(["cat"], timeout_s=60, stdin=sent, on_stdout=got.extend)

    assert (ended.exit_code, bytes(got) == sent) == (0, True)


def test_slow_reader_blocks_the_command_and_not_the_agent(agent: Agent) -> None:
    """The agent does not buffer more output than the host has requested."""
    rss: list[int] = []

    def take(_chunk: bytes) -> None:
        if len(rss) < 20:
            rss.append(agent_rss_kib(agent))

    agent.stream(["head", "-c", "50M", "/dev/zero"], timeout_s=60, on_stdout=take)

    assert max(rss) - min(rss) < 8 << 10


def agent_rss_kib(agent: Agent) -> int:
    status = agent.run(["sh", "-c", "cat /proc/$PPID/status"], timeout_s=30).stdout
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def test_unread_stdin_is_not_an_error(agent: Agent) -> None:
    assert agent.stream(["true"], timeout_s=30, stdin=bytes(3 << 20)).exit_code == 0


def test_time_limit_kills_the_command_and_its_children(agent: Agent) -> None:
    pids: list[int] = []

    def take(chunk: bytes) -> None:
        pids.extend(int(word) for word in chunk.split())

    argv = ["sh", "-c", "sleep 100 & sleep 100 & jobs -p; wait"]
    ended = agent.stream(argv, timeout_s=0.5, on_stdout=take)

    assert (ended.exit_code, ended.timed_out) == (124, True)
    assert len(pids) == 2
    for pid in pids:
        wait_until_gone(pid)


def test_command_that_ignores_sigterm_is_killed(agent: Agent) -> None:
    ended = agent.run(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], timeout_s=0.2)

    assert (ended.exit_code, ended.timed_out) == (124, True)
    assert 5 <= ended.duration_s < 15


def test_cancelled_command_is_killed(agent: Agent) -> None:
    pids: list[int] = []

    def refuse(chunk: bytes) -> None:
        pids.append(int(chunk))
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        agent.stream(["sh", "-c", "echo $$; sleep 100"], timeout_s=60, on_stdout=refuse)

    wait_until_gone(pids[0])


def test_children_get_the_default_oom_score(agent: Agent) -> None:
    """The OOM score of the agent is 300; the score of its children is the kernel's default."""
    script = "cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj"

    assert agent.run(["sh", "-c", script], timeout_s=30).stdout.split() == ["0", "300"]


def test_children_get_the_default_signals_and_no_descriptors(agent: Agent) -> None:
    shown = agent.run(
        ["sh", "-c", "ls /proc/self/fd; grep SigIgn /proc/self/status"], timeout_s=30
    )

    # The last descriptor belongs to `ls` itself.
    *descriptors, _, ignored = shown.stdout.split()
    assert descriptors == ["0", "1", "2", "3"]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not int(ignored, 16) & 1 << (number - 1)


def test_files_are_read_back_unchanged(agent: Agent, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    path = tmp_path / "deep" / "er" / "file"
    agent.write_bytes(str(path), content, soon(), 0o751)

    assert agent.read_bytes(str(path), soon()) == content
    assert path.stat().st_mode & 0o777 == 0o751
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    assert agent.read_bytes(str(tmp_path / "none"), soon()) is None
    assert (agent.read_bytes("/proc/version", soon()) or b"").startswith(b"Linux")


def test_wait_for_a_file_may_begin_before_its_folders_exist(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    waiting = threading.Thread(target=agent.wait_for_file, args=(str(path), soon()))
    waiting.start()
    agent.run(["mkdir", "-p", str(path.parent)], timeout_s=30)
    agent.run(["touch", str(path)], timeout_s=30)
    waiting.join(30)

    assert not waiting.is_alive()


def test_agent_outside_a_guest_refuses_to_set_the_name_and_the_time_of_a_clone(
    agent: Agent,
) -> None:
    with pytest.raises(HarnessError, match="This machine is not a guest of the harness"):
        agent.settle(soon(), hostname="never")


def test_restarted_agent_runs_commands_and_does_not_have_the_earlier_nonce(
    local: LocalAgent, agent: Agent
) -> None:
    agent.remember("nonce", soon())
    errors: list[str] = []

    def run() -> None:
        try:
            agent.run(["sleep", "100"], timeout_s=60)
        except HarnessError as error:
            errors.append(str(error))

    running = threading.Thread(target=run)
    running.start()
    agent.ping(soon())
    local.restarts()
    running.join(30)

    assert len(errors) == 1
    assert "restarted during the command 'sleep 100'" in errors[0]
    assert agent.wait_until_ready(soon()).has_nonce is False
    assert agent.run(["echo", "again"], timeout_s=30).stdout == "again\n"


class Relay:
    """Stands in for QEMU at a port: the agent's end stays open while clients connect and disconnect."""

    def __init__(self) -> None:
        self.guest, self._inner = socket.socketpair()
        self._client: socket.socket | None = None
        self._threads = [threading.Thread(target=self._carry_up)]
        self._threads[0].start()

    def connect(self) -> socket.socket:
        ours, self._client = socket.socketpair()
        thread = threading.Thread(target=self._carry_down, args=(self._client,))
        thread.start()
        self._threads.append(thread)
        return ours

    def _carry_down(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while data := client.recv(65536):
                self._inner.sendall(data)

    def _carry_up(self) -> None:
        while data := self._inner.recv(65536):
            with contextlib.suppress(OSError):
                if self._client is not None:
                    self._client.sendall(data)

    def close(self) -> None:
        self._inner.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        self._inner.close()
        self.guest.close()


def test_agent_of_a_clone_keeps_the_nonce_and_ends_the_requests_of_the_template(
    tmp_path: Path,
) -> None:
    """The hello message of the new client is the only sign of the new host for a clone's agent."""
    relay = Relay()
    program = build_agent().content
    template = Agent("template", relay.connect(), program)
    process = start_agent(relay.guest, tmp_path)
    pids: list[int] = []
    started = threading.Event()

    def take(chunk: bytes) -> None:
        pids.append(int(chunk))
        started.set()

    def run() -> None:
        with contextlib.suppress(HarnessError):
            argv = ["sh", "-c", "echo $$; exec sleep 100"]
            template.stream(argv, timeout_s=60, on_stdout=take)

    running = threading.Thread(target=run)
    try:
        template.remember("nonce", soon())
        running.start()
        assert started.wait(30)
        clone = Agent("clone", relay.connect(), program)
        assert clone.wait_until_ready(soon()).has_nonce
        wait_until_gone(pids[0])
        assert clone.run(["echo", "clone"], timeout_s=30).stdout == "clone\n"
        clone.close()
    finally:
        template.close()
        running.join(30)
        process.kill()
        process.wait()
        relay.close()
