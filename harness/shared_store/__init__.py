"""A store of images and checkpoints that several hosts share: an OCI registry.

Each published folder of a cache is one artifact in the registry. The artifact's tag is the folder's
name, which ends with the key. Its config is the folder's manifest, and its layers are the files,
compressed.
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
#: The most characters of an address: more than any host name with a path has.
_ADDRESS_CHARACTERS = 1024


class StoreError(HarnessError):
    """The shared store did not return or accept an artifact; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a shared store: a registry, and the prefix of the repositories in it."""

    scheme: str
    host: str
    path: str

    @classmethod
    def parse(cls, text: str, *, source: str = "--store") -> Self:
        """Parse an address; its registry is reached by https unless `text` begins with http://.

        Raises BadInputError, which names `source`.
        """
        match = _ADDRESS.fullmatch(text)
        if "@" in text:
            # The message must not quote `text`, which may contain a password.
            raise BadInputError(
                "The address of a registry has a user or a password before '@'; give only "
                "HOST[:PORT][/PATH], and log in by `docker login HOST[:PORT]`.",
                source=source,
            )
        port = 443 if match is None else int((match["port"] or ":443")[1:])
        if match is None or not 0 < port < 1 << 16 or len(text) > _ADDRESS_CHARACTERS:
            raise BadInputError(
                f"'{text}' is not the address of a registry; give HOST[:PORT][/PATH], such as "
                "registry.example:5000/team, and http:// before it if it has no TLS.",
                source=source,
            )
        return cls(
            scheme=match["scheme"] or "https",
            host=match["host"],
            path=(match["path"] or _DEFAULT_PATH).strip("/"),
        )

    def url(self, repository: str, rest: str) -> str:
        """Return the URL of a part of the registry's API, such as `manifests/TAG`."""
        return f"{self.scheme}://{self.host}/v2/{self.path}/{repository}/{rest}"

    @override
    def __str__(self) -> str:
        return f"{self.host}/{self.path}"
