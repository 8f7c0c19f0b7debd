"""Parses URIs of libvirt's QEMU driver."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from harness.errors import BadInputError

#: The command-line option that sets the URI.
OPTION = "--machine-uri"

_SCHEMES = ("qemu", "qemu+unix")
_PATHS = ("/system", "/session")


@dataclass(frozen=True, kw_only=True)
class HostUri:
    """The URI of a libvirtd of this host, and its kind: system or session."""

    text: str
    is_session: bool

    @classmethod
    def parse(cls, text: str) -> HostUri:
        """Parse a URI. Raises BadInputError if the URI does not name a libvirtd of this host."""
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise _refused(text, str(error)) from error
        if parts.scheme.partition("+")[0] != "qemu":
            raise _refused(text, "its scheme is not 'qemu'")
        if parts.scheme not in _SCHEMES or parts.netloc:
            raise BadInputError(
                f"'{text}' names a host or a transport other than 'unix', but machines run on the "
                "libvirt of this host only; use 'qemu:///system' or 'qemu:///session'. To use several "
                "hosts, run one shard of the tests on each.",
                source=OPTION,
            )
        if parts.path not in _PATHS:
            raise _refused(text, f"its path '{parts.path}' is not one of {', '.join(_PATHS)}")
        return cls(text=text, is_session=parts.path == "/session")


def _refused(text: str, why: str) -> BadInputError:
    return BadInputError(
        f"'{text}' is not a URI of libvirt's QEMU driver: {why}. Examples are 'qemu:///system' and "
        "'qemu:///session'.",
        source=OPTION,
    )
