"""`./dev plants --file`, on a tiny tree with two tiers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner
from suites.mutation.mutant_runner import PlantError
from suites.mutation.patch_runner import PatchPlan, plant_patches, select

if TYPE_CHECKING:
    from pathlib import Path

_PRODUCT = "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return 2 * a\n"
_FILES = {
    "product/pair.py": _PRODUCT,
    "suites/unit/test_pair.py": (
        "from product.pair import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
    ),
    "suites/unit/test_other.py": "def test_other():\n    pass\n",
    "suites/host/test_double.py": (
        "from product.pair import double\n\n\ndef test_double():\n    assert double(2) == 4\n"
    ),
}


class Tree:
    """A git repository; `add_patch` makes a patch and restores the changed file."""

    def __init__(self, top: Path) -> None:
        self.top = top / "tree"
        self.patches = top / "bugs"
        self.patches.mkdir()
        for name, text in _FILES.items():
            path = self.top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._git("init", "-q")
        self._git("add", ".")

    def _git(self, *words: str) -> str:
        argv = ("git", "-C", str(self.top), *words)
        return LocalRunner().run(argv, timeout_s=60).check("git").stdout

    def add_patch(self, name: str, old: str, new: str, file: str = "product/pair.py") -> None:
        path = self.top / file
        path.write_text(_FILES[file].replace(old, new))
        (self.patches / name).write_text(self._git("diff"))
        path.write_text(_FILES[file])

    def plant(self, *, tiers: str = "unit,host", as_json: bool = True) -> int:
        plan = PatchPlan(
            patches=tuple(sorted(self.patches.iterdir())),
            selections=select([tiers], []),
            image="none",
            children=2,
        )
        return plant_patches(self.top, plan, as_json=as_json)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_report_has_the_tier_and_the_test_that_caught_each_bug(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.add_patch("add.patch", "a + b", "a - b")
    tree.add_patch("double.patch", "2 * a", "3 * a")
    tree.add_patch("import.patch", "def add", "def plus")
    tree.add_patch("same.patch", "2 * a", "a + a")

    assert tree.plant() == 1

    shown = json.loads(capsys.readouterr().out)
    assert [(row["patch"], row["tier"], row["test"]) for row in shown["patches"]] == [
        ("add.patch", "unit", "suites/unit/test_pair.py::test_add"),
        ("double.patch", "host", "suites/host/test_double.py::test_double"),
        ("import.patch", "unit", "suites/unit/test_pair.py"),
        ("same.patch", None, None),
    ]
    assert (shown["caught"], shown["survived"], shown["unknown"]) == (3, 1, 0)
    assert {name: (tree.top / name).read_text() for name in _FILES} == _FILES
    assert not list(tree.top.rglob("__pycache__"))


def test_tier_that_is_not_selected_catches_no_bug(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.add_patch("double.patch", "2 * a", "3 * a")

    assert tree.plant(tiers="unit", as_json=False) == 1
    assert capsys.readouterr().out == (
        "double.patch  [product/pair.py]\n    SURVIVED\n0 of 1 caught\n"
    )
    assert tree.plant(tiers="host", as_json=False) == 0


def test_every_patch_that_cannot_be_planted_is_listed_with_the_reason(tree: Tree) -> None:
    tree.add_patch("good.patch", "a + b", "a - b")
    tree.add_patch("syntax.patch", "return a + b", "return a +")
    tree.add_patch("tests.patch", "== 3", "== 4", "suites/unit/test_pair.py")
    other = (tree.patches / "good.patch").read_text().replace("return a", "return other")
    (tree.patches / "other.patch").write_text(other)
    (tree.patches / "text.patch").write_text("swap the operands\n")

    with pytest.raises(PlantError) as error:
        tree.plant()

    lines = str(error.value)
    assert "good.patch" not in lines
    for part in (
        "other.patch: The patch does not apply to this tree: error: patch failed: product/pair.py:1",
        "syntax.patch: With the patch, 'product/pair.py' is not valid Python: invalid syntax, line 2.",
        "tests.patch: The patch changes 'suites/unit/test_pair.py'.",
        "text.patch: The patch does not apply to this tree: error: No valid patches in input",
    ):
        assert part in lines


def test_no_bug_is_planted_if_a_test_already_fails(tree: Tree) -> None:
    tree.add_patch("add.patch", "a + b", "a - b")
    (tree.top / "suites/unit/test_other.py").write_text("def test_other():\n    assert False\n")

    with pytest.raises(PlantError) as error:
        tree.plant()

    assert str(error.value) == (
        "'suites/unit/test_other.py::test_other' fails without a planted bug. Repair it first."
    )
