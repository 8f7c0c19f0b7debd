"""The catalogue: recipes read from YAML, refused where a person slipped."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import pydantic
from pydantic import AfterValidator

from harness.datafile import line_of, read_data_file
from harness.errors import BadInputError, RequirementError, listed
from harness.image import DriverImage  # noqa: TC001 - pydantic evaluates the annotations
from harness.image.source import FORBID, Input, LocalImage, NonEmpty, Stock, StockFile
from harness.settings import ACCEPT_OPTION, ACCEPT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

NAME = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*")
"""An image's name is part of file names and test ids."""


class LicenceError(RequirementError):
    """An image holds software under a licence that nobody accepted."""


def _expression(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"This is not a regular expression ({error})") from error
    return value


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A Debian package archive that an image is installed from."""

    __pydantic_config__ = FORBID

    url: Annotated[str, pydantic.Field(pattern=r"^(https?|file)://\S+$")]
    suites: Annotated[tuple[NonEmpty, ...], pydantic.Field(min_length=1)]
    components: tuple[NonEmpty, ...] = ("main",)

    def sources(self) -> tuple[str, ...]:
        """Return one line of sources.list for each suite."""
        return tuple(
            f"deb {self.url} {suite} {' '.join(self.components)}" for suite in self.suites
        )


@dataclass(frozen=True, kw_only=True)
class KernelChoice:
    """Which kernels an image has: the `newest` ones whose package name is `pattern`.

    `pattern` is an extended regular expression for the whole name of a `linux-image-…` package,
    resolved against the archives when the image is built.
    """

    __pydantic_config__ = FORBID

    pattern: Annotated[
        str, pydantic.Field(pattern=r"^linux-image-\S+$"), AfterValidator(_expression)
    ]
    newest: Annotated[int, pydantic.Field(ge=1, le=5)] = 2


@dataclass(frozen=True, kw_only=True)
class Licence:
    """Terms of software in an image that nobody accepts by building it: a person has to say so.

    `id` is what that person names, `text` where the terms can be read beforehand.
    """

    __pydantic_config__ = FORBID

    id: Annotated[str, pydantic.Field(pattern=r"^[a-z0-9]+([-.][a-z0-9]+)*$")]
    text: Annotated[str, pydantic.Field(pattern=r"^https://\S+$")]


@dataclass(frozen=True, kw_only=True)
class RecipeFile:
    """A recipe as a person writes it; `Recipe` adds where it stands."""

    __pydantic_config__ = FORBID

    schema: Literal[1]
    kind: Literal["build"]
    description: str
    release: NonEmpty
    archives: Annotated[tuple[Archive, ...], pydantic.Field(min_length=1)]
    kernels: KernelChoice
    packages: Annotated[tuple[NonEmpty, ...], pydantic.Field(min_length=1)]
    exclude: tuple[NonEmpty, ...] = ()
    disk_gib: Annotated[int, pydantic.Field(ge=4, le=1024)] = 10
    trees: tuple[Input, ...] = ()
    scripts: tuple[Input, ...] = ()
    driver: DriverImage | None = None
    licence: Licence | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an image is built: the file's content, and the folder that its paths start from."""

    name: str
    folder: Path
    file: RecipeFile

    def tree_files(self) -> dict[str, Path]:
        """Return what the trees lay over the root file system, by path there; later trees win."""
        return {
            str(path.relative_to(self.folder / tree)): path
            for tree in self.file.trees
            for path in _files_below(self.folder / tree)
        }

    def script_files(self) -> dict[str, Path]:
        """Return the files that scripts find beside them, by path below the catalogue."""
        folders = dict.fromkeys(Path(script).parent for script in self.file.scripts)
        return {
            str(path.relative_to(self.folder)): path
            for folder in folders
            for path in _files_below(self.folder / folder)
        }

    def key(self, *, builder: str) -> str:
        """Return the digest of everything that decides what this recipe's image contains.

        `builder` names the builder and its version. What the archives hold at the time is not
        part of it: the manifest says which packages went in.
        """
        inputs = {
            kind: {name: _fingerprint(path) for name, path in sorted(files.items())}
            for kind, files in (("tree", self.tree_files()), ("script", self.script_files()))
        }
        # The terms of what goes in are no part of what goes in.
        recipe = {key: value for key, value in asdict(self.file).items() if key != "licence"}
        told = json.dumps(
            {"builder": builder, "name": self.name, "recipe": recipe, "inputs": inputs},
            sort_keys=True,
        )
        return hashlib.sha256(told.encode()).hexdigest()

    def require_acceptance(self, accepted: Collection[str]) -> None:
        """Raise LicenceError where the image holds software under terms that nobody accepted."""
        licence = self.file.licence
        if licence is not None and licence.id not in accepted:
            raise LicenceError(
                f"The image '{self.name}' holds software under the licence '{licence.id}', which "
                f"was not accepted. Read it at {licence.text}; whoever accepts it passes "
                f"'{ACCEPT_OPTION}={licence.id}', or sets {ACCEPT_VARIABLE}={licence.id} in the "
                "environment."
            )


Source: TypeAlias = Recipe | Stock | LocalImage
"""Where an image comes from: a recipe, a distribution's server, a file that is there already."""


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The images that can be had, by name."""

    folder: Path
    entries: Mapping[str, Recipe | Stock]

    def get(self, name: str) -> Source:
        """Return the image called `name`, or the file at that path.

        A path has a slash, or ends with .qcow2 or .img. Raises BadInputError that lists the known
        names.
        """
        if "/" in name or name.endswith((".qcow2", ".img")):
            return LocalImage(path=Path(name))
        try:
            return self.entries[name]
        except KeyError:
            raise BadInputError(
                f"There is no image called '{name}'; known are {listed(self.entries)}.",
                source=str(self.folder),
            ) from None


def load_catalogue(folder: Path) -> Catalogue:
    """Read every `*.yaml` of `folder`.

    Raises BadInputError where a recipe is wrong, or where there is none: an empty catalogue
    would only deselect tests.
    """
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise BadInputError(
            "No image recipe (*.yaml) was found here; point at the folder 'images' of a checkout.",
            source=str(folder),
        )
    return Catalogue(folder=folder, entries={file.stem: read_entry(file) for file in files})


@dataclass(frozen=True, kw_only=True)
class _AnyFile:
    """What tells the kinds of entries apart; the kind's own shape refuses what is wrong then."""

    __pydantic_config__ = pydantic.ConfigDict(extra="ignore")

    kind: Literal["build", "url"] = "build"


def read_entry(file: Path) -> Recipe | Stock:
    """Read one entry; its name is the file's. Raises BadInputError."""
    if not NAME.fullmatch(file.stem):
        raise BadInputError(
            f"'{file.stem}' cannot name an image; use lower-case letters, digits, '-' and '.'.",
            source=str(file),
        )
    if read_data_file(file, _AnyFile).kind == "url":
        return _read_stock(file)
    recipe = Recipe(name=file.stem, folder=file.parent, file=read_data_file(file, RecipeFile))
    for key, kind, names, is_right in (
        ("trees", "folder", recipe.file.trees, Path.is_dir),
        ("scripts", "file", recipe.file.scripts, Path.is_file),
    ):
        for index, name in enumerate(names):
            if not is_right(recipe.folder / name):
                raise _missing_input(file, kind, name, (key, index))
    return recipe


def _read_stock(file: Path) -> Stock:
    stock = Stock(name=file.stem, folder=file.parent, file=read_data_file(file, StockFile))
    signature = stock.file.signature
    if signature is not None and not (stock.folder / signature.key).is_file():
        raise _missing_input(file, "file", signature.key, ("signature", "key"))
    list(stock.places())
    return stock


def _missing_input(
    file: Path, kind: str, name: str, location: tuple[str | int, ...]
) -> BadInputError:
    return BadInputError(
        f"There is no {kind} '{name}' in '{file.parent}'.",
        source=str(file),
        line=line_of(file, location),
        key=".".join(map(str, location)),
    )


def _files_below(folder: Path) -> Iterator[Path]:
    """Return files and links in a stable order; a checkout's caches are not inputs."""
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.parts or (path.is_dir() and not path.is_symlink()):
            continue
        yield path


def _fingerprint(path: Path) -> str:
    """Return what git would see of a file: kind, executable bit, content."""
    if path.is_symlink():
        return f"link {path.readlink()}"
    kind = "program" if is_program(path) else "file"
    return f"{kind} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def is_program(path: Path) -> bool:
    """Return whether the owner may execute `path`."""
    return bool(path.stat().st_mode & 0o100)
