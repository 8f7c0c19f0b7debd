"""Simulates `containerd config dump` of a file and its imports, for three releases of containerd.

`suites/host/provisioning/test_containerd_config.py` compares the simulation with the real
programs.
"""

from __future__ import annotations

import enum
import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.provisioning.toml_text import (
    Key,
    TomlTextError,
    read_entries,
    read_strings,
    read_values,
    render_key,
    render_string,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_OLDER_CRI = ("plugins", "io.containerd.grpc.v1.cri")
_CRI = ("plugins", "io.containerd.cri.v1.runtime")
_RUNTIMES = ("containerd", "runtimes")
_LISTS = {("disabled_plugins",), ("required_plugins",), ("imports",)}


class Release(enum.Enum):
    """The releases of containerd in Debian 12, Debian 13 and Debian sid."""

    OLD = "1.6.20"
    MIDDLE = "1.7.24"
    NEW = "2.1.9"


class RefusedError(Exception):
    """containerd does not start with this configuration."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files that containerd reads: `read` returns a text, `matching` the paths of a pattern."""

    read: Callable[[str], str | None]
    matching: Callable[[str], Iterable[str]]


@dataclass
class _Merged:
    """The settings of all files: values, and the headers of tables."""

    version: int = 1
    values: dict[Key, str] = field(default_factory=dict)
    headers: set[Key] = field(default_factory=set)
    imports: list[str] = field(default_factory=list)

    def plugins(self) -> set[Key]:
        return {
            path[:2]
            for path in (*self.values, *self.headers)
            if path[0] == "plugins" and len(path) > 1
        }


def config_dump(path: str, files: Files, release: Release) -> str:
    """Return what `containerd --config PATH config dump` prints, as far as provisioning reads it.

    Raises RefusedError if containerd ends with an error.
    """
    merged = _Merged()
    waiting, loaded = [path], set[str]()
    while waiting:
        each = waiting.pop(0)
        if each in loaded:
            continue
        loaded.add(each)
        values, headers = _parsed(each, files)
        patterns = read_strings(values.get(("imports",), ""))
        waiting += _imported(each, patterns, files, release)
        merged.imports += patterns if release is Release.NEW else [each]
        _merge(merged, values, headers, release)
        _check(merged, release)
    return _render(merged, release)


def _parsed(path: str, files: Files) -> tuple[dict[Key, str], set[Key]]:
    text = files.read(path)
    if text is None:
        raise RefusedError(f"containerd: failed to load TOML: open {path}: no such file")
    try:
        values = read_values(text)
        return values, {entry.path for entry in read_entries(text) if entry.is_header}
    except TomlTextError as error:
        raise RefusedError(f"containerd: failed to load TOML: {path}: {error}") from error


def _imported(path: str, patterns: Iterable[str], files: Files, release: Release) -> list[str]:
    found: list[str] = []
    for pattern in patterns:
        if release is Release.OLD and "*" in pattern and not pattern.startswith("/"):
            continue
        whole = posixpath.join(posixpath.dirname(path), pattern)
        matches = sorted(files.matching(whole))
        if not matches and "*" not in pattern and release is not Release.NEW:
            raise RefusedError(f"containerd: failed to load TOML: open {pattern}: no such file")
        found += matches
    return found


def _merge(merged: _Merged, values: dict[Key, str], headers: set[Key], release: Release) -> None:
    number = values.get(("version",), "1")
    merged.version = max(merged.version, int(number) if number.isdigit() else 1)
    if release is not Release.NEW:
        # A plugin's section in a later file replaces the plugin's section in an earlier file.
        sections = {
            path[:2] for path in (*values, *headers) if path[0] == "plugins" and len(path) > 1
        }
        merged.values = {k: v for k, v in merged.values.items() if k[:2] not in sections}
        merged.headers = {k for k in merged.headers if k[:2] not in sections}
    for path, value in values.items():
        if path in _LISTS:
            strings = (*read_strings(merged.values.get(path, "")), *read_strings(value))
            merged.values[path] = f"[{', '.join(render_string(s) for s in strings)}]"
        else:
            merged.values[path] = value
    merged.headers |= headers


def _check(merged: _Merged, release: Release) -> None:
    if release is Release.MIDDLE and merged.version > 2:
        raise RefusedError(f"containerd: unsupported config version `{merged.version}`")
    if not merged.values.get(("oom_score",), "0").lstrip("-").isdigit():
        raise RefusedError("containerd: failed to unmarshal TOML: oom_score is no number")
    if merged.version < 2:
        return
    names = {
        kind: read_strings(merged.values.get((f"{kind}_plugins",), ""))
        for kind in ("disabled", "required")
    }
    keys = {path[1] for path in merged.plugins()}
    for kind, short in (*names.items(), ("key", keys if release is not Release.NEW else ())):
        for name in short:
            if len(name.split(".")) < 4:
                raise RefusedError(f'containerd: invalid {kind} plugin URI "{name}"')


def _render(merged: _Merged, release: Release) -> str:
    is_new = release is Release.NEW
    disabled = read_strings(merged.values.get(("disabled_plugins",), ""))
    if is_new and merged.version == 1:
        disabled = tuple("io.containerd.grpc.v1.cri" if d == "cri" else d for d in disabled)
    lines = [
        f"version = {3 if is_new else 2}",
        f"disabled_plugins = [{', '.join(map(render_string, disabled))}]",
        f"imports = [{', '.join(map(render_string, merged.imports))}]",
    ]
    if not is_new and {"cri", "io.containerd.grpc.v1.cri"} & set(disabled):
        return "\n".join(lines) + "\n"
    source = _CRI if is_new else _OLDER_CRI
    if merged.version == 1 and not is_new:
        source = ("plugins", "cri")
    values = _below(merged.values, source)
    headers = {path[2:] for path in merged.headers if path[:2] == source}
    if is_new and merged.version == 2:
        older = _below(merged.values, _OLDER_CRI)
        if any(path[:2] == _RUNTIMES for path in (*values, *headers)):
            # The table of all runtimes is not merged.
            older = {path: value for path, value in older.items() if path[:2] != _RUNTIMES}
        values = {**older, **values}
    return "\n".join([*lines, *_cri_lines(values, headers, release)]) + "\n"


def _below(values: dict[Key, str], table: Key) -> dict[Key, str]:
    return {path[2:]: v for path, v in values.items() if path[:2] == table and path != table}


def _cri_lines(values: dict[Key, str], headers: set[Key], release: Release) -> list[str]:
    is_new = release is Release.NEW
    shown: dict[Key, str] = {("containerd", "default_runtime_name"): '"runc"'}
    if release is not Release.OLD:
        shown[("enable_cdi",)] = "true" if is_new else "false"
    if is_new or not any(path[:2] == _RUNTIMES for path in (*values, *headers)):
        runc = (*_RUNTIMES, "runc", "runtime_type")
        shown[runc] = '"io.containerd.runc.v2"'
    shown.update(
        {
            path: value
            for path, value in values.items()
            if not value.startswith("{")
            and (release is not Release.OLD or path != ("enable_cdi",))
        }
    )
    table = _CRI if is_new else _OLDER_CRI
    lines: list[str] = []
    for below in dict.fromkeys(path[:-1] for path in shown):
        lines.append(f"[{render_key((*table, *below))}]")
        lines += [f"{render_key(p[-1:])} = {v}" for p, v in shown.items() if p[:-1] == below]
    lines += [
        f"[{render_key((*table, *h))}]"
        for h in sorted(headers)
        if h not in {p[:-1] for p in shown}
    ]
    return lines
