"""What the tool says, read and judged."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from harness.shell.mocks import ScriptedRunner
from suites.mutation.tool import Mutant, ToolError, judge, parse_change, parse_page, parse_results

if TYPE_CHECKING:
    from pathlib import Path

CLICK = "\N{LATIN LETTER LATERAL CLICK}"
KILLED = "harness.provisioning.a.x_f__mutmut_1"
SURVIVOR = f"harness.provisioning.b.x{CLICK}C{CLICK}m__mutmut_12"
RESULTS = f"    {KILLED}: killed\n    {SURVIVOR}: survived\n"
DIFF = """\
# harness.provisioning.b: survived
--- harness/provisioning/b.py
+++ harness/provisioning/b.py
@@ -1,3 +1,3 @@
 def m(self):
-    return f(1, b) + 2
+    return f(2, b) + 2
"""
CHANGE = "`f(1,` becomes `f(2,`"
PAGE = f"""\
| Function | Change | Reason |
|---|---|---|
| `b.C.m` | {CHANGE} | It is the same. |
"""


def test_mutants_are_named_as_a_person_would() -> None:
    first, second = parse_results(f"noise\n{RESULTS}")

    assert (first.module, first.function, first.is_killed) == ("a", "a.f", True)
    assert (second.module, second.function, second.is_killed) == ("b", "b.C.m", False)


@pytest.mark.parametrize(
    ("status", "is_killed"),
    [("killed", True), ("timeout", True), ("survived", False), ("no tests", False)],
)
def test_what_the_suite_noticed_counts_as_killed(status: str, *, is_killed: bool) -> None:
    assert Mutant(name=KILLED, status=status).is_killed is is_killed


def test_change_is_what_differs() -> None:
    assert parse_change(DIFF) == CHANGE
    assert parse_change("-a = 1\n-b\n+a = 1\n") == "`b` becomes `nothing`"


def test_page_gives_the_reasons() -> None:
    assert parse_page(PAGE) == {("b.C.m", CHANGE): "It is the same."}


def script(top: Path, results: str = RESULTS) -> ScriptedRunner:
    argv = ("env", "--chdir", str(top), sys.executable, "-m", "mutmut")
    return (
        ScriptedRunner()
        .expect([*argv, "results", "--all", "true"], stdout=results)
        .expect([*argv, "show", SURVIVOR], stdout=DIFF)
    )


@pytest.mark.parametrize(
    ("results", "page", "code"),
    [
        (RESULTS + f"    {KILLED}: killed\n" * 9, PAGE, 0),
        (RESULTS + f"    {KILLED}: killed\n" * 9, "", 1),
        (RESULTS, PAGE, 1),
    ],
)
def test_run_is_good_when_most_died_and_the_rest_are_explained(
    tmp_path: Path, results: str, page: str, code: int
) -> None:
    (tmp_path / "page.md").write_text(page)

    with script(tmp_path, results) as runner:
        assert judge(tmp_path, tmp_path / "page.md", runner) == code


def test_survivors_are_listed_as_the_page_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with script(tmp_path) as runner:
        judge(tmp_path, tmp_path / "page.md", runner)

    assert capsys.readouterr().out.splitlines() == [
        "a                    1 of     1 killed",
        "b                    0 of     1 killed",
        f"| `b.C.m` | {CHANGE} | NOT LISTED: survived |",
        "1 of 2 killed (50.0%); 1 not in page.md",
    ]


def test_tool_that_left_nothing_gave_no_answer(tmp_path: Path) -> None:
    argv = ("env", "--chdir", str(tmp_path), sys.executable, "-m", "mutmut")
    with (
        ScriptedRunner().expect([*argv, "results", "--all", "true"]) as runner,
        pytest.raises(ToolError, match=r"^mutmut left no results"),
    ):
        judge(tmp_path, tmp_path / "page.md", runner)
