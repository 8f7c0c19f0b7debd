"""The catalogue of images: recipes, read from YAML and validated."""

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
from harness.image.cloud.source import (
    FORBID,
    CloudImageFile,
    CloudImageRecipe,
    Input,
    LocalImage,
    NonEmpty,
)
from harness.settings import ACCEPT_OPTION, ACCEPT_VARIABLE, LicenceId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

NAME = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*")
"""An image's name is part of file names and test ids."""


class LicenceError(RequirementError):
    """An image contains software under a licence that was not accepted."""


def _expression(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"This is not a regular expression ({error})") from error
    return value


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A Debian package archive to install an image from."""

    __pydantic_config__ = FORBID

    url: Annotated[str, pydantic.Field(pattern=r"^(https?|file)://\S+$")]
    """A Debian package archive, by http, https or file."""
    suites: Annotated[tuple[NonEmpty, ...], pydantic.Field(min_length=1)]
    """Its suites."""
    components: tuple[NonEmpty, ...] = ("main",)
    """Its components."""

    def sources(self) -> tuple[str, ...]:
        """Return one line of sources.list for each suite."""
        return tuple(
            f"deb {self.url} {suite} {' '.join(self.components)}" for suite in self.suites
        )


@dataclass(frozen=True, kw_only=True)
class KernelChoice:
    """Which kernels an image has: the `newest` ones whose package name matches `pattern`.

    `pattern` is an extended regular expression for the whole name of a `linux-image-…` package.
    It is resolved against the archives when the image is built.
    """

    __pydantic_config__ = FORBID

    pattern: Annotated[
        str, pydantic.Field(pattern=r"^linux-image-\S+$"), AfterValidator(_expression)
    ]
    """An extended regular expression for whole names of `linux-image-…` packages."""
    newest: Annotated[int, pydantic.Field(ge=1, le=5)] = 2
    """How many of the newest ones are installed, with their headers; 1 to 5."""


@dataclass(frozen=True, kw_only=True)
class Licence:
    """A licence of software in an image that a person has to accept before the image is built.

    `id` is the name that `--accept-licence` takes, `text` the URL of the terms.
    """

    __pydantic_config__ = FORBID

    id: Annotated[LicenceId, pydantic.Field(pattern=r"^[a-z0-9]+([-.][a-z0-9]+)*$")]
    """The name by which a person accepts the licence."""
    text: Annotated[str, pydantic.Field(pattern=r"^https://\S+$")]
    """Address of its text, by https."""


@dataclass(frozen=True, kw_only=True)
class RecipeFile:
    """The content of a recipe; `Recipe` adds the file's name and folder."""

    __pydantic_config__ = FORBID

    schema: Literal[1]
    """Always 1."""
    kind: Literal["build"]
    """Always `build`."""
    description: str
    """One line for `harness image ls`."""
    release: NonEmpty
    """The release's name, as mmdebstrap takes it."""
    archives: Annotated[tuple[Archive, ...], pydantic.Field(min_length=1)]
    kernels: KernelChoice
    packages: Annotated[tuple[NonEmpty, ...], pydantic.Field(min_length=1)]
    """Packages to install, without those that they only recommend."""
    exclude: tuple[NonEmpty, ...] = ()
    """Paths that dpkg leaves out."""
    disk_gib: Annotated[int, pydantic.Field(ge=4, le=1024)] = 10
    """Size of the disk in GiB; the file takes only what is used."""
    trees: tuple[Input, ...] = ()
    """Folders below `images/` that are laid over the root file system, later ones over earlier."""
    scripts: tuple[Input, ...] = ()
    """Scripts below `images/` that run inside at the end, with the files beside them."""
    driver: DriverImage | None = None
    licence: Licence | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an image is built: its name, the file's content, and the folder of the paths in it."""

    name: str
    folder: Path
    file: RecipeFile

    def tree_files(self) -> dict[str, Path]:
        """Return the files of the trees by their path in the root file system; later trees win."""
        return {
            str(path.relative_to(self.folder / tree)): path
            for tree in self.file.trees
            for path in _files_below(self.folder / tree)
        }

    def script_files(self) -> dict[str, Path]:
        """Return the files in the scripts' folders, by path below the catalogue."""
        folders = dict.fromkeys(Path(script).parent for script in self.file.scripts)
        return {
            str(path.relative_to(self.folder)): path
            for folder in folders
            for path in _files_below(self.folder / folder)
        }

    def key(self, *, builder: str) -> str:
        """Return the digest of all inputs that decide what this recipe's image contains.

        `builder` names the builder and its version. The packages that the archives have at the
        time are not part of it: the manifest lists what was installed.
        """
        inputs = {
            kind: {name: _fingerprint(path) for name, path in sorted(files.items())}
            for kind, files in (("tree", self.tree_files()), ("script", self.script_files()))
        }
        # The licence does not change what the image contains.
        recipe = {key: value for key, value in asdict(self.file).items() if key != "licence"}
        canonical = json.dumps(
            {"builder": builder, "name": self.name, "recipe": recipe, "inputs": inputs},
            sort_keys=True,
        )
        return hashlib.sha256(canonical.encode()).hexdigest()

    def require_acceptance(self, accepted: Collection[LicenceId]) -> None:
        """Raise LicenceError where the image's licence is not accepted."""
        licence = self.file.licence
        if licence is not None and licence.id not in accepted:
            raise LicenceError(
                f"The image '{self.name}' contains software under the licence '{licence.id}', which "
                f"was not accepted. Read it at {licence.text}; to accept it, pass "
                f"'{ACCEPT_OPTION}={licence.id}', or set {ACCEPT_VARIABLE}={licence.id} in the "
                "environment."
            )


Source: TypeAlias = Recipe | CloudImageRecipe | LocalImage
"""Where an image comes from: a build recipe, a publisher's server, a local file."""


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The recipes of images, by name."""

    folder: Path
    entries: Mapping[str, Recipe | CloudImageRecipe]

    def get(self, name: str) -> Source:
        """Return the source of the image `name`, which may be the path of a file.

        A path has a slash, or ends with .qcow2 or .img. Raises BadInputError, which lists the
        known names.
        """
        if "/" in name or name.endswith((".qcow2", ".img")):
            return LocalImage(path=Path(name))
        try:
            return self.entries[name]
        except KeyError:
            raise BadInputError(
                f"There is no image '{name}' in the catalogue; known are {listed(self.entries)}.",
                source=str(self.folder),
            ) from None


def load_catalogue(folder: Path) -> Catalogue:
    """Read every `*.yaml` of `folder`.

    Raises BadInputError where a recipe is invalid, or where there is none: with an empty
    catalogue, tests would be deselected without an error.
    """
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise BadInputError(
            "There is no image recipe (*.yaml) in this folder; give the folder 'images' of a checkout.",
            source=str(folder),
        )
    return Catalogue(folder=folder, entries={file.stem: read_recipe(file) for file in files})


@dataclass(frozen=True, kw_only=True)
class _RecipeKindFile:
    """The key that selects the class of a recipe; that class then validates the whole file."""

    __pydantic_config__ = pydantic.ConfigDict(extra="ignore")

    kind: Literal["build", "url"] = "build"


def read_recipe(file: Path) -> Recipe | CloudImageRecipe:
    """Read a recipe, whose name is the file's. Raises BadInputError."""
    if not NAME.fullmatch(file.stem):
        raise BadInputError(
            f"'{file.stem}' is not an image name; use lower-case letters, digits, '-' and '.'.",
            source=str(file),
        )
    if read_data_file(file, _RecipeKindFile).kind == "url":
        return _read_cloud_image(file)
    recipe = Recipe(name=file.stem, folder=file.parent, file=read_data_file(file, RecipeFile))
    for key, kind, names, is_right in (
        ("trees", "folder", recipe.file.trees, Path.is_dir),
        ("scripts", "file", recipe.file.scripts, Path.is_file),
    ):
        for index, name in enumerate(names):
            if not is_right(recipe.folder / name):
                raise _missing_input(file, kind, name, (key, index))
    return recipe


def _read_cloud_image(file: Path) -> CloudImageRecipe:
    recipe = CloudImageRecipe(
        name=file.stem, folder=file.parent, file=read_data_file(file, CloudImageFile)
    )
    signature = recipe.file.signature
    if signature is not None and not (recipe.folder / signature.key).is_file():
        raise _missing_input(file, "file", signature.key, ("signature", "key"))
    list(recipe.locations())
    return recipe


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
    """Yield files and links in a stable order, without Python's byte code."""
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.parts or (path.is_dir() and not path.is_symlink()):
            continue
        yield path


def _fingerprint(path: Path) -> str:
    """Return what git records of a file: its type, executable bit and content."""
    if path.is_symlink():
        return f"link {path.readlink()}"
    kind = "program" if is_program(path) else "file"
    return f"{kind} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def is_program(path: Path) -> bool:
    """Return whether the owner may execute `path`."""
    return bool(path.stat().st_mode & 0o100)
