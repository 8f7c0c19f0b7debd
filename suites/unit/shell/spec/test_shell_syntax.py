"""Which code of a spec can fail."""

from __future__ import annotations

from harness.shell.spec.shell_syntax import may_fail

MAY_FAIL = {
    "": False, "  # x": False, "a=1 b='x $(y)' # z": True, "a=1 b='x $(y)'": False, 'export A="$b"': False,
    "a=$b": False, "a=$(x)": True, "a=`x`": True, 'a="$(x)"': True, "a=1 x": True, "export A=b\nx": True,
    "f() { x; }": False, "f() {\n  x\n}": False, "  f () (\n    x\n  )\ny": True, "  f() {\n    x\n  }\n": False, "function f {\n  x\n}": False,
    "f() {\n  {\n    x\n  }\n}\na=1": False, "f() {\n  x\n}\ny": True,
}  # fmt: skip


def test_code_may_fail_unless_it_has_only_definitions_and_plain_assignments() -> None:
    assert {code: may_fail(code) for code in MAY_FAIL} == MAY_FAIL
