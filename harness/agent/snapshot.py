"""A snapshot of the node's state: kernel, modules, PCI functions, mounts, units and paths.

The host parses it (`machine.channels.node_snapshot`) and compares two of them
(`evidence.state_diff`), to test what an action changes on a node, such as a second boot.
"""

from __future__ import annotations

import json
import os
import stat

from .commands import CapturedOutput, Command
from .jobs import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .jobs import Answers

_UNITS_S = 60.0
#: The digest is included for files up to this size.
_DIGEST_BYTES = 1 << 20
#: The limit of paths; the answer says if there are more.
MOST_PATHS = 20_000
_PATHS_A_ROUND = 50
_UNIT_KEYS = ("unit", "load", "active", "sub")
_PCI = "/sys/bus/pci/devices"


class Snapshot(Job):
    """Collects the state in small steps, so that other requests make progress."""

    def __init__(self, answers: Answers, request: int, patterns: list[str]) -> None:
        super().__init__(answers, request)
        self._found: dict[str, object] = {}
        self._work = self._gather(patterns)
        self._units: Command | None = None
        self._is_over = False
        try:
            units = Command(
                answers.loop,
                answers.processes,
                CapturedOutput(self._on_units),
                [
                    *("systemctl", "list-units", "--all", "--full", "--no-pager"),
                    "--output=json",
                ],
                env={"LC_ALL": "C"},
                limit_s=_UNITS_S,
                stdin=None,
            )
            if units.is_running:
                self._units = units
        except OSError as error:
            self._found["units"], self._found["units_trouble"] = None, str(error)
        answers.loop.call_soon(self._go_on)

    def _on_units(self, exit_code: int, stdout: bytes) -> None:
        self._units = None
        if exit_code == 0:
            self._found["units"] = parse_units(stdout.decode(errors="replace"))
        else:
            self._found["units"] = None
            self._found["units_trouble"] = f"systemctl ended with exit code {exit_code}"
        self._finish_if_done()

    def _go_on(self) -> None:
        if self._is_over:
            return
        try:
            for _ in self._work:
                self.answers.loop.call_soon(self._go_on)
                return
        except Exception as error:
            self.fail(error)
            return
        self._found["is_whole"] = True
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not self._is_over and "is_whole" in self._found and "units" in self._found:
            self.finish(self._found)

    def _gather(self, patterns: list[str]) -> Iterator[None]:
        found = self._found
        found["kernel"] = os.uname().release
        found["boot_id"] = _text("/proc/sys/kernel/random/boot_id")
        found["modules"] = [line.split()[0] for line in _text("/proc/modules").splitlines()]
        found["mounts"] = [parse_mount(line) for line in _text("/proc/self/mounts").splitlines()]
        yield
        functions: list[dict[str, object]] = []
        found["pci"] = functions
        for slot in sorted(_names(_PCI)):
            functions.append(pci_function(f"{_PCI}/{slot}", slot))
            yield
        paths: dict[str, object] = {}
        found["paths"] = paths
        found["has_more_paths"] = False
        for number, path in enumerate(_matches(patterns)):
            if number >= MOST_PATHS:
                found["has_more_paths"] = True
                return
            state = path_state(path)
            if state is not None:
                paths[path] = state
            if number % _PATHS_A_ROUND == 0:
                yield

    def drop(self) -> None:
        self._is_over = True
        units, self._units = self._units, None
        if units is not None:
            units.kill()


def parse_units(text: str) -> list[dict[str, str]]:
    """Parse `systemctl list-units`, as JSON or as systemd before 246 prints it."""
    try:
        rows = [[str(unit.get(key, "")) for key in _UNIT_KEYS] for unit in json.loads(text)]
    except ValueError:
        lines = (line.replace("●", " ").split() for line in text.splitlines())
        rows = [words[:4] for words in lines if len(words) >= 4 and "." in words[0]]
    return [dict(zip(("name", "load", "active", "sub"), row, strict=True)) for row in rows]


def parse_mount(line: str) -> dict[str, str]:
    """Parse a line of `/proc/self/mounts`, where spaces are octal escapes."""
    source, target, kind, options = (
        word.encode("latin-1", "replace").decode("unicode_escape") if "\\" in word else word
        for word in line.split(" ")[:4]
    )
    return {"source": source, "target": target, "kind": kind, "options": options}


def pci_function(folder: str, slot: str) -> dict[str, object]:
    """Read a PCI function from its folder in sysfs."""
    try:
        driver: str | None = os.path.basename(os.readlink(f"{folder}/driver"))
    except OSError:
        driver = None
    state: dict[str, object] = {"slot": slot, "driver": driver}
    for name, file in (("vendor", "vendor"), ("device", "device"), ("class_code", "class")):
        state[name] = _text(f"{folder}/{file}").removeprefix("0x")
    return state


def path_state(path: str) -> dict[str, object] | None:
    """Return the state of `path`, or None if it no longer exists."""
    try:
        found = os.lstat(path)
        state: dict[str, object] = {
            "kind": _kind(found.st_mode),
            "mode": stat.S_IMODE(found.st_mode),
            "size": found.st_size,
            "mtime_ns": found.st_mtime_ns,
        }
        if stat.S_ISLNK(found.st_mode):
            state["target"] = os.readlink(path)
        elif stat.S_ISREG(found.st_mode) and found.st_size <= _DIGEST_BYTES:
            state["sha256"] = _digest(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return {"kind": "?", "mode": 0, "size": 0, "mtime_ns": 0, "trouble": str(error)}
    return state


def _kind(mode: int) -> str:
    # The letter of `ls -l`, with the 'f' that `find` has for a file.
    letter = stat.filemode(mode)[0]
    return "f" if letter == "-" else letter


def _digest(path: str) -> str | None:
    import hashlib  # noqa: PLC0415 - slow to import, and needed here alone

    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return hashlib.sha256(os.read(fd, _DIGEST_BYTES + 1)).hexdigest()
    finally:
        os.close(fd)


def _matches(patterns: list[str]) -> Iterator[str]:
    import glob  # noqa: PLC0415 - slow to import, and needed here alone

    seen: set[str] = set()
    for pattern in patterns:
        for path in glob.iglob(pattern, recursive=True):
            if path not in seen:
                seen.add(path)
                yield path


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
