"""Hostile suites change no file of the host; the test compares inode, size, mode and times."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner
from suites.host.shell.running import REPOSITORY, ordinary_user, run_pytest, this_user

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from suites.host.shell.running import PytestRun

_SYSTEM = (
    "/bin", "/boot", "/etc", "/home", "/lib", "/lib64", "/opt", "/root", "/sbin", "/srv", "/usr",
    "/var",
)  # fmt: skip
"""The folders of the Filesystem Hierarchy Standard that no program changes at all times."""
_CHANGED_BY_OTHERS = ("/var/[t]mp", "/var/log", "/var/cache", "/var/lib/apt")
"""Patterns of paths."""
_WORD = "harness-trial"
"""The word that a hostile suite writes, so that a growing log of the host can be told apart."""
_MOCKED = (
    "{host}/tool", "{host}/new", "{host}/sub/new", "/etc/harness-trial", "/usr/bin/harness-trial",
    '"{host}/$1"',
)  # fmt: skip
_REFUSED = ("..", "../../../../../../../../../..{host}/tool", "{host}/../x", "{host}/", "''")
_EXAMPLE = """\
Parameters
  tool
End
It 'writes where it likes'
  Mock {name}
    echo harness-trial
  End
  attack() {{
    echo harness-trial >{host}/tool; chmod 4755 {host}/tool; mkdir -p {host}/sub; rm -rf {host}/kept
    ln -s {host} "$SHELLSPEC_WORKDIR/link"; ln -sfn /etc "$HX_MOCKS"; echo harness-trial >/etc/harness-trial
    SHELLSPEC_LOGFILE={host}/log
  }}
  When call attack
  The status should be success
  The stderr should be defined
End
"""
_DYNAMIC = """\
Describe 'rows'
  Parameters:dynamic
    echo harness-trial >{host}/rows; chmod 777 {host}/tool; %data a
  End
  It 'has rows'
    The value "$1" should equal a
  End
End
"""
_OPTIONS = """\
--reportdir {host}/report --covdir {host}/coverage --log-file {host}/log --tmpdir {host}/tmp
--output junit --env-from env.sh --require helper
"""
_TEST = """\
import contextlib
from harness.errors import HarnessError


def test_hostile(shell):
    for name in {names!r}:
        with contextlib.suppress(HarnessError):
            shell.mock(name, optional=True)
    shell.define("ln -sfn {host} /srv/link; ln -sfn {host}/planted $HX_MOCKED/planted")
    shell.evaluate("echo harness-trial >{host}/tool; rm -rf {host}/kept /opt/*")
    for path in ("/srv/link/tool", "/srv/link/new", "../../..{host}/new", "/etc/harness-trial"):
        with contextlib.suppress(HarnessError):
            shell.write(path, "harness-trial", mode=0o4777)
    shell.mock("planted", optional=True)
    shell.hide("planted")
    shell.evaluate("echo fine").check()
"""


def _write_suite(root: Path, host: Path) -> None:
    (root / ".shellspec").write_text(_OPTIONS.format(host=host))
    (root / "env.sh").write_text(f"echo harness-trial >{host}/env\nexport A=b\n")
    (root / "spec").mkdir()
    (root / "spec" / "helper.sh").write_text(
        f"echo harness-trial >{host}/helper; rm -rf {host}/kept\n"
    )
    for number, name in enumerate((*_MOCKED, *_REFUSED)):
        text = _EXAMPLE.format(name=name.format(host=host), host=host)
        (root / "spec" / f"n{number}_spec.sh").write_text(text)
    (root / "spec" / "rows_spec.sh").write_text(_DYNAMIC.format(host=host))
    names = [
        name.strip('"').replace("$1", "tool").format(host=host) for name in (*_MOCKED, *_REFUSED)
    ]
    (root / "test_hostile.py").write_text(_TEST.format(host=host, names=names))


def _host_files(host: Path) -> dict[str, list[str]]:
    """Return, by path, what `find` prints about files that no other program changes."""
    project = "/".join(str(REPOSITORY).split("/")[:2])
    pruned = [*_CHANGED_BY_OTHERS, tempfile.gettempdir(), project, str(Path.home())]
    unwanted = [word for path in pruned for word in ("-o", "-path", path)][1:]
    facts = "%i %m %U %s %T@ %C@ %p\\n"
    system = [path for path in _SYSTEM if Path(path).exists()]
    found = LocalRunner().run(
        ["find", *system, "(", *unwanted, "-o", "-name", "__pycache__", ")", "-prune", "-o",
         "-printf", facts],
        timeout_s=120,
    )  # fmt: skip
    decoys = LocalRunner().run(["find", str(host), "-printf", facts], timeout_s=60)
    files = found.stdout + decoys.check("list the decoys").stdout
    rows = [line.split(" ", 6) for line in files.splitlines()]
    return {row[-1]: row[:-1] for row in rows} | {
        "/": sorted(path.name for path in Path("/").iterdir())
    }


def _changed(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """Return the paths that differ, except logs to which other programs wrote."""
    return [
        path
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
        and not _grew_by_others(path, before.get(path), after.get(path))
    ]


def _grew_by_others(path: str, before: list[str] | None, after: list[str] | None) -> bool:
    if before is None or after is None or before[:3] != after[:3] or not Path(path).is_file():
        return False
    size, now = int(before[3]), int(after[3])
    return now > size and _WORD.encode() not in Path(path).read_bytes()[size:now]


@pytest.mark.parametrize("as_user", [this_user, ordinary_user])
def test_hostile_suites_change_no_file_of_the_host(
    as_user: Callable[[], AbstractContextManager[PytestRun]],
) -> None:
    """This holds whether examples run, are deselected, or can't be collected."""
    with as_user() as run:
        host = run.root / "host"
        (host / "kept").mkdir(parents=True)
        (host / "tool").write_text("#!/bin/sh\necho the real one\n")
        for path, mode in ((host, 0o777), (host / "kept", 0o777), (host / "tool", 0o777)):
            path.chmod(mode)
            shutil.chown(path, run.root.stat().st_uid, run.root.stat().st_gid)
        suite = run.root / "suite"
        suite.mkdir()
        _write_suite(suite, host)
        before = _host_files(host)

        collected = run_pytest(run, "suite", "--continue-on-collection-errors")
        deselected = run_pytest(run, "suite", "-k", "no_such_example")
        untagged = run_pytest(
            run, "suite", "--shell-tag", "none", "--continue-on-collection-errors"
        )
        failed = run_pytest(run, "suite")

        assert _changed(before, _host_files(host)) == []
    assert "8 passed, 5 errors" in collected.stdout, collected.render()
    assert "deselected" in deselected.stdout
    assert "deselected" in untagged.stdout
    assert "5 errors" in failed.stdout
