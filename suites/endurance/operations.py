"""Operations that a campaign disturbs: commands as people start them, with small local inputs."""

from __future__ import annotations

import contextlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.registry import RegistryLog
from harness.registry.proxy import RegistryProxy
from harness.registry.server import ensure_registry_program, running_registry
from suites.endurance.programs import checkpoint
from suites.endurance.surroundings import users_cache
from suites.unit.image.cloud_image_folder import published_files
from suites.unit.image.imageserver import serving
from suites.unit.timeline.folders import a_node_that_built

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: The registry's folder, outside of the folders that a campaign watches: a registry may keep parts
#: of an interrupted push.
REGISTRY = Path("/run/lock/registry")
_SPEC = """\
Describe 'one'
  lingers() { setsid sleep 3 & sleep 0.1; echo done; }
  Parameters
    1
    2
    3
  End
  It "lingers $1"
    When call lingers
    The output should equal done
  End
  It "mocks $1"
    mocked() { systemctl start "$1"; }
    Mock systemctl
      echo "$@"
    End
    When call mocked x
    The output should equal 'start x'
  End
End
"""
_SUITE = """\
import pytest

@pytest.mark.parametrize("number", range(24))
def test_one(number, tmp_path):
    (tmp_path / "file").write_text("x" * 20_000)
    print("y" * 5_000)
"""


def _nothing() -> None:
    return


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A command and its folder; `prepare` removes the results of an earlier run.

    `wrong` returns what is wrong with the result of a run that ended with exit code 0. `collect`
    removes the reports that a killed run leaves on purpose, as a user does after reading them.
    """

    argv: tuple[str, ...]
    cwd: Path
    prepare: Callable[[], object] = _nothing
    wrong: Callable[[], str | None] = lambda: None
    collect: Callable[[], object] = _nothing


@contextlib.contextmanager
def operations(top: Path) -> Iterator[Mapping[str, Operation]]:
    """Make the inputs of all operations below `top`, serve their downloads, and yield the operations."""
    with contextlib.ExitStack() as served:
        yield {
            **pytest_runs(top),
            **_files(top),
            **_artifacts(top, served),
            **_machines(top),
        }


def _program(top: Path, name: str, *words: str) -> Operation:
    folder = top / name
    folder.mkdir(parents=True, exist_ok=True)
    argv = (sys.executable, "-m", "suites.endurance.programs", name, str(folder), *words)
    return Operation(argv=argv, cwd=folder)


def _pytest(folder: Path, *words: str) -> Operation:
    def clean() -> None:
        shutil.rmtree(folder / "reports", ignore_errors=True)

    def wrong() -> str | None:
        missing = [
            name for name in ("junit.xml", "reports") if not (folder / "reports" / name).exists()
        ]
        return f"it passed without {missing}" if missing else None

    argv = (
        *(sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"),
        *("-p", "no:randomly", f"--rootdir={folder}", "--report-dir=reports/reports"),
        # Without this option, pytest would keep the folders of its last three runs.
        *("--basetemp=basetemp", "--junitxml=reports/junit.xml", *words, str(folder)),
    )
    return Operation(argv=argv, cwd=folder, prepare=clean, wrong=wrong, collect=clean)


def pytest_runs(top: Path) -> dict[str, Operation]:
    """Make a suite of specs and a suite of tests below `top`, and return an operation that runs each."""
    specs, suite = top / "specs", top / "suite"
    for folder, name, text in (
        (specs, "one_spec.sh", _SPEC),
        (suite, "test_suite.py", _SUITE),
    ):
        folder.mkdir()
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / name).write_text(text)
    return {
        "shell specs": _pytest(specs, "--shell-sandbox=throwaway"),
        "pytest with reports": _pytest(suite),
    }


def _files(top: Path) -> dict[str, Operation]:
    bundle = _program(top, "bundle")
    evidence = a_node_that_built(bundle.cwd / "evidence/t.py-test/node").write()
    (evidence / "host/serial.log").write_bytes(bytes(range(256)) * 40_000)
    return {"bundle": bundle}


def ensure_programs(*, report: Callable[[str], None]) -> tuple[str, ...]:
    """Return the command of the registry; its program is unpacked into the user's cache if missing."""
    return ensure_registry_program(users_cache(), report=report)


def _artifacts(top: Path, served: contextlib.ExitStack) -> dict[str, Operation]:
    made = _program(top, "checkpoint")
    build = _program(top, "image-build")
    images = served.enter_context(serving(published_files()))
    fetch = _program(top, "image-fetch", images.folder)
    program = ensure_programs(report=lambda _message: None)
    server = served.enter_context(running_registry(program, REGISTRY))
    proxy = served.enter_context(RegistryProxy(server.connection, RegistryLog()))
    address = f"http://127.0.0.1:{proxy.port}/gpu/ci"
    checkpoint(top / "pushed", address, is_writable=True)
    push, pull = _program(top, "push", address), _program(top, "pull", address)
    return {
        "checkpoint": _emptied(made, "cache/checkpoints"),
        "image build": _emptied(build, "images"),
        "image fetch": _emptied(fetch, "images"),
        "store push": Operation(
            argv=push.argv,
            cwd=push.cwd,
            # Each run pushes a new checkpoint, which has a separate lock.
            prepare=lambda: shutil.rmtree(push.cwd / "cache", ignore_errors=True),
        ),
        "store pull": _emptied(pull, "cache/checkpoints"),
    }


def _emptied(operation: Operation, name: str) -> Operation:
    """Return the operation with a `prepare` that removes the published folders and files in `name`."""
    folder = operation.cwd / name

    def remove() -> None:
        for path in folder.glob("[!.]*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return Operation(argv=operation.argv, cwd=operation.cwd, prepare=remove)


def _machines(top: Path) -> dict[str, Operation]:
    return {
        "machine of QEMU": _program(top, "machine", "qemu"),
        "machine of libvirt": _program(top, "machine", "libvirt"),
    }
