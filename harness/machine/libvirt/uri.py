"""URIs of libvirt's QEMU driver: which host they mean, and what is wrong with one."""

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
    """A URI as written, and what it says."""

    text: str
    transport: str
    host: str | None
    is_session: bool
    user: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str, *, source: str = OPTION) -> HostUri:
        """Take a URI apart.

        Raises BadInputError where this is no URI of a libvirt that runs QEMU's machines.
        """
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
                text, f"its transport '{transport}' is none of {', '.join(_TRANSPORTS)}", source
            )
        if parts.path not in _PATHS:
            raise _refused(text, f"its path '{parts.path}' is none of {', '.join(_PATHS)}", source)
        if transport in _SSH and host is None:
            raise _refused(text, f"'{transport}' needs a host", source)
        return cls(
            text=text,
            # With a host and no transport, libvirt takes TLS.
            transport=transport or ("unix" if host is None else "tls"),
            host=host,
            is_session=parts.path == "/session",
            user=parts.username,
            port=port,
        )

    @property
    def is_local(self) -> bool:
        """Tell whether its machines see this host's files."""
        return self.transport == "unix" and self.host is None

    @property
    def ssh_command(self) -> str:
        """Return a command that works where libvirt's own way by ssh does."""
        there = f"{self.user}@{self.host}" if self.user else str(self.host)
        return shlex.join(["ssh", *(["-p", str(self.port)] if self.port else []), there, "true"])

    @property
    def unattended(self) -> str:
        """Return the URI under which nobody is asked for a password at the terminal."""
        parts = urlsplit(self.text)
        if self.transport != "ssh" or "no_tty" in parse_qs(parts.query):
            return self.text
        query = "&".join(filter(None, (parts.query, urlencode({"no_tty": 1}))))
        return urlunsplit(parts._replace(query=query))


def _refused(text: str, why: str, source: str) -> BadInputError:
    return BadInputError(
        f"'{text}' is no URI of libvirt's QEMU driver: {why}. Such are 'qemu:///system', "
        "'qemu:///session' and 'qemu+ssh://user@host/system'.",
        source=source,
    )
