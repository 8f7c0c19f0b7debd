"""Cloud images: where a distribution publishes an image, and how the image is verified."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Sequence  # noqa: TC003 - pydantic evaluates annotations
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator
from typing_extensions import override

from harness.errors import BadInputError
from harness.image import DriverImage, FirmwareType
from harness.settings import name_of_file
from harness.visible_text import without_password

FORBID: pydantic.ConfigDict = pydantic.ConfigDict(extra="forbid")


class Algorithm(Enum):
    """The hash algorithm of a digest list. The value is the algorithm's name in hashlib."""

    SHA256 = "sha256"
    SHA512 = "sha512"

    @property
    def digits(self) -> int:
        return {Algorithm.SHA256: 64, Algorithm.SHA512: 128}[self]


@dataclass(frozen=True, kw_only=True)
class Digest:
    """A file's digest and its algorithm."""

    algorithm: Algorithm
    value: str

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Parse `sha256:<64 digits>` or `sha512:<128 digits>`; raises ValueError."""
        name, _, value = text.partition(":")
        known = {algorithm.value: algorithm for algorithm in Algorithm}
        algorithm = known.get(name)
        if algorithm is None or not re.fullmatch(rf"[0-9a-f]{{{algorithm.digits}}}", value):
            raise ValueError(
                "A digest is 'sha256:' and 64 lower-case hexadecimal digits, or 'sha512:' and 128 such digits"
            )
        return cls(algorithm=algorithm, value=value)

    @override
    def __str__(self) -> str:
        return f"{self.algorithm.value}:{self.value}"

    @property
    def short(self) -> str:
        """Return the start of the digest, for messages."""
        return f"{self.algorithm.value}:{self.value[:16]}…"


def _inside(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(
            "A path must be relative to the recipe's folder, and must not lead out of it"
        )
    return value


def _digest(value: str) -> str:
    Digest.parse(value)
    return value


def _without_user(value: object) -> object:
    if isinstance(value, str) and re.match(r"https?:", value) and "@" in value:
        raise ValueError(
            "The URL has an '@', which may be the end of a password; a password would be recorded with "
            "the image. Write '%40' for an '@' in a path"
        )
    return value


def _folder(value: str) -> str:
    return value if value.endswith("/") else f"{value}/"


NonEmpty = Annotated[str, pydantic.Field(min_length=1)]
DigestText = Annotated[str, AfterValidator(_digest)]
Input = Annotated[NonEmpty, AfterValidator(_inside)]
_FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
FileName = Annotated[str, pydantic.Field(pattern=rf"^{_FILE_NAME}$")]
Folder = Annotated[
    str,
    BeforeValidator(_without_user),
    pydantic.Field(pattern=r"^(https?|file)://[^\s?#]+$"),
    AfterValidator(_folder),
]


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The digest list beside an image, in the format of sha256sum and sha512sum."""

    __pydantic_config__ = FORBID

    file: FileName
    """The list of digests beside the image."""
    algorithm: Algorithm
    """`sha256` or `sha512`."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The detached signature of the digest list, and the only key that is accepted."""

    __pydantic_config__ = FORBID

    file: FileName
    """The list's detached signature, beside the list."""
    key: Input
    """The file of the public key below the recipe's folder, armored or not."""
    fingerprint: Annotated[str, pydantic.Field(pattern=r"^[0-9A-F]{40}$")]
    """The primary key's fingerprint: 40 capital hexadecimal digits."""


@dataclass(frozen=True, kw_only=True)
class CloudImageFile:
    """The content of a cloud image's recipe, merged with the recipes that it extends.

    Without `digest`, the latest image of the series is used, and the lock file records this image.
    """

    __pydantic_config__ = FORBID

    schema: Literal[1]
    """Always 1."""
    kind: Literal["url"]
    """Always `url`."""
    description: str
    """One line about the image, which `harness image ls` prints."""
    extends: NonEmpty | None = None
    """Another recipe, by name or by a path relative to this file; see *Extending a recipe*."""
    replace: tuple[NonEmpty, ...] = ()
    """Names of lists that replace the lists of the extended recipe; other lists are appended."""
    folder: Folder
    """URL of the folder that contains the image and its list (https, http or file)."""
    file: FileName
    """The name of the image's file in the folder: a qcow2 or raw disk, with any suffix."""
    sums: Sums | None = None
    signature: Signature | None = None
    digest: DigestText | None = None
    """Pins the image: `sha256:…` or `sha512:…`, as in the list of digests; required without `sums`."""
    driver: DriverImage | None = None
    firmware: FirmwareType = FirmwareType.BIOS
    """The default firmware, which a test may replace: `bios` (SeaBIOS) or `uefi` (OVMF)."""
    mirrors: tuple[Folder, ...] = ()
    """Other folders that have the same files."""


@dataclass(frozen=True, kw_only=True)
class CloudImageRecipe:
    """A cloud image of the catalogue: its name, the recipe's folder, its content, the signing key.

    If a user names an image by its `url`, there is no recipe file.
    """

    name: str
    folder: Path
    file: CloudImageFile
    key_file: Path | None = None
    url: str | None = None

    @property
    def word(self) -> str:
        """Return the value of `--image` that selects this image."""
        return self.url or self.name

    @property
    def pinned(self) -> Digest | None:
        return None if self.file.digest is None else Digest.parse(self.file.digest)

    @property
    def is_authenticated(self) -> bool:
        """Return whether a signature or a pinned digest authenticates the image, so TLS is not needed."""
        return self.file.signature is not None or self.file.digest is not None

    def locations(self, preferred: Sequence[str] = ()) -> Iterator[str]:
        """Yield the folders that may have the image, each once, the `preferred` folders first.

        Raises BadInputError for a folder without TLS if the image has no signature or digest.
        """
        for location in dict.fromkeys(
            (*map(_folder, preferred), self.file.folder, *self.file.mirrors)
        ):
            if location.startswith("http:") and not self.is_authenticated:
                raise BadInputError(
                    f"The image '{self.name}' has neither 'signature' nor 'digest', so '{location}' "
                    "can't be trusted without TLS; use an https URL, or add one of the two keys.",
                    source=str(self.folder / f"{self.name}.yaml"),
                )
            yield location


@dataclass(frozen=True, kw_only=True)
class LocalImageFile:
    """The content of a recipe whose image is a file on this host."""

    __pydantic_config__ = FORBID

    schema: Literal[1]
    """Always 1."""
    kind: Literal["file"]
    """Always `file`."""
    path: NonEmpty
    """The path of a qcow2 or raw disk, relative to the recipe; the disk is not copied."""
    description: str = "an image file"
    """One line about the image, which `harness image ls` prints."""
    extends: NonEmpty | None = None
    """Another recipe, by name or by a path relative to this file; see *Extending a recipe*."""
    replace: tuple[NonEmpty, ...] = ()
    """Names of lists that replace the lists of the extended recipe; other lists are appended."""
    driver: DriverImage | None = None
    firmware: FirmwareType = FirmwareType.BIOS
    """The default firmware, which a test may replace: `bios` (SeaBIOS) or `uefi` (OVMF)."""


@dataclass(frozen=True, kw_only=True)
class LocalImage:
    """An image file on this host. The harness uses the file itself and makes no copy."""

    name: str
    path: Path
    file: LocalImageFile

    @classmethod
    def at(cls, path: Path) -> LocalImage:
        """Return the image at `path`, with a name that file names and test ids can contain."""
        content = LocalImageFile(schema=1, kind="file", path=str(path))
        return cls(name=name_of_file(path.name), path=path, file=content)


def is_url(image: str) -> bool:
    """Return whether the name of an image is meant as a URL, even if it is malformed."""
    return "://" in image or image.startswith(("http:", "https:"))


def recipe_of_url(url: str) -> CloudImageRecipe:
    """Return the recipe of the image at `https://HOST/FILE#sha256=DIGEST`.

    Raises BadInputError, which names the missing or forbidden part of the URL.
    """
    # The message must not quote a password, or a token in the query.
    shown = re.sub(r"\?[^#]*", "?…", without_password(url))

    def refuse(sentence: str) -> BadInputError:
        return BadInputError(f"'{shown}' {sentence}", source="--image")

    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError as error:
        why = "" if "@" in url else f" ({error})"
        raise refuse(f"is not a URL{why}; give https://HOST/FILE#sha256=DIGEST.") from error
    if parts.scheme != "https":
        other = "give the path of the file" if parts.scheme == "file" else "give an https URL"
        raise refuse(f"is a URL of {parts.scheme}; {other}.")
    folder, _, file = parts.path.rpartition("/")
    if not parts.netloc or not re.fullmatch(_FILE_NAME, file):
        raise refuse("names no file; give https://HOST/FILE#sha256=DIGEST.")
    if parts.query or parts.username is not None:
        raise refuse(
            "has a query or a password, which would be recorded with the image; download the file, "
            "and give its path."
        )
    if "@" in parts.path:
        raise refuse(
            "has an '@', which may be the end of a password; write '%40' for an '@' in a path."
        )
    if not parts.fragment:
        raise refuse(
            "has no digest, which is needed to verify the file; append #sha256=DIGEST "
            "(`sha256sum` prints it)."
        )
    try:
        digest = Digest.parse(parts.fragment.replace("=", ":", 1))
    except ValueError as error:
        raise refuse(
            f"has the fragment '{parts.fragment}', which is not a digest. {error}; append "
            "#sha256=DIGEST or #sha512=DIGEST to the URL."
        ) from error
    content = CloudImageFile(
        schema=1,
        kind="url",
        description=url,
        folder=f"https://{parts.netloc}{folder}/",
        file=file,
        digest=str(digest),
    )
    return CloudImageRecipe(name=name_of_file(file), folder=Path(), file=content, url=url)
