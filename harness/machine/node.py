"""An existing node, by SSH or this host itself: a way to ask it, which changes nothing on it.

By SSH it is OpenSSH with the user's own configuration, keys and known hosts, as in a terminal; but
it never asks back, forwards nothing, and leaves no connection behind.
"""

from __future__ import annotations

import re
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.machine.ssh import find_ending, render_remote
from harness.provisioning.command import CommandResult, LocalRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.provisioning.command import Runner

URI_FORMS = "'local:' or 'ssh://[user@]host[:port][?config=FILE&timeout=SECONDS&sudo=yes]'"
_CONNECT_S = 10
#: What ssh may take beyond that and a command's own limit on the node.
_GRACE_S = 20.0
#: ssh's own exit code for trouble of its own.
_SSH_FAILED = 255
#: What a person does about ssh's own words, which come in no other way.
_REMEDIES = (
    ("Host key verification failed", "Connect once by hand, and compare the key of the host."),
    ("HOST IDENTIFICATION HAS CHANGED", "Find out why the host's key is another one."),
    (
        "Permission denied",
        "Let your key in, or name the right user; `ssh -v` tells what it tried.",
    ),
    ("Could not resolve hostname", "Look at the host's name."),
    ("Connection refused", "Look at the port, and whether sshd runs there."),
    (
        "timed out",
        "Look whether the host is up, and a firewall between; give a slow one '?timeout=60'.",
    ),
    ("No route to host", "Look whether the host is up, and the way to it."),
)


@dataclass(frozen=True, kw_only=True)
class NodeAddress:
    """Where a node is: by SSH at `host`, or, where that is None, this host itself.

    `user` and `port` are ssh's own choice where they are None. `config` is a configuration of ssh
    to use in place of the user's. A connection is given `connect_s`. With `by_sudo` the user
    becomes root there, which must take no password.
    """

    host: str | None = None
    user: str | None = None
    port: int | None = None
    config: Path | None = None
    connect_s: int = _CONNECT_S
    by_sudo: bool = False

    @classmethod
    def from_uri(cls, uri: str, *, source: str) -> NodeAddress:
        """Parse a URI of one of URI_FORMS.

        Raises BadInputError that names `source`.
        """
        try:
            parts = urlsplit(uri)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
            port = parts.port
        except ValueError as error:
            raise _bad(uri, source, f"{error}") from error
        if parts.scheme == "local" and uri.rstrip("/") == "local:":
            return cls()
        if parts.scheme != "ssh":
            raise _bad(uri, source, "it is neither")
        host, user = unquote(parts.hostname or ""), unquote(parts.username or "")
        # What begins with a dash, ssh would take for an option; a host's name becomes a folder's.
        for what, word in (("host", host), ("user", user)):
            if word and not re.fullmatch(r"[A-Za-z0-9_:%][A-Za-z0-9_.:%-]*", word):
                raise _bad(uri, source, f"{word!r} is no {what}")
        if not host or parts.path not in {"", "/"} or parts.fragment:
            raise _bad(uri, source, "it names no host, or more than one")
        if parts.password is not None:
            raise _bad(uri, source, "a password does not belong here; use a key")
        if unknown := query.keys() - {"config", "timeout", "sudo"}:
            raise _bad(uri, source, f"{min(unknown)!r} is not known")
        config = Path(query["config"]).absolute() if query.get("config") else None
        if config is not None and not config.is_file():
            raise _bad(uri, source, f"there is no file '{config}'")
        timeout = query.get("timeout", str(_CONNECT_S))
        if not re.fullmatch("[1-9][0-9]{0,3}", timeout):
            raise _bad(uri, source, f"{timeout!r} is no number of seconds")
        if query.get("sudo", "yes") != "yes":
            raise _bad(uri, source, "of sudo only 'yes' can be said")
        return cls(
            host=host,
            user=user or None,
            port=port,
            config=config,
            connect_s=int(timeout),
            by_sudo="sudo" in query,
        )

    @property
    def name(self) -> str:
        """Return a name for the node, of use as that of a folder."""
        return "local" if self.host is None else re.sub(r"[^A-Za-z0-9_.-]", "-", self.host)

    def ssh_argv(self) -> list[str]:
        """Return the command to which the line for the node's shell is added.

        Raises HarnessError where the node is this host.
        """
        if self.host is None:
            raise HarnessError("This host itself is not reached by SSH.")
        return [
            "ssh",
            *(("-F", str(self.config)) if self.config is not None else ()),
            *(("-p", str(self.port)) if self.port is not None else ()),
            *(("-l", self.user) if self.user is not None else ()),
            # Without a terminal and an agent, and with nothing forwarded.
            *("-T", "-a", "-x"),
            *("-o", "ClearAllForwardings=yes"),
            *("-o", "BatchMode=yes"),
            *("-o", f"ConnectTimeout={self.connect_s}"),
            *("-o", "ServerAliveInterval=10"),
            # A shared connection would outlive us, and hold our pipes open.
            *("-o", "ControlMaster=no"),
            *("-o", "PermitLocalCommand=no"),
            *("-o", "RemoteCommand=none"),
            # Looking changes nothing here either.
            *("-o", "UpdateHostKeys=no"),
            *("-o", "LogLevel=ERROR"),
            "--",
            self.host,
        ]


def _bad(uri: str, source: str, why: str) -> BadInputError:
    return BadInputError(f"'{uri}' names no node, since {why}; give {URI_FORMS}.", source=source)


class NodeRunner:
    """Runs commands on a node, by SSH or on this host; each has a time limit there and here."""

    def __init__(self, address: NodeAddress, runner: Runner | None = None) -> None:
        self.address = address
        self._runner = runner or LocalRunner()

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run `argv` on the node.

        Raises HarnessError where the node can't be reached, or does not say how the command ended.
        """
        if self.address.host is None:
            return self._runner.run(argv, timeout_s=timeout_s, stdin=stdin, env=env)
        nonce = secrets.token_hex(8)
        line = render_remote(argv, timeout_s=timeout_s, env=env or {}, nonce=nonce)
        # A user's own shell may be any; only sh is known to understand the line.
        shell = [*(("sudo", "-n") if self.address.by_sudo else ()), "sh", "-c", line]
        answer = self._runner.run(
            [*self.address.ssh_argv(), shlex.join(shell)],
            timeout_s=timeout_s + self.address.connect_s + _GRACE_S,
            stdin=stdin,
        )
        ending = find_ending(answer.stderr, nonce)
        if ending is None or not answer.ok:
            raise self._trouble(argv, answer)
        return CommandResult(
            argv=tuple(argv),
            exit_code=ending.exit_code,
            stdout=answer.stdout,
            stderr=ending.stderr,
            duration_s=answer.duration_s,
            timed_out=ending.exit_code in {124, 137} and answer.duration_s >= timeout_s,
        )

    def _trouble(self, argv: Sequence[str], answer: CommandResult) -> HarnessError:
        where = f"ssh://{self.address.host}"
        # The node's own shell says 127 too, of a program that the node has not.
        if answer.exit_code == 127 and "No such file or directory: 'ssh'" in answer.stderr:
            return RequirementError(
                "There is no OpenSSH client on this host; install it with "
                "`apt-get install openssh-client`, or run `./dev setup`."
            )
        if self.address.by_sudo and answer.stderr.startswith("sudo: "):
            return HarnessError(
                f"On the node '{where}' the user can't become root, so nothing is known of it. It "
                f"said: {' '.join(answer.stderr.split())}. Allow that without a password, or ask "
                "as root."
            )
        if answer.exit_code != _SSH_FAILED:
            return HarnessError(
                f"The node '{where}' did not say how {shlex.join(argv)!r} ended: the connection "
                f"broke, the node hangs, or its shell is none.\n{answer.render()}"
            )
        words = " ".join(answer.stderr.split()) or "nothing"
        remedies = (remedy for said, remedy in _REMEDIES if said in words)
        remedy = next(
            remedies, "Try by hand: the same must work in a terminal without a question."
        )
        return HarnessError(
            f"The node '{where}' can't be reached, so nothing is known of it. ssh said: {words}. "
            f"{remedy}"
        )
