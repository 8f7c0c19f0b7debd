"""Hostile suites change no file of the host: compared by inode, size, mode and times."""

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

_CHANGED_BY_OTHERS = (
    "/proc", "/sys", "/dev", "/run", "/[t]mp", "/var/[t]mp", "/var/log", "/var/cache", "/var/lib/apt",
)  # fmt: skip
"""Patterns of paths."""
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
    echo mocked
  End
  attack() {{
    echo mine >{host}/tool; chmod 4755 {host}/tool; mkdir -p {host}/sub; rm -rf {host}/kept
    ln -s {host} "$SHELLSPEC_WORKDIR/link"; ln -sfn /etc "$HX_MOCKS"; echo x >/etc/harness-trial
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
    echo mine >{host}/rows; chmod 777 {host}/tool; %data a
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
    shell.evaluate("echo mine >{host}/tool; rm -rf {host}/kept /opt/*")
    for path in ("/srv/link/tool", "/srv/link/new", "../../..{host}/new", "/etc/harness-trial"):
        with contextlib.suppress(HarnessError):
            shell.write(path, "mine", mode=0o4777)
    shell.mock("planted", optional=True)
    shell.hide("planted")
    shell.evaluate("echo fine").check()
"""


def _write_suite(root: Path, host: Path) -> None:
    (root / ".shellspec").write_text(_OPTIONS.format(host=host))
    (root / "env.sh").write_text(f"echo mine >{host}/env\nexport A=b\n")
    (root / "spec").mkdir()
    (root / "spec" / "helper.sh").write_text(f"echo mine >{host}/helper; rm -rf {host}/kept\n")
    for number, name in enumerate((*_MOCKED, *_REFUSED)):
        text = _EXAMPLE.format(name=name.format(host=host), host=host)
        (root / "spec" / f"n{number}_spec.sh").write_text(text)
    (root / "spec" / "rows_spec.sh").write_text(_DYNAMIC.format(host=host))
    names = [
        name.strip('"').replace("$1", "tool").format(host=host) for name in (*_MOCKED, *_REFUSED)
    ]
    (root / "test_hostile.py").write_text(_TEST.format(host=host, names=names))


def _host_files(host: Path) -> set[str]:
    """Return a line for each file of the host that no other program should change meanwhile."""
    project = "/".join(str(REPOSITORY).split("/")[:2])
    pruned = [*_CHANGED_BY_OTHERS, tempfile.gettempdir(), project, str(Path.home())]
    unwanted = [word for path in pruned for word in ("-o", "-path", path)][1:]
    found = LocalRunner().run(
        ["find", "/", "(", *unwanted, "-o", "-name", "__pycache__", ")", "-prune", "-o",
         "-printf", "%i %s %m %U %T@ %C@ %p\\n"],
        timeout_s=120,
    )  # fmt: skip
    decoys = LocalRunner().run(
        ["find", str(host), "-printf", "%i %s %m %U %T@ %C@ %p\\n"], timeout_s=60
    )
    return set(found.stdout.splitlines()) | set(
        decoys.check("list the decoys").stdout.splitlines()
    )


@pytest.mark.parametrize("as_user", [this_user, ordinary_user])
def test_hostile_suites_leave_the_files_of_the_host_as_they_were(
    as_user: Callable[[], AbstractContextManager[PytestRun]],
) -> None:
    """Whether their examples run, are deselected, or are not even collected."""
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

        assert sorted(_host_files(host) ^ before) == []
    assert "8 passed, 5 errors" in collected.stdout, collected.render()
    assert "deselected" in deselected.stdout
    assert "deselected" in untagged.stdout
    assert "5 errors" in failed.stdout
