"""Packs pytest and this project into an archive, so that a machine without a network can run specs."""

from __future__ import annotations

import importlib.metadata
import io
import os
import re
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import harness

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The packages that collecting specs imports; the project's other requirements are not packed.
_NEEDED = (
    "allure-pytest", "filelock", "pytest", "pytest-xdist", "typing-extensions",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def pack_pytest() -> bytes:
    """Return a tar archive of a folder for PYTHONPATH, with only pure Python packages."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in sorted(_closure()):
            for file in importlib.metadata.files(name) or ():
                if file.suffix == ".py" or file.name == "METADATA":
                    archive.add(str(file.locate()), arcname=str(file))
        package = Path(str(harness.__file__)).parent
        for source in _sources(package):
            archive.add(source, arcname=str(source.relative_to(package.parent)))
    return packed.getvalue()


def _sources(package: Path) -> Sequence[Path]:
    """Return the package's modules and shell code, with the files in linked folders."""
    return sorted(
        Path(folder) / name
        for folder, _, names in os.walk(package, followlinks=True)
        for name in names
        if name.endswith((".py", ".sh"))
    )


def _closure() -> set[str]:
    """Return the needed distributions and all their requirements."""
    found: set[str] = set()
    wanted = list(_NEEDED)
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted.extend(_requirements(name))
    return found


def _requirements(name: str) -> Iterator[str]:
    for line in importlib.metadata.requires(name) or ():
        required = _NAME.match(line)
        if required and "extra ==" not in line and _is_here(required[0]):
            yield required[0].lower()


def _is_here(name: str) -> bool:
    """Return whether a distribution is installed; a requirement for another system may be missing."""
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
