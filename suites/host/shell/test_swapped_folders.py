"""The harness never leaves the throw-away root while code keeps replacing a folder by a link."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from suites.host.shell.running import ordinary_user, run_pytest, this_user

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from suites.host.shell.running import PytestRun

_SWAP = """\
swap() {{
  rm -r {host}/*
  setsid python3 - "$HX_MOCKED" <<'PY' >/dev/null 2>&1 &
import ctypes, os, sys
libc = ctypes.CDLL(None)
names = []
for name in ("/srv/t", "/var/lib/dkms", "/etc/systemd", sys.argv[1]):
    os.makedirs(name, exist_ok=True)
    os.symlink("{host}", name + ".link")
    names.append((os.fsencode(name), os.fsencode(name + ".link")))
open("/srv/swapping", "w").close()
while True:
    for name, link in names:
        libc.syscall({renameat2}, -100, name, -100, link, 2)
PY
  while [ ! -e /srv/swapping ]; do sleep 0.01; done
}}
"""
_TEST = """\
import contextlib
import pytest
from harness.errors import HarnessError
from harness.shell import fakes


@pytest.mark.shell_time("real")
def test_race(shell):
    shell.source("swap.sh")
    shell.allow("python3")
    shell.call("swap").check()
    systemd = fakes.Systemd({{"a": fakes.Unit(text="[Install]\\\\nWantedBy=multi-user.target\\\\n")}})
    with contextlib.suppress(HarnessError):
        systemd.install(shell)
    done = 0
    for number in range({rounds}):
        for act in (
            lambda: shell.write(f"/srv/t/new{{number}}", "of the harness", mode=0o4755),
            lambda: shell.write("/srv/t/file", "of the harness", mode=0o4755),
            lambda: shell.files.make_folder(f"/srv/t/folder{{number}}/below"),
            lambda: shell.files.link(f"/srv/t/link{{number}}", "/etc"),
            lambda: shell.files.remove("/srv/t/file"),
            lambda: shell.files.remove_tree("/srv/t/tree"),
            lambda: shell.warm_shell.write_mocks([f"mock{{number}}"]),
            lambda: systemd.write_file(f"/var/lib/dkms/new{{number}}", "of a fake"),
            lambda: systemd.files("/etc").link(f"/etc/systemd/link{{number}}", "/etc"),
        ):
            with contextlib.suppress(HarnessError):
                act()
                done += 1
        assert shell.files.read("/srv/t/secret") is None
        assert "tree" not in shell.files.names("/srv/t")
    assert done > {rounds}
"""


@pytest.mark.parametrize("as_user", [this_user, ordinary_user])
def test_folder_that_code_swaps_with_a_link_never_leads_to_files_of_the_host(
    as_user: Callable[[], AbstractContextManager[PytestRun]],
) -> None:
    with as_user() as run:
        host = run.root / "host"
        (host / "tree").mkdir(parents=True)
        (host / "file").write_text("of the host")
        (host / "secret").write_text("of the host")
        user = run.root.stat()
        for path in (host, host / "tree", host / "file", host / "secret"):
            path.chmod(0o777)
            shutil.chown(path, user.st_uid, user.st_gid)
        number = {"x86_64": 316, "aarch64": 276}[os.uname().machine]
        (run.root / "swap.sh").write_text(_SWAP.format(host=host, renameat2=number))
        (run.root / "test_race.py").write_text(_TEST.format(rounds=400))

        result = run_pytest(run, "test_race.py")

        assert "1 passed" in result.stdout, result.render()
        assert sorted(path.name for path in host.rglob("*")) == ["file", "secret", "tree"]
        assert (host / "file").read_text() == "of the host"
        assert (host / "file").stat().st_mode & 0o7777 == 0o777
