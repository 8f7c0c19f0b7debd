"""The public interface matches its page, and includes the types of all fixtures."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import re
import sys
from pathlib import Path

import pytest

import harness.api
from harness.entry_points import Group
from harness.evidence import collect
from harness.evidence.requested import SCHEMA as REQUESTED_SCHEMA
from harness.gpu.catalogue import ModelFile, NodeFile
from harness.image.catalogue import RecipeFile
from harness.image.cloud.derived_images import DerivedManifest
from harness.image.cloud.lock_file import Lock
from harness.image.cloud.source import CloudImageFile, LocalImageFile
from harness.image.manifest import CloudImageManifest, Manifest
from harness.lab.machine_bundle import SCHEMA as BUNDLE_SCHEMA
from harness.lab.versions import SCHEMA as VERSIONS_SCHEMA
from harness.machine.checkpoint.manifest import Manifest as CheckpointManifest
from harness.provisioner.declaration import Declaration
from harness.provisioner.yaml_file import ProvisionerFile
from harness.provisioning.outcome import SCHEMA as OUTCOME_SCHEMA
from harness.sharding.manifest import ShardManifest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/public-interface.md").read_text()

#: Fixtures that only the harness's own ones and suites use.
PRIVATE_FIXTURES = {
    "announce",
    "gathered_once",
    "provisioner_of_test",
    "real_driver_image",
    "registry_host",
    "scripts_of_gpus",
    "warm_shells",
}
#: The name of a class in its module, where `harness.api` has another.
RENAMED = {"Catalogue": "GpuCatalogue"}
#: Of the standard library and pytest, in annotations.
FOREIGN = {"Callable", "Generator", "Iterator", "Mapping", "None", "Path", "Sequence", "pytest"}


def rows_below(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading of the page, without its first row."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    tables = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells for cells in tables if not set(cells[0]) <= {"-"}]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_page_lists_exactly_the_public_names() -> None:
    names = [name for cells in rows_below("Names in Python")[6:] for name in quoted(cells[1])]

    assert len(names) == len(set(names))
    assert set(names) == set(harness.api.__all__)


def fixtures_of(folder: Path) -> dict[str, ast.expr | None]:
    """Return each fixture below a folder, with its return annotation."""
    return {
        node.name: node.returns
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any("fixture" in ast.unparse(each) for each in node.decorator_list)
        and node.name != "declared"  # made by `saved_state` for each project
    }


def names_in(annotation: ast.expr | None) -> set[str]:
    assert annotation is not None
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    known = {RENAMED.get(name, name) for name in names if not hasattr(builtins, name)}
    return known - FOREIGN


FIXTURES = fixtures_of(REPOSITORY / "fixtures")


def test_page_lists_exactly_the_public_fixtures_with_their_types() -> None:
    listed = {quoted(cells[0])[0]: quoted(cells[1]) for cells in rows_below("Fixtures")[1:]}

    assert set(listed) == set(FIXTURES) - PRIVATE_FIXTURES
    for name, types in listed.items():
        assert {*names_in(FIXTURES[name])} | ({"str"} & set(types)) == set(types), name


def test_types_of_fixtures_are_public() -> None:
    for fixture in FIXTURES.keys() - PRIVATE_FIXTURES:
        assert names_in(FIXTURES[fixture]) <= set(harness.api.__all__), fixture


@pytest.mark.parametrize("protocol", ["BootNode", "BootCloudImage", "CloneState"])
def test_argument_and_return_types_of_fixture_functions_are_public(protocol: str) -> None:
    module = sys.modules[getattr(harness.api, protocol).__module__]
    tree = ast.parse(Path(str(module.__file__)).read_text())
    (called,) = (
        method
        for found in ast.walk(tree)
        if isinstance(found, ast.ClassDef) and found.name == protocol
        for method in found.body
        if isinstance(method, ast.FunctionDef)
    )
    arguments = (*called.args.posonlyargs, *called.args.args[1:], *called.args.kwonlyargs)
    types = [names_in(each.annotation) for each in arguments if each.arg != "self"]

    assert set().union(*types, names_in(called.returns)) <= set(harness.api.__all__)


def schema_of(shape: type) -> int:
    """Return the only version that a data file's class accepts."""
    (found,) = (field for field in dataclasses.fields(shape) if field.name == "schema")
    version = re.fullmatch(r"Literal\[(\d+)\]", str(found.type))
    assert version is not None, found.type
    return int(version[1])


def test_page_lists_the_version_of_each_format() -> None:
    listed = {
        re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", cells[0]): int(cells[1])
        for cells in rows_below("File formats")[1:]
    }

    assert listed == {
        "recipe of kind `build`": schema_of(RecipeFile),
        "recipe of kind `url`": schema_of(CloudImageFile),
        "recipe of kind `file`": schema_of(LocalImageFile),
        "GPU model": schema_of(ModelFile),
        "GPU node (`nodes/*.yaml`)": schema_of(NodeFile),
        "provisioner": schema_of(ProvisionerFile),
        "lock file of a cloud image": schema_of(Lock),
        "evidence: `manifest.json`": collect.SCHEMA,
        "evidence: `requested.json`": REQUESTED_SCHEMA,
        "evidence: `provisioner.json`": schema_of(Declaration),
        "outcome of `harness.provisioning`": OUTCOME_SCHEMA,
        "manifest of a built image": schema_of(Manifest),
        "manifest of a cloud image": schema_of(CloudImageManifest),
        "manifest of an image that is derived from a cloud image": schema_of(DerivedManifest),
        "manifest of a checkpoint": schema_of(CheckpointManifest),
        "evidence: `checkpoint/machine.json`": BUNDLE_SCHEMA,
        "evidence: `versions.json`": VERSIONS_SCHEMA,
        "`shard.json` of `--report-dir`": schema_of(ShardManifest),
    }


def test_page_lists_the_groups_of_entry_points() -> None:
    listed = [quoted(cells[0])[0] for cells in rows_below("Plug-ins")[1:]]

    assert listed == [group.value for group in Group]
