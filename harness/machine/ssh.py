"""A way into a guest by OpenSSH: one connection kept open, commands as channels on it."""

from __future__ import annotations

import contextlib
import secrets
import select
import shlex
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cloudinit import SshAccess
from harness.errors import HarnessError, RequirementError
from harness.provisioning.command import PIPE, CommandResult, LocalRunner, Runner, spawn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.provisioning.command import ChildProcess
    from harness.provisioning.wait import Deadline

_READY = "connected"
_KEYGEN_S = 20.0
#: What a guest's `timeout` and the way back may take beyond a command's own limit.
_GRACE_S = 20.0
#: sun_path holds 108 bytes, and ssh appends 17 of its own while it binds.
_SOCKET_PATH_MAX = 90


@dataclass(frozen=True, kw_only=True)
class SshIdentity:
    """The keys of one test run: ours, and the one that every guest of the run presents."""

    folder: Path

    @classmethod
    def generate(cls, folder: Path, runner: Runner | None = None) -> SshIdentity:
        """Make both key pairs in the private `folder`, where they are not there yet."""
        if shutil.which("ssh-keygen") is None:
            raise RequirementError(
                "There is no OpenSSH client on this host; install it with "
                "`apt-get install openssh-client`, or run `./dev setup`."
            )
        for name in ("user", "host"):
            if not (folder / name).exists():
                argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"harness-{name}"]
                (runner or LocalRunner()).run(
                    [*argv, "-f", str(folder / name)], timeout_s=_KEYGEN_S
                ).check("Making an SSH key")
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


class SshRunner:
    """Runs commands in a guest as root.

    Every command's exit status comes back by a line of its own, so that a lost connection is
    never taken for an answer.
    """

    def __init__(self, *, name: str, port: int, identity: SshIdentity, folder: Path) -> None:
        self._name = name
        self._socket = folder / "ssh"
        if len(str(self._socket)) > _SOCKET_PATH_MAX:
            raise RequirementError(
                f"The path '{self._socket}' is too long for a socket; choose a shorter cache "
                "folder by XDG_CACHE_HOME."
            )
        self._options = [
            *("-F", "none"),
            *("-p", str(port)),
            *("-i", str(identity.folder / "user")),
            *("-o", f"ControlPath={self._socket}"),
            *("-o", "BatchMode=yes"),
            *("-o", "IdentitiesOnly=yes"),
            *("-o", f"UserKnownHostsFile={identity.folder / 'known_hosts'}"),
            *("-o", "GlobalKnownHostsFile=none"),
            *("-o", "HostKeyAlias=guest"),
            *("-o", "StrictHostKeyChecking=yes"),
            *("-o", "LogLevel=ERROR"),
        ]
        self._master: ChildProcess | None = None

    def connect(self, deadline: Deadline) -> None:
        """Open the connection, trying again while the guest's server is not up.

        Raises HarnessError at the deadline with ssh's last words.
        """
        words = "nothing"
        while not deadline.has_passed():
            master = self._start_master(deadline)
            self._master = master
            if self._is_ready(master, deadline):
                return
            words = self._end_master()
            if "No such file or directory" in words and "setpriv" in words:
                break
            deadline.clock.sleep(deadline.cap(0.3))
        raise HarnessError(
            f"No SSH connection to machine '{self._name}' came up in time; ssh's last words: "
            f"{words}. The console's log says whether sshd started."
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
        )

    @staticmethod
    def _is_ready(master: ChildProcess, deadline: Deadline) -> bool:
        """Wait for the line that ssh's LocalCommand prints once it is in, or for ssh's end."""
        assert master.stdout is not None  # noqa: S101 - a pipe was asked for
        readable, _, _ = select.select([master.stdout], [], [], deadline.remaining_s())
        return bool(readable) and master.stdout.readline().strip() == _READY.encode()

    def _end_master(self) -> str:
        master, self._master = self._master, None
        if master is None:
            return ""
        with contextlib.suppress(ProcessLookupError):
            master.kill()
        _, words = master.communicate()
        self._socket.unlink(missing_ok=True)
        return words.decode(errors="replace").strip() or "nothing"

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        nonce = secrets.token_hex(8)
        settings = [f"{key}={value}" for key, value in (env or {}).items()]
        command = shlex.join(
            ["timeout", "--kill-after=5", f"{timeout_s:.3f}", "env", *settings, *argv]
        )
        remote = f"{command}; printf '\\n%s %s\\n' {nonce} $? >&2"
        answer = LocalRunner().run(
            ["ssh", *self._options, "root@127.0.0.1", remote],
            timeout_s=timeout_s + _GRACE_S,
            stdin=stdin,
        )
        errors, marker, status = answer.stderr.rpartition(f"\n{nonce} ")
        if not marker:
            raise HarnessError(
                f"Machine '{self._name}' did not say how {shlex.join(argv)!r} ended: the "
                f"connection broke or the guest hangs.\n{answer.render()}"
            )
        exit_code = int(status)
        return CommandResult(
            argv=tuple(argv),
            exit_code=exit_code,
            stdout=answer.stdout,
            stderr=errors,
            duration_s=answer.duration_s,
            timed_out=exit_code in {124, 137} and answer.duration_s >= timeout_s,
        )

    def close(self) -> None:
        """End the connection."""
        self._end_master()
