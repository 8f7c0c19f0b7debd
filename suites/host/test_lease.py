"""Leased folders and locks are released when the process that holds them dies."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.lease import (
    sweep,
    try_exclusive,
)
from harness.provisioning.command import PIPE, spawn

_HOLDER = """\
import pathlib, sys
from harness.lease import leased_folder
with leased_folder(pathlib.Path(sys.argv[1]), prefix="run") as folder:
    (folder / "disk").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_sweep_removes_the_leased_folder_of_a_killed_process(tmp_path: Path) -> None:
    process = spawn([sys.executable, "-c", _HOLDER, str(tmp_path)], stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().decode().strip())

    while_alive = sweep(tmp_path)
    process.kill()
    process.communicate()

    assert while_alive == []
    assert sweep(tmp_path) == [folder]
    assert not folder.exists()


_SHARER = """
import sys
from pathlib import Path
from harness.lease import hold_shared
from harness.provisioning.wait import Deadline
with hold_shared(Path(sys.argv[1]), deadline=Deadline.after(9)):
    print("shared", flush=True)
    sys.stdin.read()
"""


def test_shared_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    path = tmp_path / "used"
    path.touch()
    process = spawn([sys.executable, "-c", _SHARER, str(path)], stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"shared\n"

    with try_exclusive(path) as while_alive:
        pass
    process.kill()
    process.communicate()

    with try_exclusive(path) as afterwards:
        pass
    assert (while_alive, afterwards) == (False, True)
