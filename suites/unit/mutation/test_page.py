"""The table of survivors can be parsed, and names functions that exist."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from suites.mutation.packages import PACKAGES, Package
from suites.mutation.tool import SURVIVORS_PAGE, parse_page

PAGE = (Path(__file__).parents[3] / SURVIVORS_PAGE).read_text()


def test_every_row_of_the_page_is_read() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]

    assert sum(len(parse_page(PAGE, each.source)) for each in PACKAGES.values()) == len(rows) > 0


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_every_function_on_the_page_is_there(package: Package) -> None:
    source = Path(package.source)
    for function, _ in parse_page(PAGE, package.source):
        name, *path = function.split(".")
        own = [source] if name == source.stem else []
        places = [*own, *source.rglob(f"{name}.py"), *source.rglob(f"{name}/__init__.py")]
        assert any(_has(place.with_suffix(""), path) for place in places), function


def _has(place: Path, path: list[str]) -> bool:
    module = ".".join(place.parts).removesuffix(".__init__")
    try:
        found: object = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    for part in path:
        found = getattr(found, part, None)
    return callable(found) or isinstance(found, property)


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_every_reason_is_a_sentence(package: Package) -> None:
    for reason in parse_page(PAGE, package.source).values():
        assert reason.endswith("."), reason
        assert len(reason.split()) > 3, reason
