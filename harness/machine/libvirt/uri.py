"""Parses URIs of libvirt's QEMU driver."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from harness.errors import BadInputError

#: Where a person writes a URI.
OPTION = "--machine-uri"

_TRANSPORTS = ("unix", "ssh", "libssh", "libssh2", "tls", "tcp", "ext")
_SSH = ("ssh", "libssh", "libssh2")
_PATHS = ("/system", "/session")


@dataclass(frozen=True, kw_only=True)
class HostUri:
    """A URI and its parts."""

    text: str
    transport: str
    host: str | None
    is_session: bool
    user: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str, *, source: str = OPTION) -> HostUri:
        """Parse a URI; raises BadInputError where it is not one of libvirt's QEMU driver."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise _refused(text, str(error), source) from error
        driver, _, transport = parts.scheme.partition("+")
        if driver != "qemu":
            raise _refused(text, "its scheme is not 'qemu'", source)
        if transport and transport not in _TRANSPORTS:
            raise _refused(
                text, f"its transport '{transport}' is not one of {', '.join(_TRANSPORTS)}", source
            )
        if parts.path not in _PATHS:
            raise _refused(
                text, f"its path '{parts.path}' is not one of {', '.join(_PATHS)}", source
            )
        if transport in _SSH and host is None:
            raise _refused(text, f"'{transport}' needs a host", source)
        return cls(
            text=text,
            # With a host and without a transport, libvirt uses TLS.
            transport=transport or ("unix" if host is None else "tls"),
            host=host,
            is_session=parts.path == "/session",
            user=parts.username,
            port=port,
        )

    @property
    def is_local(self) -> bool:
        """Return whether its machines see this host's files."""
        return self.transport == "unix" and self.host is None

    @property
    def ssh_command(self) -> str:
        """Return a command that succeeds where libvirt's ssh transport does."""
        there = f"{self.user}@{self.host}" if self.user else str(self.host)
        return shlex.join(["ssh", *(["-p", str(self.port)] if self.port else []), there, "true"])

    @property
    def unattended(self) -> str:
        """Return the URI without a password prompt at the terminal."""
        parts = urlsplit(self.text)
        if self.transport != "ssh" or "no_tty" in parse_qs(parts.query):
            return self.text
        query = "&".join(filter(None, (parts.query, urlencode({"no_tty": 1}))))
        return urlunsplit(parts._replace(query=query))


def _refused(text: str, why: str, source: str) -> BadInputError:
    return BadInputError(
        f"'{text}' is not a URI of libvirt's QEMU driver: {why}. Examples are 'qemu:///system', "
        "'qemu:///session' and 'qemu+ssh://user@host/system'.",
        source=source,
    )
