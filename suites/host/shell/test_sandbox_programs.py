"""What the sandbox's programs import, and where they store bytecode."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner
from harness.shell import sandbox
from harness.shell.sandbox import throwaway_root, write_refusal

if TYPE_CHECKING:
    from types import ModuleType


@pytest.mark.parametrize("program", [throwaway_root, write_refusal])
def test_program_does_not_import_slow_modules(program: ModuleType) -> None:
    folder, name = Path(str(program.__file__)).parent, program.__name__.rpartition(".")[2]
    code = (
        f"import sys; sys.path.append({str(folder)!r}); import {name}; "
        "print(*sorted({'json', 'pathlib', 're', 'resource', 'typing'} & set(sys.modules)))"
    )

    result = LocalRunner().run([sys.executable, "-I", "-S", "-c", code], timeout_s=60)

    assert result.exit_code == 0, result.render()
    assert result.stdout == "\n"


@pytest.mark.parametrize("kind", [sandbox.SandboxKind.THROWAWAY, sandbox.SandboxKind.REFUSE])
@pytest.mark.parametrize("keeps_bytecode", [True, False])
def test_sandbox_program_stores_bytecode_in_the_folder_of_pytest_unless_bytecode_is_off(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: sandbox.SandboxKind,
    *,
    keeps_bytecode: bool,
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", not keeps_bytecode)
    monkeypatch.setattr("sys.pycache_prefix", str(tmp_path / "bytecode"))
    argv = sandbox.Sandbox(kind=kind).argv(["true"], cwd=tmp_path, scratch=tmp_path)

    LocalRunner().run(argv, timeout_s=60)

    kept = [path.name for path in tmp_path.glob("bytecode/**/*_r*.pyc")]
    assert any("throwaway_root" in name or "write_refusal" in name for name in kept) is (
        keeps_bytecode
    )
