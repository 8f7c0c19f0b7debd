"""Reads YAML files strictly; errors name the file, the line, the key and the known keys."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import pydantic
import pydantic_core
import yaml
from typing_extensions import override
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from harness.errors import BadInputError, listed
from harness.foreign_files import read_given
from harness.limits import DATA_DIGITS, DATA_FILE, DATA_LEVELS, LimitError
from harness.visible_text import shortened, without_password

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")
Location: TypeAlias = "tuple[int | str, ...]"

_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})

#: The size limit of one quoted value or key in a message.
_SHOWN_BYTES = 1000

#: pydantic reports two errors for a misspelt key: an unknown key and a missing key. The message shows
#: the unknown key.
_UNKNOWN_KEY = frozenset({"unexpected_keyword_argument", "extra_forbidden"})
_MISSING_KEY = frozenset({"missing", "missing_argument", "missing_keyword_only_argument"})


@dataclass(frozen=True, kw_only=True)
class Place:
    """The file and line in which a value is written; `path` is the value's location in that file."""

    file: Path
    line: int
    path: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Document:
    """The content of a data file, and the place of each value in the file.

    A value's location is the sequence of the keys and indexes, as text, that lead to the value.
    """

    file: Path
    data: Mapping[str, object]
    places: Mapping[tuple[str, ...], Place]

    def place(self, location: Location) -> Place:
        """Return the place of the value at `location`; if the value is missing, of its nearest parent."""
        path = tuple(map(str, location))
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def to_shape(self, shape: type[T]) -> T:
        """Return the document as an instance of `shape`, any type that pydantic can validate.

        Raises BadInputError.
        """
        validator = _validator(cast("Hashable", shape))
        try:
            return cast("T", validator.validate_python(self.data))
        except pydantic.ValidationError as error:
            raise _as_bad_input(error, self, _schema(cast("Hashable", shape))) from error

    def refusal(self, message: str, location: Location) -> BadInputError:
        """Return a BadInputError about the value at `location`, with the file, the line and the key."""
        place = self.place(location)
        # Use only the lengths of the two paths: an item's index in a merged list differs from its
        # index in the file.
        missing = tuple(map(str, location[len(place.path) :]))
        key = ".".join(part for part in (*place.path, *missing) if part != "[key]")
        key = shortened(key, _SHOWN_BYTES)
        return BadInputError(message, source=str(place.file), line=place.line, key=key or None)


def read_data_file(file: Path, shape: type[T]) -> T:
    """Return the content of `file` as an instance of `shape`; raises BadInputError."""
    return read_document(file).to_shape(shape)


def read_document(file: Path) -> Document:
    """Read the keys of `file`.

    Duplicate keys are refused, since PyYAML would silently keep the last value. Aliases are
    refused too, because a small file with aliases can expand without bound.

    Raises BadInputError.
    """
    try:
        text = read_given(file, limit=DATA_FILE).decode()
    except LimitError as error:
        raise BadInputError(str(error).removeprefix(f"'{file}': "), source=str(file)) from error
    except (OSError, ValueError) as error:
        raise BadInputError(f"The file cannot be read: {error}.", source=str(file)) from error
    tree, data = _parse(text, file)
    places: dict[tuple[str, ...], Place] = {}
    _find_places(tree, tree.start_mark.line, (), file, places)
    return Document(file=file, data=cast("Mapping[str, object]", data), places=places)


def extended(base: Document, own: Document, *, replaced: Collection[str] = ()) -> Document:
    """Return `own`, with the values of `base` for the keys that `own` lacks.

    Mappings are merged key by key. A list in `own` is appended to the list with the same key in
    `base`, unless the list's top-level key is in `replaced`. Any other value in `own` replaces the
    value in `base`.
    """
    places = dict(base.places)
    offsets: dict[tuple[str, ...], int] = {}

    def merged(below: object, above: object, path: tuple[str, ...]) -> object:
        if isinstance(below, dict) and isinstance(above, dict):
            both = {
                key: merged(below[key], value, (*path, str(key))) if key in below else value
                for key, value in above.items()
            }
            return {**below, **both}
        if isinstance(below, list) and isinstance(above, list) and path[0] not in replaced:
            offsets[path] = len(below)
            return [*below, *above]
        for old in [old for old in places if old[: len(path)] == path]:
            del places[old]
        return above

    data = merged(base.data, own.data, ())
    for path, place in own.places.items():
        moved = list(path)
        for depth in range(1, len(path)):
            moved[depth] = (
                str(int(path[depth]) + offsets[path[:depth]])
                if path[:depth] in offsets
                else path[depth]
            )
        places[tuple(moved)] = place
    return Document(file=own.file, data=cast("Mapping[str, object]", data), places=places)


@functools.cache
def _adapter(shape: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(shape)


@functools.cache
def _validator(shape: Any) -> pydantic_core.SchemaValidator:
    return pydantic_core.SchemaValidator(_exact(_adapter(shape).core_schema))


def _exact(schema: Any) -> Any:
    """Return a core schema of pydantic that accepts only numbers as numbers, and booleans as booleans.

    pydantic itself would read `yes` and `"1"` as the number 1. The strict mode of pydantic would
    refuse each list for a tuple, and each text for a member of an enum.
    """
    if isinstance(schema, dict):
        exact = {key: _exact(value) for key, value in schema.items()}
        if schema.get("type") in ("int", "float", "bool"):
            exact["strict"] = True
        if schema.get("type") == "float":
            exact["allow_inf_nan"] = False
        if schema.get("type") == "literal":
            refuse = functools.partial(_refuse_equal_value, schema["expected"])
            return pydantic_core.core_schema.no_info_before_validator_function(refuse, exact)
        return exact
    if isinstance(schema, (list, tuple)):
        return type(schema)(map(_exact, schema))
    return schema


def _refuse_equal_value(expected: Sequence[object], value: object) -> object:
    """Return `value`; raise an error if it equals an expected value of another type, as `True` equals 1."""
    if any(each == value and type(each) is not type(value) for each in expected):
        raise pydantic_core.PydanticKnownError(
            "literal_error", {"expected": " or ".join(map(repr, expected))}
        )
    return value


@functools.cache
def _schema(shape: Any) -> Mapping[str, object]:
    return _adapter(shape).json_schema()


def line_of(file: Path, location: Location) -> int:
    """Return the line of the value at `location` in `file`, for errors found after the file was read."""
    return read_document(file).place(location).line


#: The exceptions that PyYAML raises for wrong YAML, besides `yaml.YAMLError`.
_BROKEN = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


class _Bounded(Composer, SafeConstructor):
    """Reads YAML within the limits on nesting, on the digits of a number, and on merged keys."""

    _level = 0
    _keys = 0

    @functools.cached_property
    def _most_levels(self) -> int:
        return DATA_LEVELS.value

    @functools.cached_property
    def _most_digits(self) -> int:
        return DATA_DIGITS.value

    @override
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._level += 1
        if self._level > self._most_levels:
            raise DATA_LEVELS.error("YAML")
        node = super().compose_node(parent, index)
        self._level -= 1
        if (
            isinstance(node, yaml.ScalarNode)
            and node.tag in _NUMBERS
            and len(node.value) > self._most_digits
        ):
            raise DATA_DIGITS.error(f"YAML in line {node.start_mark.line + 1}")
        return node

    @override
    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        # Without aliases, a text has fewer keys than bytes.
        self._keys += len(node.value)
        if self._keys > DATA_FILE.bytes:
            raise DATA_FILE.error("YAML with its merged keys")


if yaml.__with_libyaml__:
    from yaml._yaml import CParser

    class _Loader(_Bounded, CParser, SafeConstructor, Resolver):
        """Parses YAML with libyaml, nine times as fast as in Python, but composes nodes in Python.

        For deeply nested YAML, libyaml's composer recurses until the process crashes, but the
        composer in Python raises RecursionError.
        """

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            Composer.__init__(self)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

else:

    class _Loader(_Bounded, yaml.SafeLoader):  # type: ignore[no-redef]
        """Parses YAML in Python, for a PyYAML that was built without libyaml."""


def parse_yaml(text: str) -> Any:
    """Parse YAML from a guest; aliases and all other features of YAML are allowed.

    Raises ValueError for text that is not YAML, and for text beyond the limits of a data file.
    """
    if len(text) > DATA_FILE.bytes:
        raise ValueError(str(DATA_FILE.error("YAML")))
    try:
        loader = _Loader(text)
        tree = loader.get_single_node()
        return None if tree is None else loader.construct_document(tree)
    except (yaml.YAMLError, LimitError, *_BROKEN) as error:
        raise ValueError(f"this is not YAML: {error}") from error


def _parse(text: str, file: Path) -> tuple[yaml.Node, object]:
    try:
        loader = _Loader(text)
        # The composed tree has the line numbers, which the loaded data lacks.
        tree = loader.get_single_node()
        if not isinstance(tree, yaml.MappingNode):
            raise BadInputError("A mapping of keys to values is expected.", source=str(file))
        _refuse_surprises(tree, file, set())
        return tree, loader.construct_document(tree)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise BadInputError(
            f"This is not YAML: {error.problem}.", source=str(file), line=line
        ) from error
    except LimitError as error:
        raise BadInputError(str(error), source=str(file)) from error
    except (yaml.YAMLError, *_BROKEN) as error:
        # Possible causes are control characters, impossible dates, or thousands of nested brackets.
        raise BadInputError(
            f"This is not YAML: {str(error) or type(error).__name__}.", source=str(file)
        ) from error


def _refuse_surprises(node: yaml.Node, file: Path, seen: set[int]) -> None:
    if id(node) in seen:
        raise BadInputError(
            "An alias ('*name') repeats this value; write the value out instead.",
            source=str(file),
            line=node.start_mark.line + 1,
        )
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode) and "\0" in node.value:
        raise BadInputError(
            "A text contains the character NUL, which no path and no argument can have.",
            source=str(file),
            line=node.start_mark.line + 1,
        )
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_surprises(item, file, seen)
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            _refuse_surprises(key, file, seen)
            name = _scalar(key)
            if name in keys:
                raise BadInputError(
                    "This key is a duplicate; keep one of the two.",
                    source=str(file),
                    line=key.start_mark.line + 1,
                    key=shortened(name, _SHOWN_BYTES),
                )
            keys.add(name)
            _refuse_surprises(value, file, seen)


def _as_bad_input(
    error: pydantic.ValidationError, document: Document, schema: Mapping[str, object]
) -> BadInputError:
    """Return pydantic's error about an unknown key, or else its first error, as a BadInputError."""
    problem = min(error.errors(include_url=False), key=lambda one: one["type"] not in _UNKNOWN_KEY)
    location = problem["loc"]
    known = listed(_known_keys(schema, location[:-1]))
    if problem["type"] in _UNKNOWN_KEY:
        message = f"This key is not known here; the known keys are {known}."
    elif problem["type"] in _MISSING_KEY:
        message = f"This key is missing; the known keys are {known}."
    elif location == ("schema",) and problem["type"] == "literal_error":
        message = (
            f"The file has the format {_quoted(problem['input'])}, but this version of the harness reads "
            f"{problem['ctx']['expected']}; update the harness, or write the file in the format "
            f"{problem['ctx']['expected']}."
        )
    else:
        expected = problem["msg"].removeprefix("Value error, ").rstrip(".")
        message = f"{expected}, but the file has {_quoted(problem['input'])}."
    return document.refusal(message, location)


def _quoted(value: object) -> str:
    return shortened(without_password(repr(value)), _SHOWN_BYTES)


def _known_keys(schema: Mapping[str, object], location: Location) -> list[str]:
    """Return the keys that the schema has at `location`."""
    node = _resolved(schema, schema)
    for part in location:
        properties = node.get("properties")
        if isinstance(properties, dict) and part in properties:
            step = properties[part]
        else:
            step = node.get("items") or node.get("additionalProperties")
        if not isinstance(step, dict):
            return []
        node = _resolved(step, schema)
    properties = node.get("properties")
    return list(properties) if isinstance(properties, dict) else []


def _resolved(node: Mapping[str, object], schema: Mapping[str, object]) -> Mapping[str, object]:
    """Return the schema to which `node` refers; for an optional value, the schema that is not null."""
    options = node.get("anyOf")
    if isinstance(options, list):
        node = next((option for option in options if option.get("type") != "null"), node)
    reference = node.get("$ref")
    definitions = schema.get("$defs")
    if isinstance(reference, str) and isinstance(definitions, dict):
        found = definitions.get(reference.rpartition("/")[2])
        return found if isinstance(found, dict) else node
    return node


def _find_places(
    node: yaml.Node,
    line: int,
    path: tuple[str, ...],
    file: Path,
    places: dict[tuple[str, ...], Place],
) -> None:
    """Add the places of `node` and its values to `places`; the line of a value is the line of its key."""
    places[path] = Place(file=file, line=line + 1, path=path)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            # Keys are compared after parsing: the key 0x1 in the file is the key 1 in the shape.
            _find_places(value, key.start_mark.line, (*path, _scalar(key)), file, places)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _find_places(item, item.start_mark.line, (*path, str(index)), file, places)


def _scalar(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:int":
        return str(yaml.SafeLoader("").construct_yaml_int(node))
    return str(node.value)
