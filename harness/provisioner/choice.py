"""Chooses the provisioner that the option `--provisioner NAME|PATH` names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.entry_points import Group, Plugin, find_plugin, plugins
from harness.errors import BadInputError, HarnessError, listed
from harness.payload import build_payload
from harness.provisioner import Provisioner
from harness.provisioner.gpu_node import NAME, gpu_node_provisioner


def choose_provisioner(word: str) -> Provisioner:
    """Return the provisioner named `word`, or the provisioner that the file `word` declares.

    Raises BadInputError if no provisioner has the name `word`, or if the file is invalid.
    """
    return _read(Path(word)) if _is_path(word) else provisioner_by_name(word)


def _read(path: Path) -> Provisioner:
    # The import is here because the harness's own provisioner does not need `yaml_file`, and
    # loading `yaml_file` takes longer than starting a clone.
    from harness.provisioner.yaml_file import read_provisioner  # noqa: PLC0415

    return read_provisioner(path)


def absolute(word: str, folder: Path) -> str:
    """Return a relative path joined to `folder`; return a provisioner's name unchanged."""
    return str(folder / word) if _is_path(word) else word


def _is_path(word: str) -> bool:
    """Return whether `word` contains a slash, or ends in `.yaml` or `.yml`."""
    return "/" in word or word.endswith((".yaml", ".yml"))


def provisioner_by_name(name: str) -> Provisioner:
    """Return the provisioner named `name`. Raises BadInputError for an unknown name."""
    if name == NAME:
        return gpu_node_provisioner(build_payload())
    plugin = find_plugin(Group.PROVISIONERS, name)
    if plugin is not None:
        return provisioner_of(plugin)
    known = sorted({NAME, *(each.name for each in plugins(Group.PROVISIONERS))})
    raise BadInputError(
        f"There is no provisioner '{name}', only {listed(known)}; give one of these, or the path "
        "of a provisioner's file, such as './provisioner.yaml'.",
        source="--provisioner",
    )


def provisioner_of(plugin: Plugin) -> Provisioner:
    """Return the provisioner that an entry point provides, renamed to the entry point's name.

    The entry point's object is a `Provisioner`, a function without arguments that returns a
    `Provisioner`, or the absolute path of a provisioner's file. Raises PluginError if the entry
    point's object is anything else, if the function raises an exception, or if the provisioner's
    file is invalid.
    """
    found = plugin.load()
    try:
        if isinstance(found, (str, Path)) and Path(found).is_absolute():
            found = _read(Path(found))
        elif callable(found):
            found = found()
    except BadInputError as error:
        raise plugin.error(str(error).rstrip(".")) from error
    except HarnessError:
        raise
    except Exception as error:
        raise plugin.error(f"it raises {error!r}") from error
    if not isinstance(found, Provisioner):
        raise plugin.error(
            "an entry point has to refer to a provisioner, to a function that returns a provisioner, or to "
            f"the absolute path of a provisioner's file, but this entry point leads to {found!r}"
        )
    return replace(found, name=plugin.name)
