"""Answers calls of dpkg and dpkg-query from the state of a node's packages."""

from __future__ import annotations

import fnmatch
import operator
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.shell.fakes.invocation import Syntax, unknown_use
from harness.shell.fakes.package_state import (
    Entry,
    Package,
    PackageState,
    Status,
    dependency_name,
    version_key,
)
from harness.shell.mocks.commands import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.shell.fakes.invocation import Invocation
    from harness.shell.mocks.commands import Call

_QUERIES = (
    "-W,--show",
    "-f,--showformat=",
    "-l,--list",
    "-s,--status",
    "-L,--listfiles",
)
_QUERY = Syntax(options=_QUERIES)
_DPKG = Syntax(
    options=(
        "-i,--install",
        "-r,--remove",
        "-P,--purge",
        "-l,--list",
        "-s,--status",
        "-L,--listfiles",
        "--configure",
        "-a,--pending",
        "--print-architecture",
        "--compare-versions",
    )
)
_FIELD = re.compile(r"\$\{([^}]+)\}")
_LIST_HEADER = """\
Desired=Unknown/Install/Remove/Purge/Hold
| Status=Not/Inst/Conf-files/Unpacked/halF-conf/Half-inst/trig-aWait/Trig-pend
|/ Err?=(none)/Reinst-required (Status,Err: uppercase=bad)
"""
_LOCKED = """\
dpkg: error: dpkg frontend lock was locked by another process with pid 1000
Note: removing the lock file is always wrong, can damage the locked area
and the entire system. See <https://wiki.debian.org/Teams/Dpkg/FAQ#db-lock>.
"""
_ORDERS = ("lt", "le", "ge", "gt")
_RELATIONS = (*_ORDERS, "eq", "ne")
_SIGNS = {"<": "le", "<<": "lt", "<=": "le", "=": "eq", ">=": "ge", ">>": "gt", ">": "ge"}
_WIDTHS = (14, 12, 12, 33)


class Dpkg:
    """Answers dpkg and dpkg-query calls; `archives` maps paths of `.deb` files to packages."""

    def __init__(
        self, state: PackageState, archives: Mapping[str, Package], architecture: str
    ) -> None:
        self._state = state
        self._archives = archives
        self._architecture = architecture

    def query(self, call: Call) -> Answer:
        invocation = _QUERY.parse(call)
        actions: dict[str, Callable[[Sequence[str]], Answer]] = {
            "--show": lambda names: self._show(call, names, invocation.value("--showformat")),
            "--list": self._list,
            "--status": self._status,
            "--listfiles": self._list_files,
        }
        for option, action in actions.items():
            if invocation.has(option):
                return action([self._state.plain(each) for each in invocation.operands])
        raise unknown_use(call, "the fake of 'dpkg-query' needs '-W', '-l', '-s' or '-L'")

    def dpkg(self, call: Call) -> Answer:
        invocation = _DPKG.parse(call)
        if invocation.has("--print-architecture"):
            return Answer(stdout=f"{self._architecture}\n")
        if invocation.has("--compare-versions"):
            return _compare(invocation)
        actions: dict[str, Callable[[Sequence[str]], Answer]] = {
            "--list": self._list,
            "--status": self._status,
            "--listfiles": self._list_files,
            "--install": self._install,
            "--remove": lambda names: self._remove(names, is_purge=False),
            "--purge": lambda names: self._remove(names, is_purge=True),
            "--configure": lambda _: self._configure(),
        }
        for option, action in actions.items():
            if invocation.has(option):
                changes = option in {"--install", "--remove", "--purge", "--configure"}
                if changes and self._state.is_locked():
                    return Answer(stderr=_LOCKED, exit_code=2)
                return action([self._state.plain(each) for each in invocation.operands])
        raise unknown_use(
            call, f"the fake of 'dpkg' needs one of the actions {', '.join(actions)}"
        )

    # Queries

    def _matching(self, pattern: str) -> list[Entry]:
        return [
            self._state.entries[name]
            for name in sorted(self._state.entries)
            if fnmatch.fnmatchcase(name, pattern)
        ]

    def _show(self, call: Call, names: Sequence[str], form: str | None) -> Answer:
        shown: list[str] = []
        errors: list[str] = []
        for name in names or ("*",):
            found = self._matching(name)
            if not found and names:
                errors.append(f"dpkg-query: no packages found matching {name}\n")
            shown += [
                _expand(call, form or "${Package}\\t${Version}\\n", entry) for entry in found
            ]
        return Answer(stdout="".join(shown), stderr="".join(errors), exit_code=1 if errors else 0)

    def _list(self, names: Sequence[str]) -> Answer:
        found = [entry for name in names or ("*",) for entry in self._matching(name)]
        errors = "".join(
            f"dpkg-query: no packages found matching {name}\n"
            for name in names
            if not self._matching(name)
        )
        rows = [
            (e.package.name, e.package.version, e.package.architecture, e.package.description)
            for e in found
        ]
        widths = [
            max([minimum, *(len(row[column]) for row in rows)])
            for column, minimum in enumerate(_WIDTHS[:3])
        ]
        rest = max(_WIDTHS[3] - (sum(widths) - sum(_WIDTHS[:3])), 11)

        def line(mark: str, cells: Sequence[str]) -> str:
            padded = [f"{c:<{w}}" for c, w in zip(cells, widths, strict=False)]
            return f"{mark} {' '.join(padded)} {cells[3][:rest]}\n"

        table = [
            line("||/", ("Name", "Version", "Architecture", "Description")),
            "+++-" + "-".join("=" * width for width in [*widths, rest]) + "\n",
            *(
                line(f"{_abbreviation(entry)} ", row)
                for entry, row in zip(found, rows, strict=True)
            ),
        ]
        return Answer(
            stdout=_LIST_HEADER + "".join(table) if found else "",
            stderr=errors,
            exit_code=1 if errors else 0,
        )

    def _status(self, names: Sequence[str]) -> Answer:
        shown: list[str] = []
        for name in names:
            entry = self._state.entries.get(name)
            if entry is None:
                return Answer(
                    stderr=f"dpkg-query: package '{name}' is not installed and no information is "
                    "available\nUse dpkg --info (= dpkg-deb --info) to examine archive files.\n",
                    exit_code=1,
                )
            package = entry.package
            conffiles = "".join(f" {path} {'0' * 32}\n" for path in package.configuration)
            depends = f"Depends: {', '.join(package.depends)}\n" if package.depends else ""
            shown.append(
                f"Package: {name}\nStatus: {_long_status(entry)}\n"
                f"Architecture: {package.architecture}\nVersion: {package.version}\n{depends}"
                + (f"Conffiles:\n{conffiles}" if conffiles else "")
                + f"Description: {package.description}\n"
            )
        return Answer(stdout="\n".join(shown))

    def _list_files(self, names: Sequence[str]) -> Answer:
        shown: list[str] = []
        for name in names:
            entry = self._state.entries.get(name)
            if entry is None:
                return Answer(
                    stderr=f"dpkg-query: package '{name}' is not installed\n", exit_code=1
                )
            paths: set[str] = set()
            for file in [*entry.package.files, *entry.package.configuration]:
                paths |= {file, *(str(folder) for folder in PurePosixPath(file).parents)}
            shown += ["/.", *sorted(paths - {"/"})]
        return Answer(stdout="".join(f"{path}\n" for path in shown))

    # Changes

    def _install(self, paths: Sequence[str]) -> Answer:
        state = self._state
        for path in paths:
            if path not in self._archives:
                return Answer(
                    stderr=f"dpkg: error: cannot access archive '{path}': "
                    "No such file or directory\n",
                    exit_code=2,
                )
        shown: list[str] = []
        errors: list[str] = []
        packages = [self._archives[path] for path in paths]
        for package in packages:
            shown += unpacking(state, package)
            state.unpack(package, is_automatic=False)
        failed: list[str] = []
        for package in packages:
            unmet = state.unmet(package, packages)
            if unmet:
                failed.append(package.name)
                errors.append(_unmet(package, unmet))
                continue
            state.configure(package.name)
            shown.append(f"Setting up {package.name} ({package.version}) ...\n")
        return _outcome(shown, errors, failed)

    def _remove(self, names: Sequence[str], *, is_purge: bool) -> Answer:
        state = self._state
        shown: list[str] = []
        errors: list[str] = []
        failed: list[str] = []
        for name in names:
            entry = state.entries.get(name)
            if entry is None or (entry.status is Status.CONFIG_FILES and not is_purge):
                verb = "purge" if is_purge else "remove"
                errors.append(
                    f"dpkg: warning: ignoring request to {verb} {name} which isn't installed\n"
                )
                continue
            users = [other for other in state.dependents([name]) if other not in names]
            if users:
                failed.append(name)
                errors.append(self._still_needed(name, users[0]))
                continue
            shown += removing(state, name, is_purge=is_purge)
        return _outcome(shown, errors, failed)

    def _still_needed(self, name: str, user: str) -> str:
        needs = self._state.entries[user].package.depends
        dependency = next(needed for needed in needs if dependency_name(needed) == name)
        return (
            f"dpkg: dependency problems prevent removal of {name}:\n"
            f" {user} depends on {dependency}.\n\n"
            f"dpkg: error processing package {name} (--remove):\n"
            " dependency problems - not removing\n"
        )

    def _configure(self) -> Answer:
        shown: list[str] = []
        for name, entry in self._state.entries.items():
            if entry.status is Status.UNPACKED and not self._state.unmet(entry.package):
                self._state.configure(name)
                shown.append(f"Setting up {name} ({entry.package.version}) ...\n")
        return Answer(stdout="".join(shown))


def unpacking(state: PackageState, package: Package) -> list[str]:
    """Return the output of dpkg for unpacking a package."""
    entry = state.entries.get(package.name)
    lines: list[str] = []
    over = ""
    if entry is None or entry.status is Status.CONFIG_FILES:
        lines.append(f"Selecting previously unselected package {package.name}.\n")
    else:
        over = f"over ({entry.package.version}) "
    lines.append(f"Preparing to unpack .../{package.file_name} ...\n")
    lines.append(f"Unpacking {package.name} ({package.version}) {over}...\n")
    return lines


def removing(state: PackageState, name: str, *, is_purge: bool) -> list[str]:
    """Remove a package from the state; return the output of dpkg for the removal."""
    entry = state.entries[name]
    title = f"{name} ({entry.package.version})"
    lines = [] if entry.status is Status.CONFIG_FILES else [f"Removing {title} ...\n"]
    if is_purge and entry.package.configuration:
        lines.append(f"Purging configuration files for {title} ...\n")
    state.remove(name, is_purge=is_purge)
    return lines


def _unmet(package: Package, unmet: Sequence[str]) -> str:
    reasons = "".join(
        f" {package.name} depends on {needed}; however:\n"
        f"  Package {dependency_name(needed)} is not installed.\n"
        for needed in unmet
    )
    return (
        f"dpkg: dependency problems prevent configuration of {package.name}:\n{reasons}\n"
        f"dpkg: error processing package {package.name} (--install):\n"
        " dependency problems - leaving unconfigured\n"
    )


def _outcome(shown: Sequence[str], errors: Sequence[str], failed: Sequence[str]) -> Answer:
    listed = "".join(f" {name}\n" for name in failed)
    summary = f"Errors were encountered while processing:\n{listed}" if failed else ""
    return Answer(
        stdout="".join(shown),
        stderr="".join(errors) + summary,
        exit_code=1 if failed else 0,
    )


def _compare(invocation: Invocation) -> Answer:
    """Answer 'dpkg --compare-versions'; each operator works as dpkg's manual says.

    An empty version counts as the earliest version; with an operator that ends with '-nl', an empty
    version counts as the latest version.
    """
    left, relation, right, *rest = [*invocation.operands, "", "", ""]
    name = _SIGNS.get(relation, relation).removesuffix("-nl")
    is_later = relation.endswith("-nl")
    if name not in (_ORDERS if is_later else _RELATIONS) or rest != ["", "", ""]:
        known = [*_RELATIONS, *(f"{each}-nl" for each in _ORDERS), *_SIGNS]
        raise unknown_use(
            invocation.call,
            f"the fake of 'dpkg' needs two versions and, between them, one of the operators {known}",
        )
    for each in (left, right):
        epoch, colon, _ = each.partition(":")
        if colon and not epoch.isdecimal():
            raise unknown_use(
                invocation.call, f"the version '{each}' has an epoch that is not a number"
            )
    keys = [((each == "") is is_later, version_key(each)) for each in (left, right)]
    warning = (
        f"dpkg: warning: --compare-versions used with obsolete relation operator '{relation}'\n"
    )
    return Answer(
        stderr=warning if relation in {"<", ">"} else "",
        exit_code=0 if getattr(operator, name)(*keys) else 1,
    )


def _abbreviation(entry: Entry) -> str:
    wanted = {"install": "i", "hold": "h", "deinstall": "r"}[entry.wanted]
    status = {Status.INSTALLED: "i", Status.UNPACKED: "U", Status.CONFIG_FILES: "c"}
    return wanted + status[entry.status]


def _long_status(entry: Entry) -> str:
    return f"{entry.wanted} ok {entry.status.value}"


def _expand(call: Call, form: str, entry: Entry) -> str:
    known = {
        "Package": entry.package.name,
        "Version": entry.package.version,
        "Architecture": entry.package.architecture,
        "Status": _long_status(entry),
        "db:Status-Status": entry.status.value,
        "db:Status-Abbrev": f"{_abbreviation(entry)} ",
    }

    def value(found: re.Match[str]) -> str:
        if found[1] not in known:
            raise unknown_use(
                call,
                f"the fake of 'dpkg-query' does not know the field '{found[1]}'; it knows "
                f"{', '.join(known)}",
            )
        return known[found[1]]

    return _FIELD.sub(value, form.replace("\\n", "\n").replace("\\t", "\t"))
