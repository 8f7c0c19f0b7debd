"""The wheel contains all files that the code reads, and no tests of this repository."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.image.catalogue import Recipe, load_catalogue
from suites.installed_wheel import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

    from suites.installed_wheel import InstalledWheel

#: Folders of the package that the wheel lacks, and symbolic links to folders of this repository.
_TEST_DATA = ("fixtures/data", "fixtures/dialogues", "fixtures/recordings")
_LINKS = ("fixtures", "images")


def _expected() -> dict[str, Path]:
    """Return every source file of the package by its path in the wheel."""
    harness = REPOSITORY / "harness"
    found = [path for path in harness.rglob("*") if path.is_file()]
    for name in _LINKS:
        found += [harness / name / path.relative_to(REPOSITORY / name)
                  for path in (REPOSITORY / name).rglob("*") if path.is_file()]  # fmt: skip
    names = {path.relative_to(harness).as_posix(): path for path in found}
    return {
        f"harness/{name}": path
        for name, path in names.items()
        if not name.startswith(_TEST_DATA)
        and "__pycache__" not in path.parts
        and path.name != ".shellcheckrc"
    }


def test_wheel_has_every_file_of_the_package(installed_wheel: InstalledWheel) -> None:
    expected = _expected()
    with zipfile.ZipFile(installed_wheel.wheel) as archive:
        contents = {
            name: archive.read(name) for name in archive.namelist() if name.startswith("harness/")
        }

    assert {
        "harness/fixtures/machines.py",
        "harness/images/debian-12.yaml",
        "harness/py.typed",
    } <= set(expected)
    assert sorted(contents) == sorted(expected)
    assert {
        name for name, path in expected.items() if contents[name] != path.read_bytes()
    } == set()


def test_wheel_contains_only_the_package_and_the_documentation_pages_and_the_licence(
    installed_wheel: InstalledWheel,
) -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    with zipfile.ZipFile(installed_wheel.wheel) as archive:
        names = [name for name in archive.namelist() if not name.startswith("harness/")]

    folders = {name.partition("/")[0] for name in names}
    assert sorted(folder.partition("-0")[0] for folder in folders) == ["gpu_node_harness"] * 2
    assert sorted(_without_folder(names, ".data")) == sorted(
        f"data/share/doc/gpu-node-harness/{page.name}" for page in pages
    )
    assert sorted(_without_folder(names, ".dist-info")) == [
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "top_level.txt",
    ]


def _without_folder(names: list[str], ending: str) -> list[str]:
    parts = [name.partition("/") for name in names]
    return [rest for folder, _, rest in parts if folder.endswith(ending)]


def test_package_has_no_tests_and_no_caches(installed_wheel: InstalledWheel) -> None:
    """The tests in the folder `new_project` are templates, so this test skips that folder."""
    with zipfile.ZipFile(installed_wheel.wheel) as archive:
        names = archive.namelist()

    assert not [
        name
        for name in names
        if not name.startswith("harness/cli/new_project/")
        and (
            PurePosixPath(name).name.startswith(("test_", "conftest", "."))
            or set(PurePosixPath(name).parts) & {"suites", "tests", "__pycache__"}
            or PurePosixPath(name).suffix in {".pyc", ".orig", ".rej", ".swp", ".log"}
        )
    ]


def test_installed_programs_are_executable(installed_wheel: InstalledWheel) -> None:
    """The key of a recipe, and the image built from it, depend on the modes of files."""
    (site,) = installed_wheel.venv.glob("lib/python*/site-packages")

    assert {
        name
        for name, path in _expected().items()
        if bool(path.stat().st_mode & 0o100) != bool((site / name).stat().st_mode & 0o100)
    } == set()


def test_sdist_contains_no_links_and_no_test_suites(installed_wheel: InstalledWheel) -> None:
    """The wheel is built from the sdist, so the sdist must contain no link."""
    with tarfile.open(installed_wheel.sdist) as archive:
        members = archive.getmembers()

    assert not [member.name for member in members if member.issym() or member.islnk()]
    top = {PurePosixPath(member.name).parts[1:2] for member in members}
    assert ("harness",) in top
    assert ("suites",) not in top


_KEYS = """\
from harness.image.catalogue import Recipe, load_catalogue

for name, source in load_catalogue().entries.items():
    if isinstance(source, Recipe):
        print(name, source.key(builder="b"))
"""


def test_image_keys_of_the_installed_wheel_equal_the_image_keys_of_the_repository(
    installed_wheel: InstalledWheel, tmp_path: Path
) -> None:
    """So the wheel and the repository share cached images, and users boot images that tests have booted."""
    own = [
        f"{name} {source.key(builder='b')}"
        for name, source in load_catalogue().entries.items()
        if isinstance(source, Recipe)
    ]

    installed = installed_wheel.run("python", "-c", _KEYS, cwd=tmp_path).check("Asking for keys")

    assert len(own) >= 3
    assert installed.stdout.splitlines() == own
