"""The catalogue of images, whose recipes are read from YAML files and validated.

The module is long because it contains a class, with descriptions of all keys, for each part of a
recipe.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import pydantic
from pydantic import AfterValidator

from harness.debian_packages import source_line
from harness.entry_points import Group, Plugin, PluginError, plugins
from harness.errors import BadInputError, RequirementError, listed
from harness.image import DriverImage  # noqa: TC001 - pydantic evaluates the annotations
from harness.image.cloud.source import (
    FORBID,
    CloudImageFile,
    CloudImageRecipe,
    Input,
    LocalImage,
    LocalImageFile,
    NonEmpty,
    is_url,
    recipe_of_url,
)
from harness.image.inheritance import read_merged
from harness.settings import ACCEPT_OPTION, ACCEPT_VARIABLE, SHIPPED_IMAGES, LicenceId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from harness.datafile import Document

NAME = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*")
"""The form of an image's name. File names and test ids contain the name."""

_SNAPSHOT = re.compile(r"/\d{8}T\d{6}Z(/|$)")
"""The time in the URL of a snapshot of snapshot.debian.org or snapshot.ubuntu.com."""

_FILES = (".qcow2", ".raw", ".img")


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
    """A Debian package archive, by http, https or file; a time such as `/20260801T000000Z/` in the
    URL marks a snapshot, whose lists of packages may have expired."""
    suites: Annotated[tuple[NonEmpty, ...], pydantic.Field(min_length=1)]
    """The suites of the archive."""
    components: tuple[NonEmpty, ...] = ("main",)
    """The components of the archive."""

    def sources(self) -> tuple[str, ...]:
        """Return one line of sources.list for each suite."""
        is_snapshot = _SNAPSHOT.search(self.url) is not None
        return tuple(
            source_line(self.url, suite, self.components, is_snapshot=is_snapshot)
            for suite in self.suites
        )


@dataclass(frozen=True, kw_only=True)
class KernelChoice:
    """The kernels to install; the build chooses their packages from the archives."""

    __pydantic_config__ = FORBID

    pattern: Annotated[
        str, pydantic.Field(pattern=r"^linux-image-\S+$"), AfterValidator(_expression)
    ]
    """An extended regular expression for whole names of `linux-image-…` packages."""
    newest: Annotated[int, pydantic.Field(ge=1, le=5)] = 2
    """The number of newest kernels to install, with their headers: 1 to 5."""


@dataclass(frozen=True, kw_only=True)
class Licence:
    """A licence that a user has to accept before the harness builds an image with such software."""

    __pydantic_config__ = FORBID

    id: Annotated[LicenceId, pydantic.Field(pattern=r"^[a-z0-9]+([-.][a-z0-9]+)*$")]
    """The licence's name for `--accept-licence`."""
    text: Annotated[str, pydantic.Field(pattern=r"^https://\S+$")]
    """The https URL of the licence's text."""


@dataclass(frozen=True, kw_only=True)
class RecipeFile:
    """The content of a recipe, merged with the recipes that it extends."""

    __pydantic_config__ = FORBID

    schema: Literal[1]
    """Always 1."""
    kind: Literal["build"]
    """Always `build`."""
    description: str
    """One line about the image, which `harness image ls` prints."""
    extends: NonEmpty | None = None
    """Another recipe, by name or by a path relative to this file; see *Extending a recipe*."""
    replace: tuple[NonEmpty, ...] = ()
    """Names of lists that replace the lists of the extended recipe; other lists are appended."""
    release: NonEmpty
    """The release's name, as mmdebstrap expects it."""
    archives: Annotated[tuple[Archive, ...], pydantic.Field(min_length=1)]
    kernels: KernelChoice
    packages: Annotated[tuple[NonEmpty, ...], pydantic.Field(min_length=1)]
    """Packages to install; packages that these packages only recommend are not installed."""
    exclude: tuple[NonEmpty, ...] = ()
    """Paths that dpkg does not install."""
    disk_gib: Annotated[int, pydantic.Field(ge=4, le=1024)] = 10
    """Size of the disk in GiB; the file needs only the used space."""
    trees: tuple[Input, ...] = ()
    """Folders beside the recipe that are copied over the root file system, in this order."""
    scripts: tuple[Input, ...] = ()
    """Scripts below the recipe's folder that run in the image at the end of the build; a script can
    use the files beside it."""
    driver: DriverImage | None = None
    licence: Licence | None = None


@dataclass(frozen=True, kw_only=True)
class RecipeInput:
    """A tree or script. `name` is its path relative to the folder of the recipe that lists it."""

    folder: Path
    name: str

    @property
    def path(self) -> Path:
        return self.folder / self.name


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe to build an image: the image's name, the recipe's folder and content, and its inputs."""

    name: str
    folder: Path
    file: RecipeFile
    trees: tuple[RecipeInput, ...]
    scripts: tuple[RecipeInput, ...]

    def tree_files(self) -> dict[str, Path]:
        """Return the trees' files by path in the root file system.

        If several trees have a file, the last of these trees is used.
        """
        return {
            str(path.relative_to(tree.path)): path
            for tree in self.trees
            for path in _files_below(tree.path)
        }

    def script_files(self) -> dict[str, Path]:
        """Return the files in the scripts' folders, by their path below the recipe's folder."""
        return {
            str(path.relative_to(script.folder)): path
            for script in self.scripts
            for path in _files_below(script.path.parent)
        }

    def key(self, *, builder: str) -> str:
        """Return the digest of all inputs that determine the content of this recipe's image.

        `builder` names the builder and its version. The digest does not depend on which packages
        the archives have at build time. The manifest lists the installed packages.
        """
        inputs = {
            kind: {name: _fingerprint(path) for name, path in sorted(files.items())}
            for kind, files in (("tree", self.tree_files()), ("script", self.script_files()))
        }
        # These keys do not change the content of the image.
        without = {"licence", "extends", "replace"}
        recipe = {key: value for key, value in asdict(self.file).items() if key not in without}
        canonical = json.dumps(
            {"builder": builder, "name": self.name, "recipe": recipe, "inputs": inputs},
            sort_keys=True,
        )
        return hashlib.sha256(canonical.encode()).hexdigest()

    def require_acceptance(self, accepted: Collection[LicenceId]) -> None:
        """Raise LicenceError if the image's licence is not accepted."""
        licence = self.file.licence
        if licence is not None and licence.id not in accepted:
            raise LicenceError(
                f"The image '{self.name}' contains software under the licence '{licence.id}', which "
                f"was not accepted. Read the licence at {licence.text}; to accept it, pass "
                f"'{ACCEPT_OPTION}={licence.id}', or set {ACCEPT_VARIABLE}={licence.id} in the "
                "environment."
            )


Source: TypeAlias = Recipe | CloudImageRecipe | LocalImage
"""Where an image comes from: a recipe to build it, a publisher's server, or a local file."""


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The recipes of images by name. A recipe is read when it is requested."""

    folders: tuple[Path, ...]
    files: Mapping[str, Path]
    duplicates: Mapping[str, Path]
    errors: tuple[PluginError, ...] = ()
    """The errors of installed packages whose recipes can't be used."""

    @property
    def entries(self) -> Mapping[str, Source]:
        """Return all recipes by name; raises BadInputError if a recipe is invalid."""
        return {name: self.read(name) for name in self.files}

    def read(self, name: str) -> Source:
        """Return the recipe `name`; raises BadInputError if the recipe is invalid or unknown."""
        if name not in self.files:
            broken = "".join(f" {error}" for error in self.errors)
            raise BadInputError(
                f"There is no image '{name}' in the catalogue, only {listed(self.files)}.{broken}",
                source=", ".join(map(str, self.folders)),
            )
        if name in self.duplicates:
            raise BadInputError(
                f"'{self.files[name]}' is also a recipe for the image '{name}'; rename one of the two files.",
                source=str(self.duplicates[name]),
            )
        return read_recipe(self.files[name], self.files)

    def get(self, name: str) -> Source:
        """Return the source of an image. `name` is a recipe's name, a file's path, or a URL.

        A path has a slash, or ends with .qcow2, .raw or .img. Raises BadInputError, which lists the
        known names.
        """
        if is_url(name):
            return recipe_of_url(name)
        if "/" in name or name.endswith(_FILES):
            return LocalImage.at(Path(name))
        return self.read(name)


def load_catalogue(*folders: Path) -> Catalogue:
    """Find the recipes that come with the harness, and every `*.yaml` in `folders`.

    The recipes of installed packages (`Group.IMAGES`) are included. If a package can't be used, the
    catalogue lists the reason in `errors`. Raises BadInputError if a folder has no recipe.
    An invalid recipe is reported when it is read.
    """
    files: dict[str, Path] = {}
    duplicates: dict[str, Path] = {}
    added, errors = _plugin_folders()
    every = (SHIPPED_IMAGES, *added, *folders)
    for folder in dict.fromkeys(each.resolve() for each in every):
        found = sorted(folder.glob("*.yaml"))
        if not found:
            raise BadInputError(
                "There is no image recipe (*.yaml) in this folder; give a folder with recipes.",
                source=str(folder),
            )
        for file in found:
            (duplicates if file.stem in files else files)[file.stem] = file
    return Catalogue(folders=every, files=files, duplicates=duplicates, errors=errors)


def _plugin_folders() -> tuple[tuple[Path, ...], tuple[PluginError, ...]]:
    """Return the folders of recipes in installed packages, and the errors of unusable packages."""
    folders: list[Path] = []
    errors: list[PluginError] = []
    for plugin in plugins(Group.IMAGES):
        found = _plugin_folder(plugin)
        if isinstance(found, PluginError):
            errors.append(found)
        else:
            folders.append(found)
    return tuple(folders), tuple(errors)


def _plugin_folder(plugin: Plugin) -> Path | PluginError:
    try:
        folder = plugin.folder()
    except PluginError as error:
        return error
    if not any(folder.glob("*.yaml")):
        return plugin.error(f"there is no image recipe (*.yaml) in the folder '{folder}'")
    return folder


def read_recipe(file: Path, recipes: Mapping[str, Path] | None = None) -> Source:
    """Read a recipe. The file's name is the recipe's name.

    The recipe may extend one of `recipes`, by default the recipes in its folder. Raises
    BadInputError if the recipe is invalid.
    """
    if not NAME.fullmatch(file.stem):
        raise BadInputError(
            f"'{file.stem}' is not an image name; use lower-case letters, digits, '-' and '.'.",
            source=str(file),
        )
    if recipes is None:
        recipes = {one.stem: one for one in sorted(file.parent.glob("*.yaml"))}
    document = read_merged(file, recipes)
    kind = document.data.get("kind")
    if kind == "url":
        return _read_cloud_image(file, document)
    if kind == "file":
        local = document.to_shape(LocalImageFile)
        path = document.place(("path",)).file.parent / local.path
        return LocalImage(name=file.stem, path=path, file=local)
    content = document.to_shape(RecipeFile)
    recipe = Recipe(
        name=file.stem,
        folder=file.parent,
        file=content,
        trees=_inputs(document, "trees", content.trees, "folder"),
        scripts=_inputs(document, "scripts", content.scripts, "file"),
    )
    _refuse_clashes(document, recipe)
    return recipe


def _inputs(
    document: Document, key: str, names: tuple[str, ...], kind: Literal["file", "folder"]
) -> tuple[RecipeInput, ...]:
    """Return the trees or scripts in a list. A path is relative to the recipe that lists it."""
    found = []
    for index, name in enumerate(names):
        one = RecipeInput(folder=document.place((key, index)).file.parent, name=name)
        if not (one.path.is_dir() if kind == "folder" else one.path.is_file()):
            raise document.refusal(f"There is no {kind} '{name}' in '{one.folder}'.", (key, index))
        found.append(one)
    return tuple(found)


def _refuse_clashes(document: Document, recipe: Recipe) -> None:
    """Raise BadInputError if two files would have the same path in the image during the build."""
    if len({script.folder for script in recipe.scripts}) < 2:
        return
    files = recipe.script_files()
    for index, script in enumerate(recipe.scripts):
        for path in _files_below(script.path.parent):
            other = files[str(path.relative_to(script.folder))]
            if other != path:
                raise document.refusal(
                    f"'{path}' and '{other}' have the same path below the folders of their "
                    "recipes; rename one of them.",
                    ("scripts", index),
                )


def _read_cloud_image(file: Path, document: Document) -> CloudImageRecipe:
    content = document.to_shape(CloudImageFile)
    key_file = None
    if content.sums is None and (content.digest is None or content.signature is not None):
        raise document.refusal(
            "This key, which names the publisher's list of digests, is missing. Without the list, the "
            "recipe must have 'digest' to verify the file, and can't have 'signature', which is the "
            "signature of the list.",
            ("sums",),
        )
    if content.signature is not None:
        folder = document.place(("signature", "key")).file.parent
        key_file = folder / content.signature.key
        if not key_file.is_file():
            raise document.refusal(
                f"There is no file '{content.signature.key}' in '{folder}'.", ("signature", "key")
            )
    recipe = CloudImageRecipe(name=file.stem, folder=file.parent, file=content, key_file=key_file)
    list(recipe.locations())
    return recipe


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files and links below a folder in a stable order, except Python's byte code."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name == "__pycache__":
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(Path(entry))
            elif entry.is_symlink() or entry.is_file():
                yield Path(entry)
            else:
                raise BadInputError(
                    "This is not a file, folder or link, so an image can't contain it; remove it.",
                    source=entry.path,
                )


def _fingerprint(path: Path) -> str:
    """Return the facts that git records about a file: its type, executable bit and content."""
    if path.is_symlink():
        return f"link {path.readlink()}"
    kind = "program" if is_program(path) else "file"
    return f"{kind} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def is_program(path: Path) -> bool:
    """Return whether the owner may execute `path`."""
    return bool(path.stat().st_mode & 0o100)
