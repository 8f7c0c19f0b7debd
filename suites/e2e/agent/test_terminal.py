"""Tests of commands in a terminal, with the real agent and real terminals of this host."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.agent import frames
from harness.machine.channels.started_command import StartedCommand, started_command
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.e2e.agent.local_agent import LocalAgent, soon, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from harness.machine.channels.agent import Agent
    from harness.provisioning.command import Argv

_SHELL = ("bash", "--norc")
_PROMPT = {"PS1": "ready> ", "TERM": "dumb"}
_READY = b"ready> "
_COUNT = 200_000


class Screen:
    """Collects a command's output; when the next pattern of the dialogue appears, calls its reply."""

    def __init__(self, *dialogue: tuple[bytes, Callable[[], None]]) -> None:
        self.content = b""
        self._dialogue = list(dialogue)
        self._seen = 0

    def take(self, kind: int, chunk: bytes) -> None:
        assert kind == frames.STDOUT, chunk
        self.content += chunk
        while self._dialogue:
            awaited, answer = self._dialogue[0]
            found = re.compile(awaited).search(self.content, self._seen)
            if found is None:
                return
            self._seen = found.end()
            del self._dialogue[0]
            answer()

    @property
    def lines(self) -> list[str]:
        return self.content.decode().split("\r\n")


@contextlib.contextmanager
def in_terminal(
    agent: Agent,
    *argv: str,
    env: Mapping[str, str] | None = None,
    limit_s: float = 60.0,
    fallback: Argv = (),
) -> Iterator[StartedCommand]:
    agent.wait_until_ready(soon())
    with started_command(
        agent.link, argv, limit_s=limit_s, env=env or {}, terminal=(33, 99), fallback=fallback
    ) as command:
        yield command


def output_of(agent: Agent, script: str) -> tuple[int | None, str]:
    screen = Screen()
    with in_terminal(agent, "sh", "-c", script) as command:
        code = command.wait(screen.take)
    return code, screen.content.decode()


def typing(command: StartedCommand, text: bytes) -> Callable[[], None]:
    return lambda: command.feed(text)


def open_descriptors(local: LocalAgent) -> set[str]:
    return {str(each.readlink()) for each in Path(f"/proc/{local.process.pid}/fd").iterdir()}


def test_command_has_a_terminal_of_the_requested_size(agent: Agent) -> None:
    code, shown = output_of(agent, "test -t 0 && test -t 1 && test -t 2 && tty && stty size")

    assert code == 0
    assert re.fullmatch(r"/dev/pts/\d+\r\n33 99\r\n", shown)


def test_command_has_a_controlling_terminal(agent: Agent) -> None:
    """Without a controlling terminal, no key interrupts a command, and `sudo` cannot prompt."""
    code, shown = output_of(agent, "echo words >/dev/tty; stty -a | grep -o '[ -]iutf8'")

    assert (code, shown) == (0, "words\r\n iutf8\r\n")


@pytest.mark.parametrize(("script", "code"), [("exit 5", 5), ("kill -KILL $$", -9)])
def test_client_gets_the_exit_code_of_the_command(agent: Agent, script: str, code: int) -> None:
    assert output_of(agent, script) == (code, "")


def test_output_larger_than_the_flow_control_window_arrives_whole(agent: Agent) -> None:
    code, shown = output_of(agent, f"seq {_COUNT}")

    assert len(shown) > frames.OUTPUT_WINDOW
    assert (code, shown) == (0, "".join(f"{each}\r\n" for each in range(1, _COUNT + 1)))


def test_command_is_notified_of_a_new_terminal_size(agent: Agent) -> None:
    script = "trap 'stty size; exit 4' WINCH; echo waits; while :; do sleep 0.05; done"
    with in_terminal(agent, "sh", "-c", script) as command:
        screen = Screen((b"waits", lambda: command.resize(50, 132)))

        assert command.wait(screen.take) == 4

    assert screen.lines == ["waits", "50 132", ""]


def test_ctrl_c_interrupts_the_program_and_not_the_shell(agent: Agent) -> None:
    with in_terminal(agent, *_SHELL, env=_PROMPT) as command:
        screen = Screen(
            # The program prints this itself, so it is in the foreground by then.
            (_READY, typing(command, b"sh -c \"echo be''gun; exec sleep 1000\"\n")),
            (b"begun", typing(command, b"\x03")),
            (_READY, typing(command, b"echo code $?; exit 3\n")),
        )

        assert command.wait(screen.take) == 3

    assert "code 130" in screen.lines


@pytest.mark.parametrize("left", ["sleep 1000", "yes"])
def test_shell_ends_although_its_background_process_still_runs(agent: Agent, left: str) -> None:
    script = f"trap '' HUP; {left} & echo $!; exit 2"
    started = soon()

    code, shown = output_of(agent, script)

    assert code == 2
    assert started.remaining_s() > 20
    pid = next(line for line in shown.split("\r\n") if line.isdigit())
    agent.run(["kill", "-KILL", pid], timeout_s=30)
    wait_until_gone(int(pid))


def test_command_that_closes_its_terminal_continues(agent: Agent) -> None:
    code, shown = output_of(agent, "echo one; exec <&- >&- 2>&-; sleep 0.3; exit 6")

    assert (code, shown) == (6, "one\r\n")


def test_end_of_input_ends_the_program_that_reads_it(agent: Agent) -> None:
    with in_terminal(agent, "cat") as command:
        screen = Screen((b"typed\r\ntyped\r\n", command.feed_end))
        command.feed(b"typed\n")

        assert command.wait(screen.take) == 0


def test_shell_after_a_hangup_leaves_no_process_and_no_descriptor(
    agent: Agent, local: LocalAgent
) -> None:
    before = open_descriptors(local)
    with in_terminal(agent, *_SHELL, env=_PROMPT) as command:
        screen = Screen(
            (_READY, typing(command, b"sleep 1001 & echo pi''ds $! $$; sleep 1002\n")),
            (rb"pids \d+ \d+\r\n", command.cancel),
        )

        assert command.wait(screen.take) is None

    for pid in re.findall(rb"pids (\d+) (\d+)", screen.content)[0]:
        wait_until_gone(int(pid))

    def released() -> Observation[bool]:
        now = open_descriptors(local)
        return Observation(True if now == before else None, str(now))

    wait_for("the agent to close everything", released, soon())


def test_command_that_ignores_a_hangup_is_killed(agent: Agent) -> None:
    script = "trap '' HUP; echo $$; while :; do sleep 0.1; done"
    with in_terminal(agent, "sh", "-c", script) as command:
        screen = Screen((b"\r\n", command.cancel))
        command.wait(screen.take)

    wait_until_gone(int(screen.lines[0]))


def test_time_limit_ends_a_shell_that_ignores_sigterm(agent: Agent) -> None:
    deadline = Deadline.after(30)
    with in_terminal(agent, *_SHELL, env=_PROMPT, limit_s=1.0) as command:
        screen = Screen((_READY, typing(command, b"sleep 1003\n")))

        assert command.wait(screen.take) == 124

    # The shell ended well before the agent would have sent SIGKILL.
    assert deadline.remaining_s() > 26


def test_fallback_shell_starts_if_bash_is_missing(agent: Agent, tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    (tmp_path / "sh").symlink_to(shell)
    env = {**_PROMPT, "PATH": str(tmp_path)}
    with in_terminal(agent, "bash", env=env, fallback=["sh", "-i"]) as command:
        screen = Screen((_READY, typing(command, b"exit 8\n")))

        assert command.wait(screen.take) == 8


def test_missing_program_is_reported_on_the_terminal_with_exit_code_127(
    agent: Agent, local: LocalAgent
) -> None:
    agent.ping(soon())
    before = open_descriptors(local)
    said: list[bytes] = []
    with in_terminal(agent, "no-such-program") as command:
        assert command.wait(lambda _, chunk: said.append(chunk)) == 127

    assert said == [b"no-such-program: No such file or directory\r\n"]
    assert open_descriptors(local) == before
