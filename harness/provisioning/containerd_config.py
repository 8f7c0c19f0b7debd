"""Reads the CRI plugin's settings in containerd's configuration file and in containerd's dump.

`containerd config dump` prints the settings that containerd reads from its own file and from all
imported files.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from .cdi import CRI_PLUGINS, CdiSupport, Engine, detect_support
from .nvidia import BOTTLEROCKET_RUNTIME, CONTAINER_RUNTIME
from .toml_text import (
    Key,
    TomlTextError,
    get_value,
    read_entries,
    read_string,
    read_strings,
    read_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTAINERD_CONFIG = "/etc/containerd/config.toml"
#: Matches the paths of containerd's own file and of the temporary file that will replace it.
_OWN_FILE = re.compile(r"/etc/containerd/(config\.toml|\.config\.toml\.[a-z0-9_]{8})")
FALLBACK_RUNTIME = "runc"
DEFAULT_RUNTIME_TABLE = "default_runtime"
"""The table of the default runtime for containerd before 2, beside the table of all runtimes."""

_OTHER_TABLES = (DEFAULT_RUNTIME_TABLE, "untrusted_workload_runtime")
PROGRAM_KEYS = (("options", "BinaryName"), ("options", "Runtime"), ("runtime_engine",))
"""The keys of a runtime's program: two keys of options, then the key of containerd before 1.4."""

_OLD_SHIM = "io.containerd.runtime.v1.linux"
"""The only type that reads the keys other than `BinaryName`; the `runc` shims ignore these keys."""

_REMOVED_SHIMS = (_OLD_SHIM, "io.containerd.runc.v1")
"""The types that containerd 2 removed; containerd 2 starts no container of such a runtime (k3s 4391)."""

_CRI_PLUGIN_NAMES = frozenset(
    {
        *(plugin[-1] for plugin in CRI_PLUGINS.values()),
        "io.containerd.cri.v1.images",
    }
)
#: From format 2 on, containerd expects at least this number of parts in the name of a plugin.
_PARTS_OF_A_URI = 4
_NEWEST = CRI_PLUGINS[max(CRI_PLUGINS)]
_FORMAT = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, kw_only=True)
class CriRuntime:
    """A runtime of the CRI plugin; `program` is the program that it starts, or None for runc.

    `is_effective` is true if containerd starts `program`: the runtime has a type, and the type
    reads the key that names `program`. containerd creates no container of a runtime without a type
    (nvidia-container-toolkit 1956). A runtime with gVisor's type starts gVisor, not `program`
    (gvisor 10997).
    """

    name: str
    table: Key
    program: str | None
    is_effective: bool

    @property
    def is_nvidia(self) -> bool:
        """Return whether the runtime, whatever its name, starts a program of NVIDIA's toolkit."""
        name = posixpath.basename(self.program or "")
        return name == BOTTLEROCKET_RUNTIME or name.startswith(
            posixpath.basename(CONTAINER_RUNTIME)
        )


def format_of(text: str) -> int | None:
    """Return the `version` of a configuration: 1 if it is missing, or None if it is not a number."""
    version = get_value(text, ("version",)) or "1"
    return int(version) if _FORMAT.fullmatch(version) else None


def cri_table(text: str, dump: str | None = None) -> Key:
    """Return the path of the CRI plugin's table in the text of a file or of a dump.

    In a file of format 1, containerd 2 ignores tables of the CRI plugin, unless these tables have
    the names of format 3 (seen with 2.1.9). If a file of format 2 has runtimes in a table with the
    name of format 3, containerd uses only the runtimes in that table; AKS writes such files. The
    `dump` shows whether the node has containerd 2.
    """
    number = format_of(text)
    printed = None if dump is None else format_of(dump)
    if printed not in {1, 2}:
        if read_runtimes(text, _NEWEST):
            return _NEWEST
        if number == 1 and dump is not None:
            number = printed
    return CRI_PLUGINS.get(2 if number is None else number, _NEWEST)


def is_of_containerd_2(dump: str | None, cri: Key = ()) -> bool:
    """Return whether `dump` or the table `cri` shows that containerd has version 2 or later."""
    return cri == _NEWEST or (dump is not None and format_of(dump) not in {1, 2})


def readable_dump(dump: str | None) -> str | None:
    """Return the dump, or None if it is missing or cannot be parsed."""
    try:
        read_values(dump or "")
    except TomlTextError:
        return None
    return dump


def has_short_names(text: str) -> bool:
    """Return whether the file disables or requires plugins by the short names of format 1.

    containerd does not start if a file of a later format contains a short name.
    """
    return any(
        not name.startswith("io.containerd.") or len(name.split(".")) < _PARTS_OF_A_URI
        for key in ("disabled_plugins", "required_plugins")
        for name in read_strings(get_value(text, (key,)) or "")
    )


def read_runtimes(text: str, cri: Key, dump: str | None = None) -> tuple[CriRuntime, ...]:
    """Return the runtimes in the CRI plugin's table `cri`, in the order of the table.

    The `dump` shows whether the node has containerd 2.
    """
    is_new = is_of_containerd_2(dump, cri)
    values = read_values(text)
    table = (*cri, "containerd", "runtimes")
    paths = [*(entry.path for entry in read_entries(text)), *values]
    named = dict.fromkeys(
        path[: len(table) + 1] for path in paths if path[:-1][: len(table)] == table
    )
    others = [(*cri, "containerd", name) for name in _OTHER_TABLES]
    # A dump contains these other tables even if they are empty.
    tables = [*named, *(other for other in others if _program_of(values, other) is not None)]
    return tuple(
        CriRuntime(
            name=each[-1],
            table=each,
            program=_program_of(values, each),
            is_effective=_is_effective(values, each, is_new=is_new),
        )
        for each in tables
    )


def _program_of(values: dict[Key, str], table: Key) -> str | None:
    found = (read_string(values.get((*table, *key), "")) for key in PROGRAM_KEYS)
    return next((program for program in found if program), None)


def _is_effective(values: dict[Key, str], table: Key, *, is_new: bool) -> bool:
    kind = read_string(values.get((*table, "runtime_type"), ""))
    binary = read_string(values.get((*table, *PROGRAM_KEYS[0]), ""))
    has_program = bool(binary) or _program_of(values, table) is None or kind == _OLD_SHIM
    return has_program and starts_program(kind, is_new=is_new)


def starts_program(kind: str, *, is_new: bool) -> bool:
    """Return whether runtimes of this type start the program that they name; `is_new` means containerd 2."""
    if is_new and kind in _REMOVED_SHIMS:
        return False
    return kind == _OLD_SHIM or "runc" in kind


def has_nvidia_runtime(text: str, cri: Key, dump: str | None = None) -> bool:
    """Return whether a runtime starts `nvidia-container-runtime` itself, not one of its variants.

    The `dump` shows whether the node has containerd 2.
    """
    programs = {CONTAINER_RUNTIME, posixpath.basename(CONTAINER_RUNTIME)}
    return any(
        runtime.program in programs and runtime.is_effective and runtime.table[-2] == "runtimes"
        for runtime in read_runtimes(text, cri, dump)
    )


def default_runtime(text: str, cri: Key) -> str:
    """Return the name of the runtime for pods that name no runtime."""
    value = get_value(text, (*cri, "containerd", "default_runtime_name"))
    return FALLBACK_RUNTIME if value is None else read_string(value)


def imports_itself(text: str) -> bool:
    """Return whether a pattern in the file's `imports` matches the file itself; `*` does not match a `/`."""
    folder = posixpath.dirname(CONTAINERD_CONFIG)
    patterns = read_strings(get_value(text, ("imports",)) or "")
    return any(
        PurePosixPath(CONTAINERD_CONFIG).match(posixpath.normpath(posixpath.join(folder, each)))
        for each in patterns
    )


@dataclass(frozen=True, kw_only=True)
class WantedRuntimes:
    """The wanted content of containerd's dump, on a node with a driver or on an opted-out node.

    On a node that opted out of a driver, the default runtime must not start a program of NVIDIA.
    """

    has_nvidia: bool
    is_nvidia_default: bool = False
    is_cdi_on: bool = False

    def difference(self, dump: str, own: str = CONTAINERD_CONFIG) -> str | None:
        """Return the first difference between the dump and the wanted content, or None.

        `own` is the path of containerd's own configuration file, which the dump lists among the
        imported files.

        Raises TomlTextError if the dump cannot be parsed.
        """
        found = next(self._differences(dump), None)
        return None if found is None else f"{found} {_what_to_do(dump, own)}"

    def _differences(self, dump: str) -> Iterator[str]:
        cri = cri_table(dump)
        runtimes = {each.name: each for each in read_runtimes(dump, cri)}
        default = default_runtime(dump, cri)
        is_nvidia = default in runtimes and runtimes[default].is_nvidia
        if self.has_nvidia and is_cri_disabled(dump):
            yield "Its CRI plugin is disabled, so containerd runs no pods."
        if self.has_nvidia and not has_nvidia_runtime(dump, cri):
            yield (
                f"None of its runtimes {sorted(runtimes)} has '{CONTAINER_RUNTIME}' as its 'BinaryName', "
                "and a 'runtime_type' of runc."
            )
        if runtimes and default not in runtimes:
            yield (
                f"Its default runtime '{default}' is not one of its runtimes {sorted(runtimes)}, so its CRI "
                "plugin does not start."
            )
        if self.is_nvidia_default and not is_nvidia:
            yield f"Its default runtime is '{default}', which is not the nvidia runtime."
        for name in (default, DEFAULT_RUNTIME_TABLE):
            if not self.has_nvidia and name in runtimes and runtimes[name].is_nvidia:
                yield f"Its default runtime '{name}' starts '{runtimes[name].program}'."
        if self.is_cdi_on and detect_support(Engine.CONTAINERD, dump=dump) is CdiSupport.CAPABLE:
            yield "Its 'enable_cdi' is not true."


def is_cri_disabled(dump: str) -> bool:
    """Return whether the configuration disables the CRI plugin, or a plugin that the CRI plugin needs."""
    disabled = read_strings(get_value(dump, ("disabled_plugins",)) or "")
    return not _CRI_PLUGIN_NAMES.isdisjoint(disabled)


def _what_to_do(dump: str, own: str) -> str:
    if is_cri_disabled(dump):
        return "Remove the plugin from 'disabled_plugins'."
    imported = [
        path
        for path in read_strings(get_value(dump, ("imports",)) or "")
        if path != own and _OWN_FILE.fullmatch(path) is None
    ]
    if not imported:
        return f"See '{CONTAINERD_CONFIG}'."
    return (
        f"'{CONTAINERD_CONFIG}' imports {imported}. If containerd is older than 2.1, or if the formats of "
        "the files differ, an imported file with settings of the CRI plugin replaces all of this plugin's "
        "settings in the importing file. Write all settings of the CRI plugin into one file."
    )
