"""Chooses a provisioner by `--provisioner NAME|PATH`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError, listed
from harness.payload import build_payload
from harness.provisioner.gpu_node import NAME, gpu_node_provisioner
from harness.provisioner.yaml_file import read_provisioner

if TYPE_CHECKING:
    from harness.provisioner import Provisioner


def choose_provisioner(word: str) -> Provisioner:
    """Return the provisioner of this name, or that of the file at this path; raises BadInputError."""
    return read_provisioner(Path(word)) if _is_path(word) else provisioner_by_name(word)


def absolute(word: str, folder: Path) -> str:
    """Return a path relative to `folder` as an absolute one, and a name as it is."""
    return str(folder / word) if _is_path(word) else word


def _is_path(word: str) -> bool:
    """Return whether a word is a path: it has a slash, or the suffix of YAML."""
    return "/" in word or word.endswith((".yaml", ".yml"))


def provisioner_by_name(name: str) -> Provisioner:
    """Return the provisioner of this name; raises BadInputError where there is none."""
    if name == NAME:
        return gpu_node_provisioner(build_payload())
    raise BadInputError(
        f"There is no provisioner '{name}', only {listed([NAME])}; give one of these, or the path "
        "of a provisioner's file, such as './provisioner.yaml'.",
        source="--provisioner",
    )
