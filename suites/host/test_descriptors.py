"""The protobuf descriptor sets that programs in guests read, since a guest has no protoc."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.provisioning.command import LocalRunner

REPOSITORY = Path(__file__).parents[2]
SETS = sorted(
    path for folder in ("harness", "suites") for path in (REPOSITORY / folder).rglob("*.binpb")
)


def test_descriptor_files_of_both_protocols_are_found() -> None:
    assert [path.name for path in SETS] == ["v1beta1.binpb", "runtime_v1.binpb"]


@pytest.mark.parametrize("descriptors", SETS, ids=[path.stem for path in SETS])
def test_descriptor_set_equals_the_output_of_protoc_for_its_proto_file(
    descriptors: Path, tmp_path: Path
) -> None:
    """Descriptor sets are never edited: protoc generates them from the file beside them."""
    made = tmp_path / "made.binpb"
    argv = [
        *(sys.executable, "-m", "grpc_tools.protoc", f"-I{descriptors.parent}"),
        *(f"--descriptor_set_out={made}", f"{descriptors.stem}.proto"),
    ]
    LocalRunner().run(argv, timeout_s=60.0).check("protoc")

    assert made.read_bytes() == descriptors.read_bytes()
