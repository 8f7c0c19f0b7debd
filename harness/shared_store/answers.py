"""Parses a registry's answers about artifacts; raises StoreError for a malformed answer."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import (  # noqa: TC003 - pydantic evaluates the annotations
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar

import pydantic
from typing_extensions import NotRequired, TypedDict

from harness.artifact_cache import MANIFEST, STAMP, USED, FileFact
from harness.foreign_json import ForeignJsonError, parse_json
from harness.limits import (
    STORE_ANSWER_MIB,
    STORE_ARTIFACT_FILES,
    STORE_ARTIFACT_MIB,
    STORE_OTHER_MIB,
    STORE_TAGS,
    Limit,
)
from harness.shared_store import StoreError
from harness.visible_text import shortened, visible_line

FILE_TYPE = "application/vnd.gpu-node-harness.file.v1+gzip"
REST_TYPE = "application/vnd.gpu-node-harness.rest.v1+zip"
TITLE = "org.opencontainers.image.title"
CREATED = "org.opencontainers.image.created"
NEEDS = "gpu-node-harness.needs"
"""The annotation that lists which QEMU and processor a checkpoint requires."""

#: A tag, as the OCI distribution specification defines it.
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
#: A token of visible ASCII characters, which include all characters that RFC 6750 allows.
_TOKEN = re.compile(r"[!-~]{1,16384}")
#: A link, and its parameters (RFC 8288); a quoted value may contain commas.
_LINK = re.compile(r'<([^<>]*)>((?:[^,<"]|"[^"]*")*)')
_RELATIONS = re.compile(r';\s*rel\s*=\s*"?([^";]*)', re.IGNORECASE)
#: Files that are never layers: the manifest is pushed as the config, and the other files are only
#: for this host.
OWN_FILES = frozenset({MANIFEST, STAMP, USED})
_PATH_BYTES, _NAME_BYTES, _LEVELS = 1024, 255, 16
#: The most bytes that gzip may add to data that it can't compress: 1/1000 of the data, plus 1 KiB.
#: Real gzip adds only a header, and 5 bytes for each 16 KiB.
_GZIP_SHARE, _GZIP_BYTES = 1000, 1 << 10
_SHOWN_BYTES = 300

T = TypeVar("T", list[Any], dict[str, Any])
Digest = Annotated[str, pydantic.Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class _Descriptor(TypedDict):
    digest: Digest


class _LayerDescriptor(_Descriptor):
    mediaType: str
    size: Annotated[int, pydantic.Field(strict=True, ge=1)]
    annotations: Mapping[str, Any]


class _Fact(TypedDict):
    size: Annotated[int, pydantic.Field(strict=True, ge=0)]
    sha256: Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]


class _Token(TypedDict):
    token: NotRequired[str | None]
    access_token: NotRequired[str | None]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of an artifact: a blob, and the path of the file that the blob contains."""

    title: str
    digest: str
    size: int
    media_type: str


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """The layers that an artifact's manifest lists, and `config`, the digest of the description."""

    layers: Sequence[Layer]
    config: str

    @property
    def packed_bytes(self) -> int:
        return sum(layer.size for layer in self.layers)


@functools.cache
def _adapter(shape: type) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(shape)


def _checked(shape: type, value: object, problem: str) -> Any:
    """Return `value` if it has the form `shape`, else raise StoreError. `problem` begins the message.

    Callers check long lists item by item, since pydantic would collect an error for each item.
    """
    try:
        return _adapter(shape).validate_python(value)
    except pydantic.ValidationError as error:
        raise StoreError(f"{problem}: {_slip(error)}.") from error


def _items(value: object, kind: type[T], key: str, limit: Limit, problem: str) -> T:
    """Return `value`. Raise StoreError if `value` is not a `kind`, or has more items than the limit."""
    if not isinstance(value, kind):
        raise StoreError(f"{problem}: '{key}' is not a JSON {kind.__name__}.")
    if len(value) > limit.value:
        raise StoreError(str(limit.error(problem)))
    return value


def _slip(error: pydantic.ValidationError) -> str:
    """Return the first problem in an invalid value, and the location of the problem."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    said = f"{first['msg']} at '{place}'" if place else first["msg"]
    return shortened(visible_line(said), _SHOWN_BYTES)


def _shown(value: object) -> str:
    """Return a value as messages show it. Quote only texts, since other values may be large."""
    return shortened(repr(value), _SHOWN_BYTES) if isinstance(value, str) else "a non-text value"


def read_object(raw: bytes, problem: str) -> dict[str, Any]:
    """Parse a JSON object; raises StoreError, whose message begins with `problem`."""
    try:
        parse_json(raw, limit=STORE_ANSWER_MIB)
        # pydantic also refuses half of a surrogate pair.
        found: dict[str, Any] = _adapter(dict[str, Any]).validate_json(raw)
    except ForeignJsonError as error:
        raise StoreError(f"{problem}: {visible_line(str(error))}.") from error
    except pydantic.ValidationError as error:
        raise StoreError(f"{problem}: {_slip(error)}.") from error
    return found


def read_artifact(manifest: Mapping[str, Any], problem: str) -> Artifact:
    """Parse an artifact's manifest; raises StoreError, whose message begins with `problem`."""
    layers: list[Layer] = []
    for each in _items(manifest.get("layers"), list, "layers", STORE_ARTIFACT_FILES, problem):
        layer = _checked(_LayerDescriptor, each, f"{problem}: layer {len(layers)}")
        title = layer["annotations"].get(TITLE)
        if not isinstance(title, str):
            raise StoreError(f"{problem}: layer {len(layers)} has no title.")
        layers.append(
            Layer(
                title=title,
                digest=layer["digest"],
                size=layer["size"],
                media_type=layer["mediaType"],
            )
        )
    config = _checked(_Descriptor, manifest.get("config"), f"{problem}: 'config'")
    return Artifact(layers=layers, config=config["digest"])


def read_files(description: bytes, name: str) -> Mapping[str, FileFact]:
    """Return the size and the digest of each file that the description of a folder lists.

    Raises StoreError if the description is malformed, or lists a file outside of the folder.
    """
    problem = f"The manifest of '{name}' is malformed"
    files = read_object(description, problem).get("files")
    facts = {}
    for title, each in _items(files, dict, "files", STORE_ARTIFACT_FILES, problem).items():
        fact = _checked(_Fact, each, f"{problem}: file '{shortened(title, _SHOWN_BYTES)}'")
        facts[title] = FileFact(size=fact["size"], sha256=fact["sha256"])
    require_own(facts, name)
    if sum(fact.size for fact in facts.values()) > STORE_ARTIFACT_MIB.bytes:
        raise StoreError(str(STORE_ARTIFACT_MIB.error(f"'{name}'")))
    return facts


def read_parts(description: bytes, name: str) -> Mapping[str, Any]:
    """Return the parts of an artifact's key from its description; raises StoreError."""
    problem = f"The description of '{name}' in the store is malformed"
    parts = read_object(description, problem).get("parts", {})
    return _items(parts, dict, "parts", STORE_ARTIFACT_FILES, problem)


def require_own(titles: Iterable[str], name: str, *, taken: Collection[str] = ()) -> None:
    """Raise StoreError unless the titles are paths of different files that `name` may contain.

    `taken` lists the paths of files that the folder already has. No title may equal one of these
    paths.
    """
    known = {*taken}
    for title in titles:
        path = PurePosixPath(title)
        parts = path.parts
        if (
            not title.isprintable()
            or path.as_posix() != title
            or path.is_absolute()
            or not 0 < len(parts) <= _LEVELS
            or ".." in parts
            or parts[0] in OWN_FILES
            or len(title.encode()) > _PATH_BYTES
            or any(len(part.encode()) > _NAME_BYTES for part in parts)
        ):
            raise StoreError(f"'{name}' lists the file '{title}', which it may not contain.")
        if title in known:
            raise StoreError(f"'{name}' lists the file '{title}' twice.")
        known.add(title)
    folders = {parent.as_posix() for title in known for parent in PurePosixPath(title).parents}
    if both := sorted(folders & known):
        raise StoreError(f"'{name}' lists '{both[0]}' both as a file and as a folder.")


def check_layers(layers: Sequence[Layer], files: Mapping[str, FileFact], name: str) -> None:
    """Raise StoreError unless each of `files` has a layer, and all other files share one layer."""
    found: set[str] = set()
    for layer in layers:
        if layer.media_type not in {FILE_TYPE, REST_TYPE}:
            raise StoreError(
                f"The store's '{name}' has a layer of the unknown type '{layer.media_type}'."
            )
        # The title of the layer with the other files is no path, even if a file has an equal path.
        title = "" if layer.media_type == REST_TYPE else layer.title
        fact = files.get(title)
        if title and fact is None:
            raise StoreError(
                f"The store's '{name}' has the file '{title}', which its description does not list."
            )
        if title in found:
            raise StoreError(f"The store's '{name}' has the file '{layer.title}' twice.")
        found.add(title)
        if fact is None and layer.size > STORE_OTHER_MIB.bytes:
            raise StoreError(str(STORE_OTHER_MIB.error(f"The store's '{name}'")))
        if fact is not None and layer.size > fact.size + fact.size // _GZIP_SHARE + _GZIP_BYTES:
            raise StoreError(
                f"The store's '{name}' has a layer of {layer.size} bytes for the file '{title}', which "
                f"has only {fact.size} bytes when it is unpacked."
            )
    missing = sorted(set(files) - found)
    if missing:
        raise StoreError(f"The store's '{name}' lacks the file '{missing[0]}'.")


def read_page(raw: bytes, problem: str) -> Sequence[str]:
    """Parse one page of a list of tags; raises StoreError, whose message begins with `problem`."""
    # Some registries write null for an empty list.
    known = {"tags": "", **read_object(raw, problem)}["tags"]
    tags = _items([] if known is None else known, list, "tags", STORE_TAGS, problem)
    for tag in tags:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            # A malformed tag is refused, since the tag becomes the name of a folder.
            raise StoreError(
                f"{problem}: {_shown(tag)} is not a valid tag, so the list is not used."
            )
    return tags


def next_page(links: str) -> str | None:
    """Return the URL of a list's next page, from the values of the headers `Link`."""
    for url, parameters in _LINK.findall(links):
        found = _RELATIONS.search(parameters)
        if found is None or "next" in found[1].lower().split():
            return str(url)
    return None


def read_token(raw: bytes) -> str:
    """Parse the token in the answer of a registry's token service; raises StoreError."""
    problem = "The answer to the log-in is malformed"
    known = _checked(_Token, read_object(raw, problem), problem)
    token = known.get("token") or known.get("access_token") or ""
    if not _TOKEN.fullmatch(token):
        raise StoreError(f"{problem}: it has no token.")
    return str(token)


def read_notes(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the annotations of a manifest that are texts, each shortened to one line."""
    notes = manifest.get("annotations")
    return {
        key: shortened(visible_line(value), _SHOWN_BYTES)
        for key, value in (notes.items() if isinstance(notes, dict) else ())
        if isinstance(value, str)
    }


def read_moment(text: str | None) -> dt.datetime | None:
    """Parse a time in ISO 8601. The default time zone is UTC. Return None for any other text."""
    try:
        found = dt.datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.timezone.utc)
