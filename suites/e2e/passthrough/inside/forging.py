"""Lets users forge files of the GPU pool, and runs root's commands after each forgery.

usage: python3 -m suites.e2e.passthrough.inside.forging PLACE USER...

PLACE is a `Place` as JSON. For each forgery, a JSON object is written to stdout: the output and
the exit codes of root's commands, and what these commands changed. The last line has the peak
memory of this process, which runs all commands.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import main as run_harness
from harness.provisioning.command import PIPE, end, spawn
from suites.fakes.pool_forgeries import FORGERIES, Forgery, Kept, Place

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEVICES = Path("/sys/bus/pci/devices")
#: The time limit of root's commands: a command that waits for a FIFO would never end.
_COMMANDS_S = 120
_THEN_WAIT = "\nprint('done', flush=True)\ninput()\n"


@contextlib.contextmanager
def forged(script: str, user: str) -> Iterator[None]:
    """Run a script as a user; files that the script opens stay open until the context ends."""
    process = spawn(
        ["runuser", "-u", user, "--", "python3", "-c", script + _THEN_WAIT],
        stdin=PIPE,
        stdout=PIPE,
        stderr=None,
    )
    try:
        if process.stdout is None or process.stdout.readline().strip() not in {"done", b"done"}:
            raise RuntimeError(f"The script failed:\n{script}")
        yield
    finally:
        end(process)


def kept(kind: Kept, place: Place) -> object:
    match kind:
        case Kept.ROOTS_FILE:
            secret = Path(place.secret)
            etc = [
                (str(each), state.st_ino, state.st_mode, state.st_uid, state.st_mtime_ns)
                for each in sorted(Path("/etc").rglob("*"))
                for state in (each.lstat(),)
            ]
            return secret.read_text(), secret.stat().st_mode, secret.stat().st_uid, etc
        case Kept.DRIVERS:
            return {
                each.name: (
                    (each / "driver").resolve().name if (each / "driver").exists() else None,
                    (each / "driver_override").read_text(),
                )
                for each in _DEVICES.iterdir()
            }
        case Kept.QUARANTINES:
            return sorted(each.name for each in Path(place.pool).glob("quarantine-*"))
        case Kept.FILES:
            return sorted((each.name, each.lstat().st_ino) for each in Path(place.pool).iterdir())


def of_root(*arguments: str) -> tuple[int | str, str]:
    """Run `harness gpu host …`; return its exit code, or the exception, and its output."""
    printed = io.StringIO()
    signal.alarm(_COMMANDS_S)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            return run_harness(["gpu", "host", *arguments]), printed.getvalue()
    except BaseException as error:
        return repr(error), printed.getvalue()
    finally:
        signal.alarm(0)


def tried(forgery: Forgery, place: Place, user: str) -> dict[str, object]:
    """Forge the files, run root's commands, and empty the pool's folder."""
    began = time.monotonic()
    with forged(place.script(forgery), user):
        before = {kind: kept(kind, place) for kind in forgery.unchanged}
        answers = [of_root("restore"), of_root("ls")]
        changed = [kind.name for kind in forgery.unchanged if kept(kind, place) != before[kind]]
    for each in Path(place.pool).iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()
    return {
        "name": forgery.name,
        "user": user,
        "codes": [code for code, _ in answers],
        "printed": "".join(text for _, text in answers),
        "changed": changed,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    place, users = Place(**json.loads(sys.argv[1])), sys.argv[2:]
    signal.signal(signal.SIGALRM, _give_up)
    for number, forgery in enumerate(FORGERIES):
        say(tried(forgery, place, users[number % len(users)]))
    # The peak from getrusage would include the memory of the process that started this process.
    status = Path("/proc/self/status").read_text()
    say({"peak_mib": int(status.partition("VmHWM:")[2].split()[0]) >> 10})


def _give_up(_number: int, _frame: object) -> None:
    raise TimeoutError(f"it took more than {_COMMANDS_S} s")


def say(answer: dict[str, object]) -> None:
    os.write(1, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main()
