"""The machine's tags."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.node_files import NodeFiles
from harness.provisioning.tags import CACHE_PATH, Metadata, TagLookupError, read_metadata

from .fakes import write_tags

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    return NodeFiles(tmp_path)


def test_tags_and_vm_size_are_read_from_the_cache(files: NodeFiles) -> None:
    write_tags(files, ("a", "1"), ("b", ""), vm_size="Standard_NC6")

    assert read_metadata(files) == Metadata(tags=(("a", "1"), ("b", "")), vm_size="Standard_NC6")


@pytest.mark.parametrize("size", ["", 7])
def test_vm_size_that_is_not_a_string_is_unknown(files: NodeFiles, size: object) -> None:
    files.write(CACHE_PATH, json.dumps({"compute": {"tagsList": [], "vmSize": size}}))

    assert read_metadata(files) == Metadata()


@pytest.mark.parametrize(
    ("name", "value", "is_on"),
    [
        ("skipgpudriverinstall", "TRUE", True),
        ("SkipGpuDriverInstall", "false", False),
        ("SkipGpuDriverInstall", "untrue", False),
        ("SkipGpuDriverInstall", "true ", False),
        ("xSkipGpuDriverInstallY", "true", False),
        ("SkipGpuDriverInstal", "true", False),
    ],
)
def test_tag_is_on_only_if_its_whole_name_and_value_match(
    name: str, value: str, *, is_on: bool
) -> None:
    metadata = Metadata(tags=(("other", None), (name, value)))

    assert metadata.is_on("SkipGpuDriverInstall") is is_on


@pytest.mark.parametrize("values", [("false", "true"), ("true", "false"), ("", "true", "no")])
def test_tag_is_on_if_one_of_several_equal_names_has_the_value_true(
    values: tuple[str, ...],
) -> None:
    assert Metadata(tags=tuple(zip("AaA", values, strict=False))).is_on("A")


@pytest.mark.parametrize("values", [(None,), (None, "true"), ("true", None), ("false", None)])
def test_tag_with_a_value_that_is_not_a_string_raises_an_error(
    values: tuple[str | None, ...],
) -> None:
    metadata = Metadata(tags=(*zip("Aa", values, strict=False), ("b", "true")))

    with pytest.raises(TagLookupError) as failure:
        metadata.is_on("a")

    assert str(failure.value) == f"The tag 'a' in '{CACHE_PATH}' has a value that is not a string."
    assert metadata.is_on("B")


def test_tag_value_that_is_not_a_string_is_kept_as_unknown(files: NodeFiles) -> None:
    files.write(
        CACHE_PATH, '{"compute": {"tagsList": [{"name": "a", "value": true}, {"name": "b"}]}}'
    )

    assert read_metadata(files).tags == (("a", None), ("b", None))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("[" * 100000, "is not JSON: "),
        ("[]", "has no list '.compute.tagsList'."),
        ('{"compute": 1}', "has no list '.compute.tagsList'."),
        ('{"compute": {}}', "has no list '.compute.tagsList'."),
        ('{"compute": {"tagsList": {}}}', "has no list '.compute.tagsList'."),
        ('{"compute": {"tagsList": [1]}}', "has a tag without a name: 1."),
        ('{"compute": {"tagsList": [{"name": 1}]}}', "has a tag without a name: {'name': 1}."),
    ],
)
def test_malformed_cache_is_refused(files: NodeFiles, text: str, message: str) -> None:
    files.write(CACHE_PATH, text)

    with pytest.raises(TagLookupError) as failure:
        read_metadata(files)

    assert str(failure.value).startswith(f"'{CACHE_PATH}' {message}")


def test_missing_cache_is_refused(files: NodeFiles) -> None:
    with pytest.raises(TagLookupError) as failure:
        read_metadata(files)

    assert str(failure.value) == f"The instance metadata cache '{CACHE_PATH}' is missing."
    assert CACHE_PATH == "/opt/azure/containers/imds_instance_metadata_cache.json"


def test_cache_that_cannot_be_read_is_refused(files: NodeFiles) -> None:
    files.make_directory(CACHE_PATH)

    with pytest.raises(TagLookupError, match=r"is not a regular file\.$"):
        read_metadata(files)
