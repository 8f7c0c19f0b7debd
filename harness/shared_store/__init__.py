"""The shared store: an OCI registry in which several hosts store images and checkpoints.

Each published folder of a cache is one artifact in the registry. The artifact's tag is the folder's
name, which ends with the key. The artifact's config is the folder's manifest, and the artifact's
layers are the compressed files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from typing_extensions import Self, override

from harness.errors import BadInputError, HarnessError

_ADDRESS = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>[A-Za-z0-9.-]+(?P<port>:[0-9]{1,5})?)"
    r"(?P<path>(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)/?"
)
_DEFAULT_PATH = "/gpu-node-harness"
#: The largest number of characters in an address; no host name with a path needs more.
_ADDRESS_CHARACTERS = 1024


class StoreError(HarnessError):
    """The shared store did not return or accept an artifact. The message has one or two sentences."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a shared store: a registry, and a prefix of the repositories' names."""

    scheme: str
    host: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address. The scheme is https unless `text` begins with http://.

        Raises BadInputError, which names the option, if `text` is not an address.
        """
        match = _ADDRESS.fullmatch(text)
        if "@" in text:
            # The message must not quote `text`, which may contain a password.
            raise BadInputError(
                "The address of a registry has a user or a password before '@'; give only "
                "HOST[:PORT][/PATH], and log in by `docker login HOST[:PORT]`.",
                source="--store",
            )
        port = 443 if match is None else int((match["port"] or ":443")[1:])
        if match is None or not 0 < port < 1 << 16 or len(text) > _ADDRESS_CHARACTERS:
            raise BadInputError(
                f"'{text}' is not the address of a registry; give HOST[:PORT][/PATH], such as "
                "registry.example:5000/team, or http://HOST[:PORT][/PATH] if the registry has no TLS.",
                source="--store",
            )
        return cls(
            scheme=match["scheme"] or "https",
            host=match["host"],
            path=(match["path"] or _DEFAULT_PATH).strip("/"),
        )

    def url(self, repository: str, rest: str) -> str:
        """Return the URL of `rest`, such as `manifests/TAG`, in the registry's API."""
        return f"{self.scheme}://{self.host}/v2/{self.path}/{repository}/{rest}"

    @override
    def __str__(self) -> str:
        return f"{self.host}/{self.path}"
