"""Namespaces that give a campaign its own processes, mounts, network and `/tmp`.

In the namespaces, a campaign finds everything that a try leaves, and sees no effects of other work
on the host. The kernel ends the processes and the mounts when the campaign ends for any reason.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.provisioning.command import CommandResult

_INSIDE = "HARNESS_ENDURANCE"
#: The size limit of `/tmp`, a file system in memory; only written pages take memory.
SIZE = "4g"
_OWN = "/tmp"  # noqa: S108 - in its own file system
_SET_UP = (
    "mount -t tmpfs -o mode=1777,size={size} endurance {own} && "
    "mount -t tmpfs -o mode=755 endurance /run/lock && "
    'ip link set lo up && mkdir -m 700 {own}/home && "$@"; exit $?'
)
#: The part of a file's name that differs between runs.
_RANDOM = re.compile(r"(?<=tmp)[a-z0-9_]{8}|[0-9a-f][0-9a-f-]{6,}[0-9a-f]|\d+")


def are_entered() -> bool:
    """Return whether this process is in the namespaces of a campaign."""
    return _INSIDE in os.environ


def enter(argv: list[str]) -> NoReturn:
    """Replace this process by `argv` in new namespaces."""
    words = [
        "unshare",
        "--mount",
        "--pid",
        "--net",
        "--ipc",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    if os.geteuid() != 0:
        words += ["--user", "--map-root-user"]
    environment = {
        **os.environ,
        _INSIDE: str(users_cache()),
        "HOME": f"{_OWN}/home",
        "XDG_CACHE_HOME": f"{_OWN}/home/.cache",
        "TMPDIR": _OWN,
    }
    # The shell is the first process in the namespace, and reaps processes whose parents have ended.
    os.execvpe(  # noqa: S606
        "unshare",
        [*words, "sh", "-c", _SET_UP.format(size=SIZE, own=_OWN), "sh", *argv],
        environment,
    )


def users_cache() -> Path:
    """Return the cache of the user who started the campaign."""
    if are_entered():
        return Path(os.environ[_INSIDE])
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "gpu-node-harness"


def processes() -> dict[int, str]:
    """Return the command lines of all processes except this process and the namespace's first process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        number = int(folder.name)
        if number in {1, os.getpid()}:
            continue
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        # A zombie uses no resource; its parent is listed too if the parent is alive.
        if state != "Z":
            found[number] = line.strip() or "?"
    return found


@dataclass(frozen=True)
class Inventory:
    """Files, mounts and listening sockets, by their names without numbers."""

    things: Counter[str]

    @classmethod
    def take(cls, *folders: Path) -> Inventory:
        names: list[str] = []
        for folder in folders:
            # A lock file is empty and is never removed, since a waiting process may have it open.
            names += (f"file {path}" for path in _files(folder) if path.suffix != ".lock")
        names += (f"mount {line.split()[4]}" for line in _lines("/proc/self/mountinfo"))
        names += (
            f"{kind} listener {line.split()[1]}"
            for kind in ("tcp", "tcp6")
            for line in _lines(f"/proc/net/{kind}")[1:]
            if line.split()[3] == "0A"
        )
        names += (
            f"socket {line.split()[7]}"
            for line in _lines("/proc/net/unix")[1:]
            if len(line.split()) > 7 and line.split()[7].startswith("/")
        )
        return cls(Counter(_RANDOM.sub("*", name) for name in names))

    def beyond(self, sound: Inventory) -> list[str]:
        """Return the names that `sound` lacks or has fewer times, each with the difference."""
        return [
            f"{count} x {name}" for name, count in sorted((self.things - sound.things).items())
        ]

    def merged(self, other: Inventory) -> Inventory:
        return Inventory(self.things | other.things)


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines()


def _files(folder: Path) -> Iterable[Path]:
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))


def run_checked(*argv: str, timeout_s: float = 60.0) -> CommandResult:
    """Run a command that the campaign itself needs; raises HarnessError if it fails."""
    return LocalRunner().run(list(argv), timeout_s=timeout_s).check(argv[0])
