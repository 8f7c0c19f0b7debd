"""Reads the structures and numbers of a C file from the debug information of its object file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from harness.errors import HarnessError, RequirementError

if TYPE_CHECKING:
    from pathlib import Path

    from elftools.dwarf.die import DIE

#: A field's name, its offset, the size of one element, the type and the number of elements.
FieldFacts: TypeAlias = "tuple[str, int, int, str, int]"

_RECORDS: Final = ("DW_TAG_structure_type", "DW_TAG_union_type")
_ALIASES: Final = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")
_FLOAT: Final = 4
_SIGNED: Final = (5, 6)


@dataclass(frozen=True, kw_only=True)
class DebugInfo:
    """The named types and numbers of one compilation unit.

    A nested type without a name is called `PARENT.field`. The members of a nested type that is not a
    field become members of its parent. Bit fields are left out.
    """

    structs: dict[str, tuple[int, list[FieldFacts]]] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)


def read_debug_info(file: Path) -> DebugInfo:
    """Read the object file of one C file. Raises RequirementError without pyelftools."""
    try:
        from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - only this command needs it
    except ImportError as error:
        raise RequirementError(
            "Reading debug information needs the Python package 'pyelftools', which is not installed; "
            "install it with `pip install 'gpu-node-harness[gpu-release]'`."
        ) from error
    with file.open("rb") as stream:
        units = list(ELFFile(stream).get_dwarf_info().iter_CUs())
        if len(units) != 1:
            raise HarnessError(
                f"'{file}' has debug information of {len(units)} compilation units, but 1 was expected."
            )
        reader = _Reader()
        reader.read(units[0].get_top_DIE())
        return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found = DebugInfo()
        #: The names that are given to types without a name, by the offset of the type.
        self._names: dict[int, str] = {}

    def read(self, unit: DIE) -> None:
        entries = list(unit.iter_children())
        for entry in entries:
            if entry.tag == "DW_TAG_typedef":
                target = _target(entry)
                if target is not None and target.tag in _RECORDS and _name(target) is None:
                    self._names.setdefault(target.offset, _name(entry) or "")
        for entry in entries:
            if entry.tag in _RECORDS:
                self._add(entry)
            elif entry.tag == "DW_TAG_enumeration_type":
                for each in entry.iter_children():
                    self.found.constants[_name(each) or ""] = each.attributes[
                        "DW_AT_const_value"
                    ].value
        for entry in entries:
            if entry.tag == "DW_TAG_typedef":
                target = _behind_aliases(entry)
                if target is not None and target.tag in _RECORDS:
                    known = self.found.structs.get(self._struct_name(target))
                    if known is not None:
                        self.found.structs.setdefault(_name(entry) or "", known)

    def _add(self, entry: DIE) -> None:
        name = self._struct_name(entry)
        size = _number(entry, "DW_AT_byte_size")
        # A declaration without a definition has no size.
        if not name or size is None or name in self.found.structs:
            return
        fields: list[FieldFacts] = []
        self.found.structs[name] = (size, fields)
        self._add_fields(entry, 0, name, fields)

    def _add_fields(self, entry: DIE, start: int, owner: str, fields: list[FieldFacts]) -> None:
        for member in entry.iter_children():
            if member.tag != "DW_TAG_member" or "DW_AT_bit_size" in member.attributes:
                continue
            offset = start + (_number(member, "DW_AT_data_member_location") or 0)
            name = _name(member)
            kind = _target(member)
            if name is None:
                if kind is not None:
                    self._add_fields(kind, offset, owner, fields)
                continue
            element, count = _element(kind)
            if element is not None and element.tag in _RECORDS and not self._struct_name(element):
                self._names[element.offset] = f"{owner}.{name}"
                self._add(element)
            size, type_name = self._described(element)
            fields.append((name, offset, size, type_name, count))

    def _described(self, element: DIE | None) -> tuple[int, str]:
        """Return the size and the type of one element."""
        if element is None:
            return 0, "pointer"
        size = _number(element, "DW_AT_byte_size") or 0
        if element.tag in _RECORDS:
            return size, self._struct_name(element)
        if element.tag == "DW_TAG_pointer_type":
            return size, "pointer"
        encoding = _number(element, "DW_AT_encoding")
        letter = "f" if encoding == _FLOAT else "i" if encoding in _SIGNED else "u"
        return size, f"{letter}{8 * size}"

    def _struct_name(self, entry: DIE) -> str:
        return _name(entry) or self._names.get(entry.offset, "")


def _name(entry: DIE) -> str | None:
    found = entry.attributes.get("DW_AT_name")
    return None if found is None else found.value.decode()


def _number(entry: DIE, attribute: str) -> int | None:
    found = entry.attributes.get(attribute)
    return None if found is None else int(found.value)


def _target(entry: DIE) -> DIE | None:
    if "DW_AT_type" not in entry.attributes:
        return None
    return entry.get_DIE_from_attribute("DW_AT_type")


def _behind_aliases(entry: DIE | None) -> DIE | None:
    while entry is not None and entry.tag in _ALIASES:
        entry = _target(entry)
    return entry


def _element(entry: DIE | None) -> tuple[DIE | None, int]:
    """Return an array's element type, and how many elements it has; a flexible array has 0."""
    count = 1
    entry = _behind_aliases(entry)
    while entry is not None and entry.tag == "DW_TAG_array_type":
        for dimension in entry.iter_children():
            if dimension.tag == "DW_TAG_subrange_type":
                last = dimension.attributes.get("DW_AT_upper_bound")
                length = _number(dimension, "DW_AT_count")
                count *= (
                    length if length is not None else 0 if last is None else int(last.value) + 1
                )
        entry = _behind_aliases(_target(entry))
    return entry, count
