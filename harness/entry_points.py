"""Finds the entry points by which other installed packages extend the harness.

The entry points' names are read from the packages' metadata. A package is imported when one of its
entry points is used. A package that cannot be imported does not affect other packages. The import
error names the distribution, the group and the entry point, and `harness doctor` lists the error.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from harness.errors import HarnessError, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.metadata import EntryPoint

_PREFIX = "gpu_node_harness."


class Group(enum.Enum):
    """The kinds of extensions; each value is the name of an entry-point group in package metadata."""

    GPU_MODELS = f"{_PREFIX}gpu_models"
    """A folder of GPU models: a package, or a path."""
    IMAGES = f"{_PREFIX}images"
    """A folder of recipes: a package, or a path."""
    PROVISIONERS = f"{_PREFIX}provisioners"
    """A provisioner, or the path of its YAML file; the entry's name is the provisioner's name."""
    MACHINE_DRIVERS = f"{_PREFIX}machine_drivers"
    """A function that opens a VM driver; the entry's name is a value of `--machine-driver`."""
    EXPECTATIONS = f"{_PREFIX}expectations"
    """An expectation on every GPU node; the entry's name is the expectation's name."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """One entry point. `value` locates the object; `distribution` is the package's name and version."""

    group: Group
    name: str
    value: str
    distribution: str

    def load(self) -> object:
        """Import and return the object to which the entry point refers.

        Raises PluginError if the import raises any error.
        """
        from importlib.metadata import EntryPoint  # noqa: PLC0415 - slow to load

        entry = EntryPoint(self.name, self.value, self.group.value)
        try:
            found: object = entry.load()
        except (Exception, SystemExit) as error:
            raise self.error(
                f"it raises {type(error).__name__} on import ({_first_line(error)})"
            ) from error
        return found

    def folder(self) -> Path:
        """Return the folder to which the entry point refers, as a package or as a path.

        Raises PluginError if the entry point refers to no folder.
        """
        found = self.load()
        if isinstance(found, ModuleType):
            # A package without __init__.py has no file.
            places = list(getattr(found, "__path__", ()))
            folder = Path(places[0]) if places else None
        else:
            folder = Path(found) if isinstance(found, (str, Path)) else None
        if folder is None or not folder.is_absolute() or not folder.is_dir():
            raise self.error(
                f"a package or the absolute path of a folder is expected, but the entry point refers to {found!r}"
            )
        return folder

    def error(self, what: str) -> PluginError:
        """Return the error for an entry point that can't be used; `what` is the reason, as a clause."""
        return PluginError(
            f"The entry point '{self.name}' ({self.value}) of the group '{self.group.value}' in "
            f"{self.distribution} can't be used: {what}. Correct or uninstall that package.",
            plugin=self,
        )


class PluginError(HarnessError):
    """The entry point `plugin` of an installed package cannot be used."""

    def __init__(self, sentence: str, *, plugin: Plugin) -> None:
        super().__init__(sentence)
        self.plugin = plugin


def plugins(group: Group) -> tuple[Plugin, ...]:
    """Return the entry points of a group, sorted by name; nothing is imported."""
    return _read_plugins(tuple(sys.path))[group]


# Cached, since each call would read the metadata of all installed packages.
@functools.cache
def _read_plugins(_path: tuple[str, ...]) -> Mapping[Group, tuple[Plugin, ...]]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to load

    everything = entry_points()
    return {
        group: tuple(
            sorted(
                (_plugin(group, entry) for entry in everything.select(group=group.value)),
                key=lambda each: (each.name, each.distribution),
            )
        )
        for group in Group
    }


def _plugin(group: Group, entry: EntryPoint) -> Plugin:
    return Plugin(
        group=group,
        name=entry.name,
        value=entry.value,
        distribution="a package without a name"
        if entry.dist is None
        else f"'{entry.dist.name} {entry.dist.version}'",
    )


def find_plugin(group: Group, name: str) -> Plugin | None:
    """Return the entry point `name` of a group, or None if no package declares it.

    Raises PluginError if two packages declare an entry point of this name.
    """
    named = [plugin for plugin in plugins(group) if plugin.name == name]
    if len(named) > 1:
        raise _ambiguous(named)
    return named[0] if named else None


def unambiguous(
    found: Iterable[Plugin], taken: Iterable[str] = ()
) -> tuple[Mapping[str, Plugin], tuple[PluginError, ...]]:
    """Return the usable entry points by name, and an error for each name that is `taken` or ambiguous."""
    everything = tuple(found)
    count = Counter(plugin.name for plugin in everything)
    own = set(taken)
    usable: dict[str, Plugin] = {}
    errors: list[PluginError] = []
    for name in sorted(count):
        named = [plugin for plugin in everything if plugin.name == name]
        if name in own:
            errors.append(
                named[0].error(f"the harness has a '{name}' itself, so choose another name")
            )
        elif count[name] > 1:
            errors.append(_ambiguous(named))
        else:
            usable[name] = named[0]
    return usable, tuple(errors)


def _ambiguous(named: list[Plugin]) -> PluginError:
    others = listed(plugin.distribution.strip("'") for plugin in named[1:])
    return named[0].error(f"there is another entry point of this name in {others}")


def _first_line(error: BaseException) -> str:
    return (str(error) or repr(error)).splitlines()[0].rstrip(".")
