"""What `./dev plants --file` runs and reports; these tests copy no tree."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from suites.mutation.patch_runner import Finding, Selection, Tier, find_patches, report, select

if TYPE_CHECKING:
    from pathlib import Path

CAUGHT = Finding(patch="a.patch", changed=("x.py",), failure=(Tier.HOST, "suites/host/t.py::t"))
SURVIVED = Finding(patch="b.patch", changed=("y.py", "z"))
UNKNOWN = Finding(patch="c.patch", changed=("y.py",), trouble="It took 3 s.")


@pytest.mark.parametrize(
    ("tiers", "tests", "expected"),
    [
        ([], [], {"unit": (), "host": ()}),
        (["machine,unit"], [], {"unit": (), "machine": ()}),
        (["host", "unit"], ["suites/host/a"], {"unit": (), "host": ("suites/host/a",)}),
        ([], ["suites/e2e/b", "suites/e2e/a"], {"machine": ("suites/e2e/b", "suites/e2e/a")}),
    ],
)
def test_tiers_run_from_the_fastest_to_the_slowest(
    tiers: list[str], tests: list[str], expected: dict[str, tuple[str, ...]]
) -> None:
    chosen = {selection.tier.word: selection.tests for selection in select(tiers, tests)}
    assert list(chosen.items()) == list(expected.items())


@pytest.mark.parametrize(
    ("tiers", "tests", "message"),
    [
        (["unit,e2e"], [], "There is no tier 'e2e'; the tiers are unit, host, machine."),
        ([], ["suites/united"], "'suites/united' is not below 'suites/unit', 'suites/host', "),
        (["unit"], ["suites/host/a"], "'suites/host/a' is in no tier that '--tier' names."),
    ],
)
def test_unknown_tiers_and_tests_are_refused(
    tiers: list[str], tests: list[str], message: str
) -> None:
    with pytest.raises(BadInputError) as error:
        select(tiers, tests)
    assert message in str(error.value)


def test_tests_nearest_to_the_bug_run_first(tmp_path: Path) -> None:
    for name in (
        *("suites/unit/gpu/pool/test_x.py", "suites/unit/gpu/test_y.py"),
        "suites/unit/fixtures/test_shell.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "suites/unit/test_lease.py").touch()
    changed = (
        *("harness/gpu/pool/a.py", "harness/gpu/y.py", "harness/lease.py", "images/b.toml"),
        "fixtures/shell.py",
    )
    near = (
        *("suites/unit/fixtures/test_shell.py", "suites/unit/gpu/pool"),
        *("suites/unit/gpu/test_y.py", "suites/unit/test_lease.py"),
    )

    assert list(Selection(tier=Tier.UNIT).runs(tmp_path, changed)) == [
        near,
        ("suites/unit", *(f"--ignore={path}" for path in near)),
    ]
    assert list(Selection(tier=Tier.HOST).runs(tmp_path, changed)) == [("suites/host",)]


def test_folder_argument_selects_the_patches_in_the_folder(tmp_path: Path) -> None:
    for name in ("2.patch", "1.diff", "notes.md"):
        (tmp_path / name).touch()
    assert [path.name for path in find_patches([tmp_path, tmp_path / "2.patch"])] == [
        "1.diff",
        "2.patch",
    ]
    (tmp_path / "empty").mkdir()
    for name, message in (("empty", "has no file that ends"), ("none", "There is no such patch")):
        with pytest.raises(BadInputError, match=message):
            find_patches([tmp_path / name])


@pytest.mark.parametrize(
    ("findings", "status"),
    [([CAUGHT], 0), ([CAUGHT, SURVIVED], 1), ([SURVIVED, UNKNOWN], 2)],
)
def test_exit_status_is_1_for_a_surviving_bug_and_2_for_an_unknown_result(
    findings: list[Finding], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(findings, as_json=True) == status
    shown = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in shown["patches"]] == [each.verdict for each in findings]
    assert shown["caught"] + shown["survived"] + shown["unknown"] == len(findings)
    assert report(findings, as_json=False) == status


def test_printed_result_of_a_caught_bug_mentions_the_tier_and_the_test() -> None:
    assert [each.render() for each in (CAUGHT, SURVIVED, UNKNOWN)] == [
        "a.patch  [x.py]\n    caught by host: suites/host/t.py::t\n",
        "b.patch  [y.py, z]\n    SURVIVED\n",
        "c.patch  [y.py]\n    UNKNOWN: It took 3 s.\n",
    ]
