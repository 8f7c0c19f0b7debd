"""`--provisioner` is a name or a path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.provisioner.choice import absolute, choose_provisioner
from harness.settings import Settings

if TYPE_CHECKING:
    from suites.unit.provisioner.builders import Project


def test_gpu_node_provisioner_is_the_default_and_an_unknown_name_is_refused() -> None:
    provisioner = choose_provisioner(Settings().provisioner)

    assert (provisioner.name, provisioner.where) == ("gpu-node", "harness.provisioning")
    with pytest.raises(
        BadInputError, match=r"^--provisioner: There is no provisioner 'mine', only 'gpu-node'"
    ):
        choose_provisioner("mine")


def test_relative_path_of_a_provisioner_is_resolved_against_the_given_folder() -> None:
    rows = {
        "gpu-node": "gpu-node",
        "mine.yaml": "/project/mine.yaml",
        "mine.yml": "/project/mine.yml",
        "./mine": "/project/mine",
        "/elsewhere/mine.yaml": "/elsewhere/mine.yaml",
    }

    assert {word: absolute(word, Path("/project")) for word in rows} == rows


def test_provisioner_setting_accepts_the_path_of_a_provisioner_file(project: Project) -> None:
    path = project.write("mine.yaml", "schema: 1\nname: mine\nrun: [/bin/true]\n")

    assert choose_provisioner(str(path)).name == "mine"
