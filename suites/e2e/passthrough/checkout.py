"""Packs this checkout and its Python packages into an archive for a guest with the same Python."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from harness.errors import RequirementError

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[3]
#: The Python version of Debian 12. Compiled packages fit only one minor version.
GUEST_PYTHON = (3, 11)
#: The folder in the guest into which the archive is unpacked.
FOLDER = "/opt/gpu-node-harness"
_SITE = "site"
_OWN = "gpu-node-harness"
#: The packages that the suites import in addition to the harness.
_SUITES_NEED = ("hypothesis", "pytest-timeout", "pytest-randomly")
_TREES = ("harness", "suites", "fixtures", "images")
_FILES = ("conftest.py", "pyproject.toml")
_CACHES = {".mypy_cache", ".pytest_cache", ".ruff_cache"}


def require_same_python() -> None:
    """Raise RequirementError unless the guest's Python can import the packages of this run."""
    if sys.version_info[:2] != GUEST_PYTHON:
        wanted, found = (
            ".".join(map(str, version)) for version in (GUEST_PYTHON, sys.version_info[:2])
        )
        raise RequirementError(
            f"The image 'gpu-lab' has Python {wanted}, and gets the packages of the Python that runs "
            f"pytest, which is {found}; run these tests with Python {wanted}."
        )


def archived_files() -> dict[str, Path]:
    """Return the files of the archive by their path in the archive."""
    found = {name: REPOSITORY / name for name in _FILES}
    for tree in _TREES:
        for path in sorted((REPOSITORY / tree).rglob("*")):
            # Python writes byte code to a temporary file, and then renames this file.
            is_unfinished = ".pyc." in path.name
            is_in_cache = bool(_CACHES.intersection(path.parts))
            if not is_unfinished and not is_in_cache and (path.is_file() or path.is_symlink()):
                found[str(path.relative_to(REPOSITORY))] = path
    for distribution in _distributions():
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            is_of_checkout = file.name.startswith("__editable__") or file.suffix == ".pth"
            if ".." not in file.parts and not is_of_checkout and path.is_file():
                found[f"{_SITE}/{file}"] = path
    return found


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    """Yield the harness, the packages that the suites import, and all their requirements."""
    seen: set[str] = set()
    wanted = [_OWN, *_SUITES_NEED]
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        distribution = importlib.metadata.distribution(name)
        yield distribution
        for line in distribution.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.append(requirement.name)


def digest() -> str:
    """Return the digest of the archive's content, without Python's byte code."""
    whole = hashlib.sha256()
    for name, path in sorted(archived_files().items()):
        if path.suffix != ".pyc":
            content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
            whole.update(f"{name} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def write_archive(archive: Path) -> None:
    """Write the archive with byte code, since a guest under emulation compiles slowly."""
    with tarfile.open(archive, "w") as tar:
        for name, path in archived_files().items():
            tar.add(path, name)


def python_path() -> str:
    """Return the lines of a `.pth` file that lets the guest's Python find the archive's modules."""
    return f"{FOLDER}\n{FOLDER}/{_SITE}\n"
