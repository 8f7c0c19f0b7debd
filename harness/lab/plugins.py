"""Checks everything that installed packages add to the harness, for `harness doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.entry_points import Group, Plugin, PluginError, plugins, unambiguous
from harness.errors import BadInputError
from harness.expect.every_node import NODE_EXPECTATIONS, expectation_of
from harness.gpu import catalogue as gpu_catalogue
from harness.image import catalogue as image_catalogue
from harness.lab.vm_drivers import opener_of
from harness.provisioner.choice import provisioner_of
from harness.provisioner.gpu_node import NAME
from harness.settings import MachineDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_NOUNS = {
    Group.GPU_MODELS: "folder of GPU models",
    Group.IMAGES: "folder of images",
    Group.PROVISIONERS: "provisioner",
    Group.MACHINE_DRIVERS: "VM driver",
    Group.EXPECTATIONS: "expectation",
}


@dataclass(frozen=True, kw_only=True)
class PluginCheck:
    """One entry point, and the reason why it can't be used, if any."""

    plugin: Plugin
    error: PluginError | None = None

    @property
    def noun(self) -> str:
        return _NOUNS[self.plugin.group]


def examine_plugins() -> list[PluginCheck]:
    """Load every entry point of installed packages, even if some entry points are broken."""
    return [
        *_in_folders(),
        *_by_name(Group.PROVISIONERS, provisioner_of, taken=[NAME]),
        *_by_name(Group.MACHINE_DRIVERS, opener_of, taken=MachineDriver.words()),
        *_by_name(
            Group.EXPECTATIONS, expectation_of, taken=[each.name for each in NODE_EXPECTATIONS]
        ),
    ]


def _in_folders() -> list[PluginCheck]:
    """Check the folders of GPU models and of image recipes, and each file in these folders."""
    recipes = image_catalogue.load_catalogue()
    errors = {
        error.plugin: error for error in (*gpu_catalogue.load_catalogue().errors, *recipes.errors)
    }
    every = (*plugins(Group.GPU_MODELS), *plugins(Group.IMAGES))
    return [
        PluginCheck(plugin=plugin, error=errors.get(plugin) or _invalid_recipe(plugin, recipes))
        for plugin in every
    ]


def _invalid_recipe(plugin: Plugin, recipes: image_catalogue.Catalogue) -> PluginError | None:
    if plugin.group is not Group.IMAGES:
        return None
    folder = plugin.folder()
    try:
        for name, file in (*recipes.files.items(), *recipes.duplicates.items()):
            if file.parent == folder.resolve():
                recipes.read(name)
    except BadInputError as error:
        return plugin.error(str(error).rstrip("."))
    return None


def _by_name(
    group: Group, use: Callable[[Plugin], object], *, taken: Iterable[str]
) -> list[PluginCheck]:
    usable, errors = unambiguous(plugins(group), taken=taken)
    checks = [PluginCheck(plugin=error.plugin, error=error) for error in errors]
    return [*checks, *(_try(plugin, use) for plugin in usable.values())]


def _try(plugin: Plugin, use: Callable[[Plugin], object]) -> PluginCheck:
    try:
        use(plugin)
    except PluginError as error:
        return PluginCheck(plugin=plugin, error=error)
    return PluginCheck(plugin=plugin)
