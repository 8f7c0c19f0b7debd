"""Runs commands on an existing node, by SSH or on this host itself. The node is not changed.

OpenSSH uses the user's own configuration, keys and known hosts, as in a terminal. But ssh here never
prompts, forwards nothing, and leaves no connection open.
"""

from __future__ import annotations

import re
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from harness.errors import BadInputError, HarnessError
from harness.limits import COMMAND_OUTPUT
from harness.machine.channels.ssh import (
    find_ending,
    no_ssh_client,
    remote_result,
    render_remote,
)
from harness.provisioning.command import LocalRunner, require_argv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.provisioning.command import Argv, CommandResult, Runner

URI_FORMS = "'local:' or 'ssh://[user@]host[:port][?config=FILE&timeout=SECONDS&sudo=yes]'"
_CONNECT_S = 10
#: Seconds for ssh, in addition to the limit for connecting and the command's own limit on the node.
_GRACE_S = 20.0
#: ssh's exit code for its own errors.
_SSH_FAILED = 255
#: Remedies by the message that ssh prints, since ssh has one exit code for all its errors.
_REMEDIES = (
    # For a changed host key, ssh also prints the message of the next entry, so the order matters.
    ("HOST IDENTIFICATION HAS CHANGED", "Find out why the host has another key."),
    (
        "Host key verification failed",
        "Connect once by hand, and accept the host key that ssh shows if it is the right one.",
    ),
    (
        "Permission denied",
        "Authorize your key, or name the right user; `ssh -v` shows what was tried.",
    ),
    ("Could not resolve hostname", "Check the host's name."),
    ("Connection refused", "Check the port, and whether sshd runs there."),
    (
        "timed out",
        (
            "Check whether the host is up, and whether a firewall blocks it; for a slow host, append "
            "'?timeout=60' to the node's URI."
        ),
    ),
    ("No route to host", "Check whether the host is up, and the route to it."),
)


@dataclass(frozen=True, kw_only=True)
class NodeAddress:
    """The address of a node: `host` for SSH, or this host itself if `host` is None.

    If `user` or `port` is None, ssh chooses. `config` is an ssh configuration that replaces the
    user's. `connect_s` limits the seconds in which ssh has to connect. With `by_sudo` the user
    becomes root on the node by sudo without a password.
    """

    host: str | None = None
    user: str | None = None
    port: int | None = None
    config: Path | None = None
    connect_s: int = _CONNECT_S
    by_sudo: bool = False

    @classmethod
    def from_uri(cls, uri: str, *, source: str) -> NodeAddress:
        """Parse a URI that has one of the URI_FORMS.

        Raises BadInputError, which names `source`, for any other URI.
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
            raise _bad(uri, source, "it is not 'local:', and its scheme is not 'ssh'")
        host, user = unquote(parts.hostname or ""), unquote(parts.username or "")
        # ssh would read a leading dash as an option. The host's name is also the name of a folder.
        for what, word in (("host", host), ("user", user)):
            if word and not re.fullmatch(r"[A-Za-z0-9_:%][A-Za-z0-9_.:%-]*", word):
                raise _bad(uri, source, f"{word!r} is not a {what}")
        if not host or parts.path not in {"", "/"} or parts.fragment:
            raise _bad(uri, source, "it must name exactly one host")
        if parts.password is not None:
            raise _bad(uri, source, "a password is not accepted, only a key")
        if unknown := query.keys() - {"config", "timeout", "sudo"}:
            raise _bad(uri, source, f"{min(unknown)!r} is unknown")
        config = Path(query["config"]).absolute() if query.get("config") else None
        if config is not None and not config.is_file():
            raise _bad(uri, source, f"there is no file '{config}'")
        timeout = query.get("timeout", str(_CONNECT_S))
        if not re.fullmatch("[1-9][0-9]{0,3}", timeout):
            raise _bad(uri, source, f"{timeout!r} is not a number of seconds")
        if query.get("sudo", "yes") != "yes":
            raise _bad(uri, source, "'sudo' accepts only 'yes'")
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
        """Return a name for the node that is also a valid name of a folder."""
        return "local" if self.host is None else re.sub(r"[^A-Za-z0-9_.-]", "-", self.host)

    def ssh_argv(self) -> list[str]:
        """Return the ssh command. The line for the node's shell has to be appended.

        Raises HarnessError if the node is this host.
        """
        if self.host is None:
            raise HarnessError(
                "The node is this host, so no ssh command is needed to reach the node."
            )
        return [
            "ssh",
            *(("-F", str(self.config)) if self.config is not None else ()),
            *(("-p", str(self.port)) if self.port is not None else ()),
            *(("-l", self.user) if self.user is not None else ()),
            # No terminal, no SSH agent, no forwarding.
            *("-T", "-a", "-x"),
            *("-o", "ClearAllForwardings=yes"),
            *("-o", "BatchMode=yes"),
            *("-o", f"ConnectTimeout={self.connect_s}"),
            *("-o", "ServerAliveInterval=10"),
            # A shared connection would outlive this process and keep its pipes open.
            *("-o", "ControlMaster=no"),
            *("-o", "PermitLocalCommand=no"),
            *("-o", "RemoteCommand=none"),
            # ssh must not change `known_hosts` of this host.
            *("-o", "UpdateHostKeys=no"),
            *("-o", "LogLevel=ERROR"),
            "--",
            self.host,
        ]


def _bad(uri: str, source: str, why: str) -> BadInputError:
    return BadInputError(
        f"'{uri}' is not the address of a node: {why}; use {URI_FORMS}.", source=source
    )


class NodeRunner:
    """Runs commands on a node, by SSH or on this host, each with a time limit on both sides."""

    def __init__(self, address: NodeAddress, runner: Runner | None = None) -> None:
        self.address = address
        self._runner = runner or LocalRunner(most_output_bytes=COMMAND_OUTPUT.bytes)

    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run `argv` on the node.

        Raises HarnessError if the node can't be reached, or the command's exit code is unknown, and
        LimitError if the output over SSH is longer than the limit `command-output-mib`.
        """
        require_argv(argv)
        if self.address.host is None:
            return self._runner.run(argv, timeout_s=timeout_s, stdin=stdin, env=env)
        nonce = secrets.token_hex(8)
        line = render_remote(argv, timeout_s=timeout_s, env=env or {}, nonce=nonce)
        # The user's login shell may be any shell, so sh runs the line.
        shell = [*(("sudo", "-n") if self.address.by_sudo else ()), "sh", "-c", line]
        answer = self._runner.run(
            [*self.address.ssh_argv(), shlex.join(shell)],
            timeout_s=timeout_s + self.address.connect_s + _GRACE_S,
            stdin=stdin,
        )
        if answer.wrote_too_much:
            raise COMMAND_OUTPUT.error(
                f"The command {shlex.join(argv)!r} on the node 'ssh://{self.address.host}'",
                remedy="The connection was closed.",
            )
        ending = find_ending(answer.stderr, nonce)
        if ending is None or not answer.ok:
            raise self._failure(argv, answer)
        return remote_result(argv, answer, ending, timeout_s=timeout_s)

    def _failure(self, argv: Argv, answer: CommandResult) -> HarnessError:
        where = f"ssh://{self.address.host}"
        # 127 is also the exit code of the node's shell if the node lacks the program.
        if answer.exit_code == 127 and "No such file or directory: 'ssh'" in answer.stderr:
            return no_ssh_client()
        if self.address.by_sudo and answer.stderr.startswith("sudo: "):
            return HarnessError(
                f"On the node '{where}' the user can't become root: "
                f"{' '.join(answer.stderr.split())}. Allow sudo without a password, or connect "
                "as root."
            )
        if answer.exit_code != _SSH_FAILED:
            return HarnessError(
                f"The node '{where}' did not report how {shlex.join(argv)!r} ended: the connection "
                f"broke, the node hangs, or its shell runs no commands.\n{answer.render()}"
            )
        output = " ".join(answer.stderr.split()).rstrip(".") or "nothing"
        remedies = (remedy for message, remedy in _REMEDIES if message in output)
        remedy = next(
            remedies, "Run `ssh` to this node in a terminal; it must connect without a prompt."
        )
        return HarnessError(
            f"The node '{where}' can't be reached; ssh printed: {output}. {remedy}"
        )
