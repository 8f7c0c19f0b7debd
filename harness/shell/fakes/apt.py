"""Answers calls of apt-get and apt-mark from the state of a node's packages and repository."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.shell.fakes.dpkg import removing, unpacking
from harness.shell.fakes.invocation import (
    Syntax,
    expect_no_pattern,
    unknown_subcommand,
    unknown_use,
)
from harness.shell.fakes.package_state import (
    LOCK,
    Package,
    PackageState,
    Status,
    dependency_name,
    is_met_by,
    version_key,
)
from harness.shell.mocks.commands import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from harness.shell.fakes.invocation import Invocation
    from harness.shell.mocks.commands import Call

_APT_GET = Syntax(
    options=(
        "-y,--assume-yes,--yes",
        "-q,--quiet",
        "-f,--fix-broken",
        "-o,--option=",
        "--purge",
        "--no-install-recommends",
        "-m,--fix-missing",
        "--allow-downgrades",
        "--allow-change-held-packages",
        "--allow-unauthenticated",
    )
)
_APT_MARK = Syntax()
_LOCK_TIMEOUT = "dpkg::lock::timeout="
#: The configuration options that have no effect in the fake. apt ignores the case of their letters.
_WITHOUT_EFFECT = (
    "dpkg::options::=--force-conf", "dpkg::use-pty=", "dpkg::progress-fancy=", "acquire::",
)  # fmt: skip
_READING = "Reading package lists...\nBuilding dependency tree...\nReading state information...\n"
_IMPOSSIBLE = """\
Some packages could not be installed. This may mean that you have
requested an impossible situation or if you are using the unstable
distribution that some required packages have not yet been created
or been moved out of Incoming.
The following information may help to resolve the situation:

"""
_NOT_LOCKED = (
    f"E: Unable to acquire the dpkg frontend lock ({LOCK}), is another process using it?\n"
)
_HELD = f"Could not get lock {LOCK}. It is held by process 1000 (python3)"


@dataclass(kw_only=True)
class _Plan:
    """The changes that a run of apt-get will make.

    `extra` lists packages that the command line does not name.
    """

    installed: list[Package] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    is_purge: bool = False
    notes: list[str] = field(default_factory=list)


class Apt:
    """Answers apt-get and apt-mark calls; `archives` maps paths of `.deb` files to packages."""

    def __init__(self, state: PackageState, archives: Mapping[str, Package]) -> None:
        self._state = state
        self._archives = archives

    def get(self, call: Call) -> Answer:
        invocation = _APT_GET.parse(call)
        subcommands: dict[str, Callable[[Invocation, Sequence[str]], Answer]] = {
            "update": lambda i, _: self._update(i),
            "install": self._install,
            "remove": self._remove,
            "purge": self._remove,
            "autoremove": lambda i, _: self._autoremove(i),
            "clean": lambda _, __: Answer(),
        }
        name, *operands = invocation.operands or ("",)
        if name not in subcommands:
            raise unknown_subcommand(call, name, tuple(subcommands))
        expect_no_pattern(call, operands)
        if name in {"update", "clean"}:
            return subcommands[name](invocation, operands)
        return self._locked(invocation) or subcommands[name](invocation, operands)

    def mark(self, call: Call) -> Answer:
        name, *operands = _APT_MARK.parse(call).operands or ("",)
        held = [n for n in sorted(self._state.entries) if self._state.entries[n].is_held]
        if name == "showhold":
            return Answer(stdout="".join(f"{each}\n" for each in held))
        if name not in {"hold", "unhold"}:
            raise unknown_subcommand(call, name, ("hold", "unhold", "showhold"))
        lines: list[str] = []
        for each in map(self._state.plain, operands):
            if each not in self._state.entries:
                raise unknown_use(call, f"the package '{each}' is not installed in the fake")
            self._state.entries[each].is_held = name == "hold"
            lines.append(
                f"{each} set on hold.\n" if name == "hold" else f"Canceled hold on {each}.\n"
            )
        return Answer(stdout="".join(lines))

    def _locked(self, invocation: Invocation) -> Answer | None:
        """Return apt-get's error if another process holds dpkg's lock longer than apt-get waits."""
        options = invocation.all("--option")
        waits = any(option.lower().startswith(_LOCK_TIMEOUT) for option in options)
        for option in options:
            if not option.lower().startswith((_LOCK_TIMEOUT, *_WITHOUT_EFFECT)):
                raise unknown_use(invocation.call, f"the fake does not know the option '{option}'")
        if waits and math.isfinite(self._state.lock_attempts):
            self._state.lock_attempts = 0
        if not self._state.is_locked():
            return None
        if waits:
            return Answer(
                stdout=f"Waiting for cache lock: {_HELD}...\n", stderr=_NOT_LOCKED, exit_code=100
            )
        return Answer(stderr=f"E: {_HELD}\n{_NOT_LOCKED}", exit_code=100)

    def _update(self, invocation: Invocation) -> Answer:
        self._state.has_lists = True
        return Answer(stdout="" if _is_silent(invocation) else "Reading package lists...\n")

    # Installing

    def _install(self, invocation: Invocation, operands: Sequence[str]) -> Answer:
        shown = _reading(invocation)
        broken = self._broken()
        if broken and not invocation.has("--fix-broken"):
            return Answer(
                stdout=f"{shown}You might want to run 'apt --fix-broken install' to correct these."
                f"\n{_unmet_list(broken)}",
                stderr="E: Unmet dependencies. Try 'apt --fix-broken install' with no packages "
                "(or specify a solution).\n",
                exit_code=100,
            )
        plan = _Plan()
        errors: list[str] = []
        for operand in operands:
            errors += self._choose(invocation.call, operand, plan)
        if errors:
            return Answer(
                stdout=shown + "".join(plan.notes), stderr="".join(errors), exit_code=100
            )
        if broken:
            plan.notes.append("Correcting dependencies... Done\n")
        unmet = self._add_dependencies(plan, [package for package, _ in broken])
        if unmet:
            return Answer(
                stdout=shown + _IMPOSSIBLE + _unmet_list(unmet),
                stderr="E: Unable to correct problems, you have held broken packages.\n",
                exit_code=100,
            )
        return self._carry_out(invocation, plan, shown)

    def _broken(self) -> list[tuple[Package, list[tuple[str, str]]]]:
        """Return the packages that are unpacked but lack dependencies, with the reasons."""
        found = []
        for entry in self._state.entries.values():
            unmet = self._state.unmet(entry.package)
            if entry.status is Status.UNPACKED and unmet:
                reasons = [(needed, "is not going to be installed") for needed in unmet]
                found.append((entry.package, reasons))
        return found

    def _choose(self, call: Call, operand: str, plan: _Plan) -> list[str]:
        """Add an operand's package to the plan; return apt-get's errors."""
        if "/" in operand:
            package = self._archives.get(operand)
            if package is None:
                return [f"E: Unsupported file {operand} given on commandline\n"]
        else:
            name, _, version = operand.partition("=")
            name = self._state.plain(name)
            package = self._state.offered(name, version or None)
            if package is None and self._state.offered(name) is not None:
                plan.notes.append(
                    f"Package {name} is not available, but is referred to by another package.\n"
                    "This may mean that the package is missing, has been obsoleted, or\n"
                    "is only available from another source\n\n"
                )
                return [f"E: Version '{version}' for '{name}' was not found\n"]
            if package is None:
                return [f"E: Unable to locate package {name}\n"]
        entry = self._state.entries.get(package.name)
        if entry is not None and entry.status is Status.INSTALLED:
            if entry.package.version == package.version:
                plan.notes.append(
                    f"{package.name} is already the newest version ({package.version}).\n"
                )
                if entry.is_automatic:
                    entry.is_automatic = False
                    plan.notes.append(f"{package.name} set to manually installed.\n")
                return []
            if version_key(package.version) < version_key(entry.package.version):
                raise unknown_use(call, "the fake of 'apt-get' does not support downgrades")
            if entry.is_held:
                raise unknown_use(call, f"the package '{package.name}' is held")
        plan.installed.append(package)
        return []

    def _add_dependencies(
        self, plan: _Plan, broken: Iterable[Package]
    ) -> list[tuple[Package, list[tuple[str, str]]]]:
        """Plan each dependency before the package that needs it; return the unmet dependencies."""
        unmet: list[tuple[Package, list[tuple[str, str]]]] = []
        ordered: list[Package] = []

        def add(package: Package) -> None:
            reasons: list[tuple[str, str]] = []
            for needed in self._state.unmet(package, [*ordered, *plan.installed]):
                found = self._state.offered(dependency_name(needed))
                if found is None or not is_met_by(needed, found):
                    reasons.append((needed, "is not installable"))
                elif found not in ordered:
                    plan.extra.append(found.name)
                    add(found)
            if reasons:
                unmet.append((package, reasons))
            ordered.append(package)

        for package in plan.installed:
            add(package)
        for package in broken:
            add(package)
            ordered.remove(package)
        plan.installed = ordered
        return unmet

    # Removing

    def _remove(self, invocation: Invocation, operands: Sequence[str]) -> Answer:
        is_purge = invocation.operands[0] == "purge" or invocation.has("--purge")
        plan = _Plan(is_purge=is_purge)
        for name in map(self._state.plain, operands):
            status = self._state.status(name)
            if status is None and self._state.offered(name) is None:
                return Answer(
                    stdout=_reading(invocation),
                    stderr=f"E: Unable to locate package {name}\n",
                    exit_code=100,
                )
            if status is None or (status is Status.CONFIG_FILES and not is_purge):
                plan.notes.append(f"Package '{name}' is not installed, so not removed\n")
            else:
                plan.removed.append(name)
        users = self._state.dependents(plan.removed)
        held = [name for name in [*plan.removed, *users] if self._state.entries[name].is_held]
        if held:
            raise unknown_use(invocation.call, f"the package '{held[0]}' is held")
        plan.extra += users
        plan.removed = [*users, *plan.removed]
        return self._carry_out(invocation, plan, _reading(invocation))

    def _autoremove(self, invocation: Invocation) -> Answer:
        plan = _Plan(removed=self._state.unneeded(), is_purge=invocation.has("--purge"))
        return self._carry_out(invocation, plan, _reading(invocation))

    # Both

    def _carry_out(self, invocation: Invocation, plan: _Plan, shown: str) -> Answer:
        state = self._state
        upgraded = [p.name for p in plan.installed if state.status(p.name) is Status.INSTALLED]
        new = [p.name for p in plan.installed if p.name not in upgraded]
        unpacked = [e for e in state.entries.values() if e.status is Status.UNPACKED]
        unneeded = state.unneeded(plan.removed)
        lines = [shown, *plan.notes]
        if not _is_silent(invocation):
            extra = [name for name in plan.extra if name not in plan.removed]
            star = "*" if plan.is_purge else ""
            lines += [
                _unneeded_list(unneeded) if invocation.operands[0] != "autoremove" else "",
                _names("The following additional packages will be installed:", extra),
                _names("The following packages will be REMOVED:", plan.removed, star),
                _names("The following NEW packages will be installed:", new),
                _names("The following packages will be upgraded:", upgraded),
                (
                    f"{len(upgraded)} upgraded, {len(new)} newly installed, "
                    f"{len(plan.removed)} to remove and 0 not upgraded.\n"
                ),
                f"{len(unpacked)} not fully installed or removed.\n" if unpacked else "",
            ]
        is_asked = bool(plan.extra or plan.removed)
        if is_asked and not invocation.has("--yes") and not _is_silent(invocation):
            return Answer(
                stdout="".join([*lines, "Do you want to continue? [Y/n] Abort.\n"]), exit_code=1
            )
        return Answer(stdout="".join([*lines, *self._dpkg_lines(plan)]))

    def _dpkg_lines(self, plan: _Plan) -> Iterator[str]:
        """Carry out a plan.

        Yield dpkg's output with CRLF line ends, since apt-get runs dpkg in a terminal.
        """
        state = self._state
        lines: list[str] = []
        unpacked = [e for e in state.entries.values() if e.status is Status.UNPACKED]
        for name in plan.removed:
            lines += removing(state, name, is_purge=plan.is_purge)
        for package in plan.installed:
            lines += unpacking(state, package)
            state.unpack(package, is_automatic=package.name in plan.extra)
        for entry in [*(state.entries[p.name] for p in plan.installed), *unpacked]:
            state.configure(entry.package.name)
            lines.append(f"Setting up {entry.package.name} ({entry.package.version}) ...\n")
        for line in lines:
            yield line.replace("\n", "\r\n")


def _is_silent(invocation: Invocation) -> bool:
    """Return whether '-qq' is given, which implies '-y'."""
    return len(invocation.all("--quiet")) > 1


def _reading(invocation: Invocation) -> str:
    return "" if _is_silent(invocation) else _READING


def _names(title: str, names: Iterable[str], suffix: str = "") -> str:
    listed = " ".join(f"{name}{suffix}" for name in sorted(names))
    return f"{title}\n  {listed}\n" if listed else ""


def _unneeded_list(names: Sequence[str]) -> str:
    if not names:
        return ""
    is_one = len(names) == 1
    title = (
        "The following package was automatically installed and is no longer required:"
        if is_one
        else "The following packages were automatically installed and are no longer required:"
    )
    return f"{_names(title, names)}Use 'apt autoremove' to remove {'it' if is_one else 'them'}.\n"


def _unmet_list(unmet: Iterable[tuple[Package, list[tuple[str, str]]]]) -> str:
    lines = ["The following packages have unmet dependencies:\n"]
    for package, reasons in unmet:
        lines += [f" {package.name} : Depends: {needed} but it {why}\n" for needed, why in reasons]
    return "".join(lines)
