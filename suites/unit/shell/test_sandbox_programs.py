"""The sandbox and its programs, which can't import it, use the same constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.shell import sandbox
from harness.shell.sandbox import throwaway_root, write_refusal

if TYPE_CHECKING:
    from types import ModuleType


NAMES = ("CANNOT_ENTER", "KERNEL_REFUSES", "MARK", "TOO_MANY_PROCESSES")


def test_programs_and_their_sandbox_module_have_equal_constants() -> None:
    programs: list[tuple[ModuleType, tuple[str, ...]]] = [
        (throwaway_root, NAMES),
        (write_refusal, NAMES[:3]),
    ]
    for program, names in programs:
        assert {each: getattr(program, each) for each in names} == {
            each: getattr(sandbox, each) for each in names
        }
