"""The structures and commands in the headers of one release of NVIDIA's driver, by name.

`harness gpu release` writes the data of one release.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import pydantic
from pydantic import Field as Bounds

from harness.errors import BadInputError, listed
from harness.foreign_files import read_given
from harness.limits import JSON

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER: Final = "releases"
SHIPPED: Final = Path(__file__).parent / FOLDER

_PLAIN: Final = re.compile(r"[uif](?:8|16|32|64)|pointer")
_Size = Annotated[int, Bounds(ge=0, le=0xFFFFFFFF)]
_Name = Annotated[str, Bounds(pattern=r"\A[A-Za-z_][\w.]*\z")]
_Number = Annotated[str, Bounds(pattern=r"\A0x[0-9a-f]{8}\z")]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a structure: `count` elements of `size` bytes each, from `offset` on.

    `type` is a number type such as `u8`, `i16` or `f64` (8 to 64 bits), `pointer`, or the name of
    a structure.
    """

    offset: int
    size: int
    type: str
    count: int


@dataclass(frozen=True, slots=True)
class Struct:
    """A structure of `size` bytes."""

    size: int
    fields: Mapping[str, Field]


@dataclass(frozen=True, slots=True)
class Command:
    """A control command; a command without parameters has no structure."""

    name: str
    struct: str | None


class ReleaseFile(pydantic.BaseModel):
    """The data of one release as stored. A field has a name, offset, element size, type and count."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_: Literal[1] = Bounds(alias="schema")
    release: Annotated[str, Bounds(pattern=r"\A\d+(\.\d+){1,2}\z")]
    structs: Mapping[_Name, tuple[_Size, list[tuple[_Name, _Size, _Size, _Name, _Size]]]]
    commands: Mapping[_Number, tuple[_Name, _Name | None]]
    constants: Mapping[_Name, int]


class MissingNameError(KeyError):
    """The data of a release has no such structure, field or constant."""


class Layouts:
    """The content of one release's headers; methods raise MissingNameError for an unknown name."""

    def __init__(self, content: ReleaseFile) -> None:
        self.release = content.release
        self._content = content
        self._structs: dict[str, Struct] = {}

    def struct(self, name: str) -> Struct:
        """Return a structure by its name."""
        if name not in self._structs:
            if name not in self._content.structs:
                raise MissingNameError(name)
            size, fields = self._content.structs[name]
            self._structs[name] = Struct(
                size,
                {
                    field: Field(offset, one, kind, count)
                    for field, offset, one, kind, count in fields
                },
            )
        return self._structs[name]

    @property
    def structs(self) -> tuple[str, ...]:
        """The names of all structures."""
        return tuple(self._content.structs)

    def command(self, number: int) -> Command | None:
        """Return a control command, or None if the headers do not define this number."""
        return self.commands.get(number)

    def constant(self, name: str) -> int:
        """Return a number by its name, such as `MC_ENGINE_IDX_GSP`."""
        if name not in self._content.constants:
            raise MissingNameError(name)
        return self._content.constants[name]

    @property
    def constants(self) -> Mapping[str, int]:
        """All numbers by name."""
        return self._content.constants

    @cached_property
    def commands(self) -> Mapping[int, Command]:
        """The control commands by number, except the commands for displays."""
        return {
            int(number, 16): Command(name, parameters)
            for number, (name, parameters) in self._content.commands.items()
        }


def known_releases(*folders: Path) -> Mapping[str, Path]:
    """Return the data files by release, from the harness and from `folders` of GPU models."""
    found: dict[str, Path] = {}
    for folder in (SHIPPED, *(each / FOLDER for each in folders)):
        found |= {file.stem: file for file in folder.glob("*.json")}
    return dict(sorted(found.items(), key=lambda item: release_key(item[0])))


@functools.cache
def read_layouts(release: str, *folders: Path) -> Layouts:
    """Read a release's data, once per process; raises BadInputError if the data is unusable."""
    known = known_releases(*folders)
    if release not in known:
        raise BadInputError(
            f"There is no data for this release of NVIDIA's driver; known releases: {listed(known)}. "
            "Structures differ between releases, so another release's data would be wrong. Generate "
            "the data from the source of the open kernel modules with `harness gpu release "
            "SOURCE`.",
            source=f"NVIDIA driver {release}",
        )
    return read_release_file(known[release])


def read_release_file(file: Path) -> Layouts:
    """Read one data file; raises BadInputError if the file is malformed."""
    try:
        raw = read_given(file, limit=JSON)
    except OSError as error:
        raise BadInputError(
            f"The file cannot be read ({error.strerror}).", source=str(file)
        ) from error
    try:
        content = ReleaseFile.model_validate_json(raw)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise BadInputError(f"{first['msg']}.", source=str(file), key=key or None) from error
    if content.release != file.stem:
        raise BadInputError(
            (
                f"The file is named after release {file.stem!r}, but its content states release "
                f"{content.release!r}."
            ),
            source=str(file),
            key="release",
        )
    for name, (size, fields) in content.structs.items():
        for field, offset, one, kind, count in fields:
            if not _PLAIN.fullmatch(kind) and kind not in content.structs:
                refusal = f"The file has no structure for the type {kind!r}."
            elif offset + one * count > size:
                end = offset + one * count
                refusal = f"The field ends at byte {end}, but the structure has {size} bytes."
            else:
                continue
            raise BadInputError(refusal, source=str(file), key=f"structs.{name}.{field}")
    for number, (_, parameters) in content.commands.items():
        if parameters is not None and parameters not in content.structs:
            raise BadInputError(
                f"The file has no structure {parameters!r} for the command's parameters.",
                source=str(file),
                key=f"commands.{number}",
            )
    return Layouts(content)


def render_release(content: ReleaseFile) -> str:
    """Return the text of a data file: one line for each entry, so that differences are readable."""
    tables = [
        f" {_compact(title)}: {{\n{_lines(table)}\n }}"
        for title, table in (
            ("structs", content.structs),
            ("commands", content.commands),
            ("constants", content.constants),
        )
    ]
    head = f' "schema": 1,\n "release": {_compact(content.release)}'
    return "{\n" + ",\n".join([head, *tables]) + "\n}\n"


def nearest_release(release: str, known: Iterable[str]) -> str | None:
    """Return the newest release before `release`, or else the oldest release after `release`."""
    others = sorted(
        (other for other in known if other != release),
        key=release_key,
    )
    before = [other for other in others if release_key(other) < release_key(release)]
    return before[-1] if before else next(iter(others), None)


def release_key(release: str) -> tuple[int, ...]:
    """Return a key that sorts releases from the oldest to the newest."""
    return tuple(int(part) for part in release.split(".") if part.isdecimal())


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _lines(table: Mapping[str, object]) -> str:
    return ",\n".join(f"  {_compact(name)}: {_compact(table[name])}" for name in sorted(table))
