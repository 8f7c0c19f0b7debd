"""The catalogue: recipes read from YAML, refused where a person slipped."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
import yaml

from harness.errors import BadInputError
from harness.image import DriverImage

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*")
"""An image's name is part of file names and test ids."""

FORBID: pydantic.ConfigDict = pydantic.ConfigDict(extra="forbid", strict=False)

NonEmpty = Annotated[str, pydantic.Field(min_length=1)]


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

    pattern: Annotated[str, pydantic.Field(pattern=r"^linux-image-\S+$")]
    newest: Annotated[int, pydantic.Field(ge=1, le=5)] = 2


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
    trees: tuple[NonEmpty, ...] = ()
    scripts: tuple[NonEmpty, ...] = ()
    driver: DriverImage | None = None


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
        told = json.dumps(
            {"builder": builder, "name": self.name, "recipe": asdict(self.file), "inputs": inputs},
            sort_keys=True,
        )
        return hashlib.sha256(told.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The images that can be had, by name."""

    folder: Path
    recipes: Mapping[str, Recipe]

    def get(self, name: str) -> Recipe:
        """Return the recipe called `name`; raises BadInputError that lists the known ones."""
        try:
            return self.recipes[name]
        except KeyError:
            raise BadInputError(
                f"There is no image called '{name}'; known are {_listed(self.recipes)}.",
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
    return Catalogue(folder=folder, recipes={file.stem: read_recipe(file) for file in files})


def read_recipe(file: Path) -> Recipe:
    """Read one recipe; its name is the file's. Raises BadInputError."""
    if not NAME.fullmatch(file.stem):
        raise BadInputError(
            f"'{file.stem}' cannot name an image; use lower-case letters, digits, '-' and '.'.",
            source=str(file),
        )
    try:
        text = file.read_text(encoding="utf-8")
        # The composed tree keeps the lines that the loaded data has lost.
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"The recipe cannot be read: {error}.", source=str(file)) from error
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise BadInputError(
            f"This is not YAML: {error.problem}.", source=str(file), line=line
        ) from error
    if not isinstance(data, dict) or tree is None:
        raise BadInputError("A recipe is a mapping of keys to values.", source=str(file))
    try:
        content = pydantic.TypeAdapter(RecipeFile).validate_python(data)
    except pydantic.ValidationError as error:
        raise _as_bad_input(error, file, tree) from error
    recipe = Recipe(name=file.stem, folder=file.parent, file=content)
    _refuse_missing_inputs(recipe, file, tree)
    _refuse_bad_pattern(recipe, file, tree)
    return recipe


def _refuse_missing_inputs(recipe: Recipe, file: Path, tree: yaml.Node) -> None:
    for key, names, is_right in (
        ("trees", recipe.file.trees, Path.is_dir),
        ("scripts", recipe.file.scripts, Path.is_file),
    ):
        for index, name in enumerate(names):
            inside = not Path(name).is_absolute() and ".." not in Path(name).parts
            if not inside or not is_right(recipe.folder / name):
                raise BadInputError(
                    f"'{name}' is not a {'folder' if key == 'trees' else 'file'} below "
                    f"'{recipe.folder}'.",
                    source=str(file),
                    line=_line_of(tree, (key, index)),
                    key=f"{key}.{index}",
                )


def _refuse_bad_pattern(recipe: Recipe, file: Path, tree: yaml.Node) -> None:
    try:
        re.compile(recipe.file.kernels.pattern)
    except re.error as error:
        raise BadInputError(
            f"'{recipe.file.kernels.pattern}' is not a regular expression: {error}.",
            source=str(file),
            line=_line_of(tree, ("kernels", "pattern")),
            key="kernels.pattern",
        ) from error


def _as_bad_input(error: pydantic.ValidationError, file: Path, tree: yaml.Node) -> BadInputError:
    """Tell of the first slip; the rest often follows from it."""
    slips = error.errors(include_url=False)
    # A misspelt key yields two slips, 'missing' and 'forbidden': the second one tells more.
    slip = min(slips, key=lambda one: one["type"] != "unexpected_keyword_argument")
    location = slip["loc"]
    known = _known_keys(location[:-1])
    match slip["type"]:
        case "unexpected_keyword_argument":
            message = f"This key is not known here; known are {_listed(known)}."
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            message = f"This key is missing; known here are {_listed(known)}."
        case _:
            message = f"{slip['msg']}, but the recipe says {slip['input']!r}."
    return BadInputError(
        message,
        source=str(file),
        line=_line_of(tree, location),
        key=".".join(str(part) for part in location),
    )


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    owners: dict[str, type] = {
        "archives": Archive,
        "kernels": KernelChoice,
        "driver": DriverImage,
    }
    owner: type = owners.get(str(location[0]), RecipeFile) if location else RecipeFile
    return [field.name for field in fields(owner)]


def _line_of(tree: yaml.Node, location: tuple[int | str, ...]) -> int:
    """Return the line of the deepest node on the way to `location` that the file has."""
    node = tree
    line = tree.start_mark.line
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(part)]
            if not found:
                break
            key_node, node = found[0]
            line = key_node.start_mark.line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part >= len(node.value):
                break
            node = node.value[part]
            line = node.start_mark.line
        else:
            break
    return line + 1


def _listed(names: Mapping[str, object] | list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


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
