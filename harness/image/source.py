"""Stock images: where a distribution's own image lies, and what vouches for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence  # noqa: TC003 - pydantic evaluates annotations
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator
from typing_extensions import override

from harness.errors import BadInputError
from harness.image import DriverImage  # noqa: TC001 - pydantic evaluates the annotations

FORBID: pydantic.ConfigDict = pydantic.ConfigDict(extra="forbid")


class Algorithm(Enum):
    """How a list of digests was made; the value is hashlib's name."""

    SHA256 = "sha256"
    SHA512 = "sha512"

    @property
    def digits(self) -> int:
        return {Algorithm.SHA256: 64, Algorithm.SHA512: 128}[self]


@dataclass(frozen=True, kw_only=True)
class Digest:
    """A file's digest, with the algorithm that gave it."""

    algorithm: Algorithm
    value: str

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Read `sha256:<64 digits>` or `sha512:<128 digits>`; raises ValueError."""
        name, _, value = text.partition(":")
        known = {algorithm.value: algorithm for algorithm in Algorithm}
        algorithm = known.get(name)
        if algorithm is None or not re.fullmatch(rf"[0-9a-f]{{{algorithm.digits}}}", value):
            raise ValueError(
                "A digest is 'sha256:' with 64, or 'sha512:' with 128 lower-case hexadecimal digits"
            )
        return cls(algorithm=algorithm, value=value)

    @override
    def __str__(self) -> str:
        return f"{self.algorithm.value}:{self.value}"

    @property
    def short(self) -> str:
        """Return as much of it as a sentence needs."""
        return f"{self.algorithm.value}:{self.value[:16]}…"


def _inside(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("A path is relative to the catalogue and stays below it")
    return value


def _digest(value: str) -> str:
    Digest.parse(value)
    return value


def _folder(value: str) -> str:
    return value if value.endswith("/") else f"{value}/"


NonEmpty = Annotated[str, pydantic.Field(min_length=1)]
Input = Annotated[NonEmpty, AfterValidator(_inside)]
FileName = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
Folder = Annotated[
    str, pydantic.Field(pattern=r"^(https?|file)://[^\s?#]+$"), AfterValidator(_folder)
]


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The list of digests beside an image, as sha256sum and sha512sum write it."""

    __pydantic_config__ = FORBID

    file: FileName
    algorithm: Algorithm


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The detached signature of that list, and the one key that may have made it."""

    __pydantic_config__ = FORBID

    file: FileName
    key: Input
    fingerprint: Annotated[str, pydantic.Field(pattern=r"^[0-9A-F]{40}$")]


@dataclass(frozen=True, kw_only=True)
class StockFile:
    """A stock image as a person writes it; `Stock` adds where that stands.

    Without `digest` it is the latest of its series, and the lock file says which one that was.
    """

    __pydantic_config__ = FORBID

    schema: Literal[1]
    kind: Literal["url"]
    description: str
    folder: Folder
    file: FileName
    sums: Sums
    signature: Signature | None = None
    digest: Annotated[str, AfterValidator(_digest)] | None = None
    driver: DriverImage | None = None
    firmware: Literal["bios", "uefi"] = "bios"
    mirrors: tuple[Folder, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stock:
    """An image that is fetched as it is: the file's content, and the catalogue that it is in."""

    name: str
    folder: Path
    file: StockFile

    @property
    def key_file(self) -> Path | None:
        """Return the file of the signing key."""
        signature = self.file.signature
        return None if signature is None else self.folder / signature.key

    @property
    def pinned(self) -> Digest | None:
        return None if self.file.digest is None else Digest.parse(self.file.digest)

    @property
    def is_vouched_for(self) -> bool:
        """Return whether a signature or a pinned digest, and not the connection alone, vouches."""
        return self.file.signature is not None or self.file.digest is not None

    def places(self, preferred: Sequence[str] = ()) -> Iterator[str]:
        """Yield the folders that may hold the image, each once, those `preferred` first.

        Raises BadInputError for one over which anybody on the way could send another image.
        """
        for place in dict.fromkeys(
            (*map(_folder, preferred), self.file.folder, *self.file.mirrors)
        ):
            if place.startswith("http:") and not self.is_vouched_for:
                raise BadInputError(
                    f"Nothing but the connection vouches for the image '{self.name}', so that "
                    f"'{place}' cannot be trusted; give a place with https, or the image's "
                    "'signature' or 'digest'.",
                    source=str(self.folder / f"{self.name}.yaml"),
                )
            yield place


@dataclass(frozen=True, kw_only=True)
class LocalImage:
    """An image that somebody has already, named by its path; used where it lies."""

    path: Path

    @property
    def name(self) -> str:
        """Return a name that is fit for file names and test ids."""
        return re.sub(r"[^a-z0-9]+", "-", self.path.stem.lower()).strip("-") or "image"
