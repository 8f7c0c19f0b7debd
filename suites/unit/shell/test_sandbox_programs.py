"""The sandbox and its programs, which cannot import it, agree on how they talk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.shell import sandbox
from harness.shell.sandbox import throwaway_root, write_refusal

if TYPE_CHECKING:
    from types import ModuleType


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (throwaway_root, "CANNOT_ENTER"),
        (throwaway_root, "KERNEL_REFUSES"),
        (throwaway_root, "MARK"),
        (throwaway_root, "TOO_MANY_PROCESSES"),
        (write_refusal, "CANNOT_ENTER"),
        (write_refusal, "KERNEL_REFUSES"),
        (write_refusal, "MARK"),
    ],
)
def test_program_has_the_same_constant_as_the_sandbox(program: ModuleType, name: str) -> None:
    assert getattr(program, name) == getattr(sandbox, name)
