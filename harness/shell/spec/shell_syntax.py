"""Checks the syntax of shell code by running `bash -n`."""

from __future__ import annotations

import functools
import re

from harness.provisioning.command import LocalRunner
from harness.shell.shells import BASH

_PARSING_S = 10.0
_FUNCTION = re.compile(
    r"(?P<indent>\s*)(?:function\s+[\w:.-]+(?:\s*\(\))?|[\w:.-]+\s*\(\))\s*[{(]"
)
_CANNOT_FAIL = re.compile(
    r"""\s*(?:\#.*|(?:export\s+)?(?:[A-Za-z_]\w*=(?:[\w./:=,+%@-]|'[^']*'|"[^"`()]*"|\$\w+)*\s*)+)?\Z"""
)


@functools.cache
def is_complete(code: str) -> bool:
    """Return whether bash can parse the code; bash does not run the code."""
    ran = LocalRunner().run([*BASH.command, "-n"], timeout_s=_PARSING_S, stdin=f"{code}\n")
    return ran.ok and "here-document" not in ran.stderr


def may_fail(code: str) -> bool:
    """Return whether shell code can fail. Code that only defines functions and sets variables can't fail."""
    end: str | None = None
    for line in code.split("\n"):
        found = _FUNCTION.match(line)
        if end is not None:
            if line.rstrip() in {f"{end}}}", f"{end})"}:
                end = None
        elif found is None:
            if not _CANNOT_FAIL.match(line):
                return True
        elif not line.rstrip().endswith(("}", ")")):
            end = found["indent"]
    return False
