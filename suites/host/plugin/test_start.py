"""The modules that a run of specs imports, and the loader of each module."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

_SPEC = """\
It 'passes'
  When call true
  The status should be success
End
"""
#: A plugin that writes the name and the loader of each imported module. The plugin first marks `harness`
#: for rewriting, as pytest does for an installed distribution but not for an editable installation.
_OBSERVER = """\
import sys
import pytest

pytest.register_assert_rewrite("harness")

def pytest_unconfigure():
    with open("modules", "w") as file:
        for name, module in sorted(sys.modules.items()):
            file.write(f"{name} {type(getattr(module, '__loader__', None)).__name__}\\n")
"""
_UNNEEDED = {
    "filelock.asyncio", "harness.bench", "harness.gpu", "harness.image", "harness.lab",
    "harness.machine", "harness.shell.sandbox.throwaway_root", "platformdirs", "pydantic", "rich", "xdist.scheduler", "yaml",
}  # fmt: skip


def _modules(folder: Path) -> dict[str, str]:
    """Run one example, and return the loader of each imported module by the module's name."""
    (folder / ".shellspec").touch()
    (folder / "one_spec.sh").write_text(_SPEC)
    (folder / "observer.py").write_text(_OBSERVER)
    argv = [
        *("env", "-C", str(folder), f"PYTHONPATH={folder}", sys.executable, "-m", "pytest"),
        *("-p", "observer", "-p", "no:cacheprovider", "-p", "no:platformdirs", "-n", "0", "."),
    ]
    LocalRunner().run(argv, timeout_s=60.0).check("The run of one example")
    lines = (folder / "modules").read_text().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines)


def test_run_of_shell_specs_imports_no_module_that_only_machines_need(tmp_path: Path) -> None:
    assert not _UNNEEDED & _modules(tmp_path).keys()


def test_assertions_in_modules_of_the_plugin_are_not_rewritten(tmp_path: Path) -> None:
    rewritten = {
        name
        for name, loader in _modules(tmp_path).items()
        if name.partition(".")[0] == "harness" and loader == "AssertionRewritingHook"
    }

    assert rewritten <= {"harness", "harness.plugin", "harness.plugin.plain_imports"}
