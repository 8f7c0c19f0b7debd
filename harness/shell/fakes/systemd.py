"""A stateful fake of systemctl, with systemd's units."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.shell.fakes.arguments import checks_arguments
from harness.shell.fakes.fake import Fake
from harness.shell.fakes.invocation import (
    Syntax,
    expect_no_pattern,
    unknown_subcommand,
    unknown_use,
)
from harness.shell.fakes.unit_files import UnitFiles, has_changed, link_folders, settings
from harness.shell.fakes.unit_lists import ONLY_FOR_LISTS, list_unit_files, list_units
from harness.shell.fakes.units import (
    NOT_MEANT_TO_BE_ENABLED,
    ActiveState,
    Unit,
    full_name,
    properties,
    render_status,
)
from harness.shell.mocks.commands import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.shell.fakes.fake import Handler
    from harness.shell.fakes.invocation import Invocation
    from harness.shell.mocks.commands import Call

_MASK = "/dev/null"
_VERSION = (
    "systemd 252 (252.39-1~deb12u2)\n"
    "+PAM +AUDIT +SELINUX +APPARMOR +IMA +SMACK +SECCOMP +GCRYPT -GNUTLS +OPENSSL +ACL "
    "+BLKID +CURL +ELFUTILS +FIDO2 +IDN2 -IDN +IPTC +KMOD +LIBCRYPTSETUP +LIBFDISK +PCRE2 "
    "-PWQUALITY +P11KIT +QRENCODE +TPM2 +BZIP2 +LZ4 +XZ +ZLIB +ZSTD -BPF_FRAMEWORK "
    "-XKBCOMMON +UTMP +SYSVINIT default-hierarchy=unified\n"
)
_LISTS = ("list-units", "list-unit-files")
_WITHOUT_NAMES = {
    "daemon-reload", "daemon-reexec", "reset-failed", "is-system-running", *_LISTS,
}  # fmt: skip

_SYNTAX = Syntax(
    options=(
        "-q,--quiet",
        "--now",
        "--no-block",
        "--no-pager",
        "--no-legend",
        "-l,--full",
        "-n,--lines=",
        "-p,--property=",
        "--value",
        "-P=",
        "--system",
        "--no-ask-password",
        "--version",
        *ONLY_FOR_LISTS,
    )
)


class Systemd(Fake):
    """A fake of systemctl.

    The fake has the units in `units`, and the units whose unit files the code under test writes.
    """

    @checks_arguments
    def __init__(self, units: Mapping[str, Unit] | None = None) -> None:
        super().__init__()
        self._files = UnitFiles(self)
        self._units = {full_name(name): unit for name, unit in (units or {}).items()}
        for unit in self._units.values():
            unit.was_active = unit.is_active
        self._written: set[str] = set()
        self.reloads = 0
        self._verbs: dict[str, Callable[[Invocation, Sequence[str]], Answer]] = {
            "start": lambda i, names: self._jobs(i, names, "start"),
            "stop": lambda i, names: self._jobs(i, names, "stop"),
            "restart": lambda i, names: self._jobs(i, names, "restart"),
            "try-restart": lambda i, names: self._jobs(i, names, "try-restart"),
            "condrestart": lambda i, names: self._jobs(i, names, "try-restart"),
            "reload": lambda i, names: self._jobs(i, names, "reload"),
            "reload-or-restart": lambda i, names: self._jobs(i, names, "reload-or-restart"),
            "enable": self._enable,
            "disable": self._disable,
            "mask": self._mask,
            "unmask": self._unmask,
            "reset-failed": self._reset_failed,
            "daemon-reload": self._daemon_reload,
            "daemon-reexec": self._daemon_reload,
            "is-system-running": self._is_system_running,
            "is-active": self._is_active,
            "is-failed": self._is_failed,
            "is-enabled": self._is_enabled,
            "show": self._show,
            "cat": self._cat,
            "status": self._status,
            "list-units": lambda i, names: list_units(i, self._all_units(), names),
            "list-unit-files": lambda i, names: list_unit_files(i, self._all_units(), names),
        }

    @property
    @override
    def commands(self) -> Mapping[str, Handler]:
        return {"systemctl": self._systemctl}

    def unit(self, name: str) -> Unit:
        """Return a unit; a name without a suffix means the unit with the suffix `.service`.

        Raises KeyError if there is no such unit.
        """
        found = self._find(full_name(name))
        if found is None:
            known = ", ".join(self._units) or "none"
            raise KeyError(f"systemd has no unit '{full_name(name)}'; it has {known}.")
        return found

    def _find(self, name: str) -> Unit | None:
        """Return a unit by its full name, with the settings of a unit file that the code under test wrote."""
        found = self._files.find(name)
        unit = self._units.get(name)
        if found is None:
            if name in self._written and unit is not None and not unit.is_active:
                del self._units[name]
                return None
            return unit
        folder, text = found
        if unit is None:
            unit = self._units[name] = Unit(text=text, folder=folder)
            self._written.add(name)
        unit.text, unit.folder = text, folder
        return unit

    def _systemctl(self, call: Call) -> Answer:
        invocation = _SYNTAX.parse(call)
        if invocation.has("--version"):
            return Answer(stdout=_VERSION)
        if not invocation.operands and not invocation.has("--failed"):
            raise unknown_use(call, "the fake of 'systemctl' needs a subcommand")
        verb, *names = invocation.operands or ("list-units",)
        if verb not in self._verbs:
            raise unknown_subcommand(call, verb, tuple(self._verbs))
        if not names and verb not in _WITHOUT_NAMES:
            raise unknown_use(call, f"the fake of 'systemctl {verb}' needs the name of a unit")
        if verb in _LISTS:
            return self._verbs[verb](invocation, names)
        for option in [each.rstrip("=").split(",")[-1] for each in ONLY_FOR_LISTS]:
            if invocation.has(option):
                raise unknown_use(
                    call, f"the fake of 'systemctl {verb}' does not know the option '{option}'"
                )
        expect_no_pattern(call, names)
        return self._verbs[verb](invocation, [full_name(name) for name in names])

    # Jobs

    def _jobs(self, invocation: Invocation, names: Sequence[str], verb: str) -> Answer:
        errors: list[str] = []
        exit_code = 0
        for name in names:
            code, error = self._job(name, verb, is_blocking=not invocation.has("--no-block"))
            exit_code = code or exit_code
            errors.append(error)
        return Answer(stderr="".join(errors), exit_code=exit_code)

    def _job(self, name: str, verb: str, *, is_blocking: bool) -> tuple[int, str]:
        """Run one job; return its exit code and the text that systemctl prints."""
        unit = self._find(name)
        if unit is None:
            state = "loaded" if verb == "stop" else "found"
            return 5, f"Failed to {verb} {name}: Unit {name} not {state}.\n"
        if unit.is_masked and verb != "stop":
            return 1, f"Failed to {verb} {name}: Unit {name} is masked.\n"
        warning = self._load(name, unit)
        can_reload = bool(settings(unit.text, "ExecReload"))
        if verb == "reload" and not can_reload:
            return 3, (
                f"{warning}Failed to reload {name}: Job type reload is not applicable for unit "
                f"{name}.\n"
            )
        if verb == "reload" and not unit.is_active and is_blocking:
            return 1, f"{warning}{name} is not active, cannot reload.\n"
        if verb == "stop":
            unit.is_active = False
        elif _starts(verb, unit, can_reload=can_reload) and not self._start(unit) and is_blocking:
            return 1, (
                f"{warning}Job for {name} failed because the control process exited with error "
                f'code.\nSee "systemctl status {name}" and "journalctl -xeu {name}" for '
                "details.\n"
            )
        return 0, warning

    def _load(self, name: str, unit: Unit) -> str:
        """Load a unit that is not loaded; return systemctl's warning if the unit's files have changed."""
        found = self._files.parts(name, unit.folder, unit.text)
        if not (unit.is_active or unit.is_failed):
            unit.loaded = found
        elif not unit.loaded:  # the unit was active before the code under test ran
            unit.loaded = {f"{unit.folder}/{name}": unit.text}
        if not has_changed(unit.loaded, found):
            return ""
        return (
            f"Warning: The unit file, source configuration file or drop-ins of {name} changed on "
            "disk. Run 'systemctl daemon-reload' to reload units.\n"
        )

    def _start(self, unit: Unit) -> bool:
        unit.is_active = unit.is_failed = False
        unit.was_active = True
        if unit.start_failures > 0:
            unit.start_failures -= 1
            unit.is_failed = True
            return False
        unit.is_active = not unit.is_oneshot or unit.remains_after_exit
        unit.starts += 1
        unit.running_text = "".join(unit.loaded.values())
        if unit.on_start is not None:
            unit.on_start()
        return True

    # Unit files

    def _enable(self, invocation: Invocation, names: Sequence[str]) -> Answer:
        lines: list[str] = []
        units: list[tuple[str, Unit]] = []
        for name in names:
            unit = self._find(name)
            if unit is None:
                return _failed(f"Failed to enable unit: Unit file {name} does not exist.")
            if unit.is_masked:
                path = f"/etc/systemd/system/{name}"
                return _failed(f"Failed to enable unit: Unit file {path} is masked.")
            units.append((name, unit))
        if units and not any(link_folders(unit.text) for _, unit in units):
            lines.append(NOT_MEANT_TO_BE_ENABLED)
        for name, unit in units:
            for folder in link_folders(unit.text):
                link = f"/etc/systemd/system/{folder}/{name}"
                if not unit.is_enabled:
                    lines += self._files.link(link, f"{unit.folder}/{name}")
            unit.is_enabled = bool(link_folders(unit.text))
        return self._now(invocation, names, "start", lines)

    def _disable(self, invocation: Invocation, names: Sequence[str]) -> Answer:
        lines: list[str] = []
        for name in names:
            if self._find(name) is None:
                return _failed(f"Failed to disable unit: Unit file {name} does not exist.")
        for name in names:
            unit = self.unit(name)
            if unit.is_enabled:
                for folder in link_folders(unit.text):
                    lines += self._files.unlink(f"/etc/systemd/system/{folder}/{name}")
            unit.is_enabled = False
        return self._now(invocation, names, "stop", lines)

    def _mask(self, invocation: Invocation, names: Sequence[str]) -> Answer:
        lines: list[str] = []
        for name in names:
            unit = self._find(name)
            path = f"/etc/systemd/system/{name}"
            if unit is None:
                lines.append(f"Unit {name} does not exist, proceeding anyway.\n")
                unit = self._units[name] = Unit(text="")
            elif unit.folder == str(PurePosixPath(path).parent):
                return _failed(f"Failed to mask unit: File {path} already exists.")
            if not unit.is_masked:
                lines += self._files.link(path, _MASK)
            unit.is_masked = True
        return self._now(invocation, names, "stop", lines)

    def _unmask(self, invocation: Invocation, names: Sequence[str]) -> Answer:
        lines: list[str] = []
        for name in names:
            unit = self._find(name)
            if unit is None:
                lines.append(f"Unit {name} does not exist, proceeding anyway.\n")
            elif unit.is_masked:
                lines += self._files.unlink(f"/etc/systemd/system/{name}")
                unit.is_masked = False
                if not unit.text:
                    del self._units[name]
        return self._now(invocation, (), "", lines)

    def _now(
        self, invocation: Invocation, names: Sequence[str], verb: str, lines: Sequence[str]
    ) -> Answer:
        """Reload the unit files, as systemctl does after a change; run jobs if `--now` is given."""
        self._read_units()
        shown = "" if invocation.has("--quiet") else "".join(lines)
        if not invocation.has("--now"):
            return Answer(stderr=shown)
        answer = self._jobs(invocation, names, verb)
        return Answer(stderr=shown + answer.stderr, exit_code=answer.exit_code)

    def _reset_failed(self, _: Invocation, names: Sequence[str]) -> Answer:
        for name in names:
            if self._find(name) is None:
                return _failed(
                    f"Failed to reset failed state of unit {name}: Unit {name} not loaded."
                )
        for name in names or tuple(self._units):
            unit = self._find(name)
            if unit is not None:
                unit.is_failed = False
        return Answer()

    def _daemon_reload(self, _: Invocation, __: Sequence[str]) -> Answer:
        self.reloads += 1
        self._read_units()
        return Answer()

    def _read_units(self) -> None:
        for name in list(self._units):
            unit = self._find(name)
            if unit is not None and (unit.is_active or unit.is_failed):
                unit.loaded = self._files.parts(name, unit.folder, unit.text)

    # Queries

    def _is_system_running(self, invocation: Invocation, _: Sequence[str]) -> Answer:
        has_failed = any(unit.is_failed for unit in self._units.values())
        state = "degraded" if has_failed else "running"
        return _states(invocation, [state], not has_failed, 1)

    def _is_active(self, invocation: Invocation, names: Sequence[str]) -> Answer:
        states = [self._state(name) for name in names]
        return _states(invocation, [s.value for s in states], ActiveState.ACTIVE in states, 3)

    def _is_failed(self, invocation: Invocation, names: Sequence[str]) -> Answer:
        states = [self._state(name) for name in names]
        return _states(invocation, [s.value for s in states], ActiveState.FAILED in states, 1)

    def _state(self, name: str) -> ActiveState:
        unit = self._find(name)
        return ActiveState.INACTIVE if unit is None else unit.state

    def _is_enabled(self, invocation: Invocation, names: Sequence[str]) -> Answer:
        states: list[str] = []
        for name in names:
            unit = self._find(name)
            if unit is None:
                return _failed(
                    f"Failed to get unit file state for {name}: No such file or directory"
                )
            states.append(unit.file_state)
        return _states(invocation, states, bool({"enabled", "static"} & set(states)), 1)

    def _show(self, invocation: Invocation, names: Sequence[str]) -> Answer:
        given = [*invocation.all("--property"), *invocation.all("-P")]
        wanted = [name for names_given in given for name in names_given.split(",")]
        blocks: list[str] = []
        for name in names:
            known = properties(name, self._find(name))
            for missing in [p for p in wanted if p not in known]:
                raise unknown_use(
                    invocation.call,
                    f"the fake does not know the property '{missing}'; it knows "
                    f"{', '.join(known)}",
                )
            found = [(key, value) for key, value in known.items() if not wanted or key in wanted]
            is_value = invocation.has("--value") or invocation.has("-P")
            blocks.append(
                "".join(f"{value}\n" if is_value else f"{key}={value}\n" for key, value in found)
            )
        return Answer(stdout="\n".join(blocks))

    def _cat(self, _: Invocation, names: Sequence[str]) -> Answer:
        shown: list[str] = []
        for name in names:
            unit = self._find(name)
            if unit is None:
                return _failed(f"No files found for {name}.")
            shown += [
                f"# {path}\n{text}"
                for path, text in self._files.parts(name, unit.folder, unit.text).items()
            ]
        return Answer(stdout="\n".join(shown))

    def _status(self, _: Invocation, names: Sequence[str]) -> Answer:
        shown: list[str] = []
        exit_code = 0
        for name in names:
            unit = self._find(name)
            if unit is None:
                return _failed(f"Unit {name} could not be found.", exit_code=4)
            shown.append(render_status(name, unit))
            exit_code = exit_code or (0 if unit.is_active else 3)
        return Answer(stdout="\n".join(shown), exit_code=exit_code)

    def _all_units(self) -> dict[str, Unit]:
        found = {name: self._find(name) for name in {*self._units, *self._files.names()}}
        return {name: unit for name, unit in found.items() if unit is not None}


def _starts(verb: str, unit: Unit, *, can_reload: bool) -> bool:
    """Return whether a job starts or restarts a unit, given the unit's present state."""
    return {
        "start": not unit.is_active,
        "restart": True,
        "try-restart": unit.is_active,
        "reload": False,
        "reload-or-restart": not can_reload or not unit.is_active,
    }[verb]


def _failed(message: str, *, exit_code: int = 1) -> Answer:
    return Answer(stderr=f"{message}\n", exit_code=exit_code)


def _states(
    invocation: Invocation, states: Sequence[str], is_met: object, exit_code: int
) -> Answer:
    shown = "" if invocation.has("--quiet") else "".join(f"{state}\n" for state in states)
    return Answer(stdout=shown, exit_code=0 if is_met else exit_code)
