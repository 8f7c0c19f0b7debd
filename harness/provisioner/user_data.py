"""Merges a provisioner's user-data with the user-data of the harness, by cloud-init's merging rules."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from harness.datafile import line_of, read_data_file
from harness.errors import BadInputError, listed
from harness.foreign_files import read_given
from harness.limits import DATA_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.provisioner import Provisioner

Document: TypeAlias = "Mapping[str, object]"

_HEADER = "#cloud-config"
_MERGER = re.compile(r"(?P<name>[a-z_][a-z0-9_]*)\((?P<options>[^()]*)\)")
#: The rule of `merge_how` that loses no values.
_JOINING = "dict(recurse_list)+list(append)"


def read_user_data(file: Path, name: str) -> dict[str, object]:
    """Read the user-data file `name`, whose path is relative to the provisioner's file.

    Raises BadInputError if the user-data cannot be read, or is not a `#cloud-config`.
    """
    path = file.parent / name
    try:
        text = read_given(path, limit=DATA_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadInputError(
            f"The user-data '{path}' cannot be read ({why}).",
            source=str(file),
            line=line_of(file, ("user_data",)),
            key="user_data",
        ) from error
    first = text.partition("\n")[0].rstrip()
    if first != _HEADER:
        raise BadInputError(
            f"The user-data '{path}' has to begin with '{_HEADER}', but begins with {first[:60]!r}; "
            "put a script into 'files' and call it by 'run'.",
            source=str(file),
            line=line_of(file, ("user_data",)),
            key="user_data",
        )
    return read_data_file(path, dict[str, object])


def merge_user_data(ours: Document, provisioner: Provisioner) -> dict[str, object]:
    """Merge the cloud-config `ours` with the provisioner's cloud-config, as cloud-init would.

    By default, cloud-init lets values of the later document replace values of the earlier document.
    A replaced value would break the machine or drop a setting of the provisioner, so this function
    refuses to replace values. A key may be in both documents only if the values are equal, or if
    `merge_how` of the later document joins mappings and lists without a loss. Raises BadInputError,
    which names the key, if a value would be lost.
    """
    theirs = dict(provisioner.user_data)
    rules = _Rules.of(theirs, provisioner)
    merged = rules.merge(ours, theirs, ())
    rules.refuse_repeated_paths(merged)
    return merged


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """The rules in a document's `merge_how` that lose no values."""

    source: str
    joins_mappings: bool = False
    lists: str | None = None
    """`append` or `prepend`, or None if lists are not joined."""

    @classmethod
    def of(cls, document: dict[str, object], provisioner: Provisioner) -> _Rules:
        """Remove `merge_how` from a document, and return the rules in `merge_how`."""
        source = provisioner.user_data_source or provisioner.where
        given = document.pop("merge_how", None) or document.pop("merge_type", None)
        if given is None:
            return cls(source=source)
        options = dict(_mergers(given, source))
        of_mappings = options.get("dict", frozenset())
        of_lists = options.get("list", frozenset())
        joins = "dict" in options and "replace" not in of_mappings
        method = next((each for each in ("append", "prepend") if each in of_lists), None)
        joins_lists = joins and bool(of_mappings & {"recurse_list", "recurse_array"})
        return cls(source=source, joins_mappings=joins, lists=method if joins_lists else None)

    def merge(self, ours: Document, theirs: Document, at: tuple[str, ...]) -> dict[str, object]:
        merged = dict(ours)
        for key, value in theirs.items():
            merged[key] = self._merge_value(ours[key], value, (*at, key)) if key in ours else value
        return merged

    def _merge_value(self, ours: object, theirs: object, at: tuple[str, ...]) -> object:
        if ours == theirs:
            return ours
        if self.joins_mappings and isinstance(ours, dict) and isinstance(theirs, dict):
            return self.merge(ours, theirs, at)
        if self.lists is not None and isinstance(ours, list) and isinstance(theirs, list):
            return [*ours, *theirs] if self.lists == "append" else [*theirs, *ours]
        is_list = isinstance(ours, list) and isinstance(theirs, list)
        raise BadInputError(
            "The harness sets this key too, and cloud-init would keep only one of the "
            + (
                f"lists; join them by 'merge_how: {_JOINING}'."
                if is_list
                else f"values, {theirs!r} and {ours!r}; remove the key here."
            ),
            source=self.source,
            line=_line_of(self.source, at),
            key=".".join(at),
        )

    def refuse_repeated_paths(self, merged: Document) -> None:
        """Refuse two files at one path, since cloud-init would overwrite the first file."""
        files = merged.get("write_files", [])
        paths = [
            posixpath.normpath(str(each.get("path")))
            for each in (files if isinstance(files, list) else [])
            if isinstance(each, dict)
        ]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            raise BadInputError(
                f"The provisioner or the harness also writes {listed(twice)}, so the file would be "
                "overwritten; remove the path from 'write_files' of this user-data.",
                source=self.source,
                line=_line_of(self.source, ("write_files",)),
                key="write_files",
            )


def _line_of(source: str, at: tuple[str, ...]) -> int | None:
    """Return the line number of a key, or None if the user-data does not come from a file."""
    file = Path(source)
    return line_of(file, at) if file.is_file() else None


def _mergers(given: object, source: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the names and options in `merge_how`, which may have any of three forms."""
    try:
        if isinstance(given, str):
            for word in given.lower().split("+"):
                found = _MERGER.fullmatch(word.strip())
                if found is None:
                    raise ValueError(word)  # noqa: TRY301 - one sentence for all forms
                yield found["name"], frozenset(re.findall(r"\w+", found["options"]))
            return
        if not isinstance(given, list):
            raise TypeError(given)  # noqa: TRY301 - one sentence for all forms
        for each in given:
            if isinstance(each, dict):
                yield str(each["name"]), frozenset(each["settings"])
            else:
                yield str(each[0]), frozenset(each[1:])
    except (ValueError, TypeError, LookupError) as error:
        raise BadInputError(
            f"cloud-init does not know the rule for merging {given!r}; write a rule such as '{_JOINING}'.",
            source=source,
            key="merge_how",
        ) from error
