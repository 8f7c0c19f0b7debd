"""Runs commands in a guest by OpenSSH. All commands share one connection."""

from __future__ import annotations

import functools
import re
import secrets
import select
import shlex
import shutil
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cloudinit import SshAccess
from harness.errors import HarnessError, RequirementError
from harness.lease import make_private_folder
from harness.limits import COMMAND_OUTPUT
from harness.provisioning.command import (
    PIPE,
    CommandResult,
    LocalRunner,
    Runner,
    require_argv,
    spawn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from harness.provisioning.command import Argv, ChildProcess
    from harness.provisioning.wait import Deadline

_READY = "connected"
_KEYGEN_S = 20.0
#: Seconds for the guest's `timeout` and for the answer, in addition to a command's own limit.
_GRACE_S = 20.0
#: The name of the link, in a machine's folder, to the folder of the keys.
_KEYS = "keys"


def no_ssh_client() -> RequirementError:
    """Return the error for a host without an OpenSSH client."""
    return RequirementError(
        "There is no OpenSSH client on this host; install it with `apt-get install openssh-client`."
    )


@dataclass(frozen=True, kw_only=True)
class SshIdentity:
    """The keys of one test run: the user key, and one host key for all guests of the run."""

    folder: Path

    @classmethod
    def generate(cls, folder: Path, runner: Runner | None = None) -> SshIdentity:
        """Generate both key pairs in the private `folder`, unless they exist."""
        if shutil.which("ssh-keygen") is None:
            raise no_ssh_client()
        for name in ("user", "host"):
            if not (folder / name).exists():
                argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"harness-{name}"]
                made = (runner or LocalRunner()).run(
                    [*argv, "-f", str(folder / name)], timeout_s=_KEYGEN_S
                )
                if not made.ok:
                    raise HarnessError(f"An SSH key could not be generated.\n{made.render()}")
        known = (folder / "host.pub").read_text()
        (folder / "known_hosts").write_text(f"guest {known}")
        return cls(folder=folder)

    @property
    def access(self) -> SshAccess:
        return SshAccess(
            authorized_key=(self.folder / "user.pub").read_text().strip(),
            host_private_key=(self.folder / "host").read_text(),
            host_public_key=(self.folder / "host.pub").read_text().strip(),
        )


def generated_once(folder: Path) -> Callable[[], SshIdentity]:
    """Return a function that generates the keys at its first call, in the new private `folder`.

    Any thread may call that function. A clone may not need the keys, and generating the keys would
    delay the clone's start.
    """
    lock = threading.Lock()

    @functools.cache
    def generate() -> SshIdentity:
        return SshIdentity.generate(make_private_folder(folder))

    def identity() -> SshIdentity:
        with lock:
            return generate()

    return identity


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The exit code of a command in the guest, and its stderr without the line that has the exit code."""

    exit_code: int
    stderr: str


def render_remote(argv: Argv, *, timeout_s: float, env: Mapping[str, str], nonce: str) -> str:
    """Render the line for the guest's shell that runs `argv` and prints its exit code."""
    settings = ["env", *(f"{key}={value}" for key, value in env.items())] if env else []
    # `timeout 0` would mean no limit at all.
    limit = f"{max(timeout_s, 0.001):.3f}"
    command = shlex.join(["timeout", "--kill-after=5", limit, *settings, *argv])
    return f"{command}; printf '\\n%s %s\\n' {nonce} $? >&2"


def find_ending(stderr: str, nonce: str) -> Ending | None:
    """Find the line with the exit code. Return None if the line is missing or truncated.

    Output of a background process after that line is part of stderr too.
    """
    found = re.search(rf"\n{re.escape(nonce)} ([0-9]{{1,3}})\n", stderr)
    if found is None:
        return None
    return Ending(exit_code=int(found[1]), stderr=stderr[: found.start()] + stderr[found.end() :])


def remote_result(
    argv: Argv, answer: CommandResult, ending: Ending, *, timeout_s: float
) -> CommandResult:
    """Return the result of the command `argv` in the guest. `answer` is the result of ssh."""
    # If ssh timed out, a process such as a daemon still has the command's output open.
    exit_code = 124 if answer.timed_out else ending.exit_code
    return CommandResult(
        argv=tuple(argv),
        exit_code=exit_code,
        stdout=answer.stdout,
        stderr=ending.stderr,
        duration_s=answer.duration_s,
        timed_out=exit_code in {124, 137} and answer.duration_s >= timeout_s,
    )


class SshRunner:
    """Runs commands in a guest as root.

    The guest prints every command's exit code on a separate line, so that a lost connection is
    never mistaken for the command's end. `runner` starts ssh on this host.
    """

    def __init__(
        self,
        *,
        name: str,
        port: int,
        identity: SshIdentity,
        folder: Path,
        runner: Runner | None = None,
    ) -> None:
        self._name = name
        self._folder = folder
        self._socket = folder / "ssh"
        self._runner = runner or LocalRunner(most_output_bytes=COMMAND_OUTPUT.bytes)
        # ssh runs in `folder`, and its arguments have only names of files in `folder`. The reason:
        # ssh splits paths at blanks, expands '%' and '${' in paths, and limits a socket's path to
        # 108 bytes.
        keys = folder / _KEYS
        keys.unlink(missing_ok=True)
        keys.symlink_to(identity.folder.absolute())
        self._options = [
            *("-F", "none"),
            *("-p", str(port)),
            *("-i", f"{_KEYS}/user"),
            *("-o", f"ControlPath={self._socket.name}"),
            *("-o", "BatchMode=yes"),
            *("-o", "IdentitiesOnly=yes"),
            *("-o", f"UserKnownHostsFile={_KEYS}/known_hosts"),
            *("-o", "GlobalKnownHostsFile=none"),
            *("-o", "HostKeyAlias=guest"),
            *("-o", "StrictHostKeyChecking=yes"),
            *("-o", "LogLevel=ERROR"),
        ]
        self._master: ChildProcess | None = None

    def connect(self, deadline: Deadline) -> None:
        """Open the connection. Retry until the guest's server is up.

        Raises HarnessError at the deadline, with ssh's last output.
        """
        output = "nothing"
        while not deadline.has_passed():
            master = self._start_master(deadline)
            self._master = master
            if self._is_ready(master, deadline):
                return
            output = self._end_master()
            if "exec: ssh: not found" in output:
                break
            deadline.clock.sleep(deadline.cap(0.3))
        raise HarnessError(
            f"No SSH connection to machine '{self._name}' came up in time; ssh's last output: "
            f"{output}. The console's log shows whether sshd started."
        )

    def _start_master(self, deadline: Deadline) -> ChildProcess:
        connect_s = max(1, int(deadline.remaining_s()))
        return spawn(
            [
                "ssh",
                *self._options,
                *("-o", f"ConnectTimeout={connect_s}"),
                *("-o", "ServerAliveInterval=30"),
                *("-o", "PermitLocalCommand=yes"),
                *("-o", f"LocalCommand=echo {_READY}"),
                "-M",
                "-N",
                "root@127.0.0.1",
            ],
            stdout=PIPE,
            stderr=PIPE,
            cwd=self._folder,
        )

    @staticmethod
    def _is_ready(master: ChildProcess, deadline: Deadline) -> bool:
        """Wait until ssh's LocalCommand prints its line after the login, or until ssh ends."""
        assert master.stdout is not None  # noqa: S101 - its stdout is a pipe
        readable, _, _ = select.select([master.stdout], [], [], deadline.remaining_s())
        return bool(readable) and master.stdout.readline().strip() == _READY.encode()

    def _end_master(self) -> str:
        master, self._master = self._master, None
        if master is None:
            return ""
        master.kill()
        _, output = master.communicate()
        self._socket.unlink(missing_ok=True)
        return output.decode(errors="replace").strip() or "nothing"

    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run `argv` in the guest. Each word is quoted for the guest's shell.

        Raises HarnessError if the command's exit code is unknown.
        """
        require_argv(argv)
        nonce = secrets.token_hex(8)
        answer = self._runner.run(
            [
                *("env", f"--chdir={self._folder}"),
                "ssh",
                *self._options,
                "root@127.0.0.1",
                render_remote(argv, timeout_s=timeout_s, env=env or {}, nonce=nonce),
            ],
            timeout_s=timeout_s + _GRACE_S,
            stdin=stdin,
        )
        if answer.wrote_too_much:
            raise COMMAND_OUTPUT.error(
                f"The command {shlex.join(argv)!r} in machine '{self._name}'",
                remedy="The connection was closed.",
            )
        ending = find_ending(answer.stderr, nonce)
        # ssh exits with 0, the exit code of the command that prints the line. Any other code is an
        # error of ssh, after which output may be missing.
        if ending is None or not (answer.ok or answer.timed_out):
            raise HarnessError(
                f"Machine '{self._name}' did not report how {shlex.join(argv)!r} ended: the "
                f"connection broke or the guest hangs.\n{answer.render()}"
            )
        return remote_result(argv, answer, ending, timeout_s=timeout_s)

    def close(self) -> None:
        """End the connection."""
        self._end_master()
