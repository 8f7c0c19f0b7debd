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
    for size in ("", 7):
        files.write(CACHE_PATH, json.dumps({"compute": {"tagsList": [], "vmSize": size}}))
        assert read_metadata(files) == Metadata(), size


def test_tag_is_on_only_if_its_whole_name_and_value_match() -> None:
    rows = {
        ("skipgpudriverinstall", "TRUE"): True,
        ("SkipGpuDriverInstall", "false"): False,
        ("SkipGpuDriverInstall", "untrue"): False,
        ("SkipGpuDriverInstall", "true "): False,
        ("xSkipGpuDriverInstallY", "true"): False,
        ("SkipGpuDriverInstal", "true"): False,
    }

    assert {
        tag: Metadata(tags=(("other", None), tag)).is_on("SkipGpuDriverInstall") for tag in rows
    } == rows


def test_tag_is_on_if_one_of_several_tags_of_the_same_name_is_true() -> None:
    for values in (("false", "true"), ("true", "false"), ("", "true", "no")):
        assert Metadata(tags=tuple(zip("AaA", values, strict=False))).is_on("A"), values


def test_lookup_of_a_tag_with_a_value_that_is_not_a_string_raises_an_error() -> None:
    rows: tuple[tuple[str | None, ...], ...] = ((None,), (None, "true"), ("true", None))
    for values in rows:
        metadata = Metadata(tags=(*zip("Aa", values, strict=False), ("b", "true")))

        with pytest.raises(TagLookupError, match=rf"The tag 'a' in '{CACHE_PATH}' has a value"):
            metadata.is_on("a")
        assert metadata.is_on("B")


def test_tag_value_that_is_not_a_string_is_read_as_none(files: NodeFiles) -> None:
    files.write(
        CACHE_PATH, '{"compute": {"tagsList": [{"name": "a", "value": true}, {"name": "b"}]}}'
    )

    assert read_metadata(files).tags == (("a", None), ("b", None))


def test_cache_that_is_missing_or_malformed_is_refused(files: NodeFiles) -> None:
    assert CACHE_PATH == "/opt/azure/containers/imds_instance_metadata_cache.json"
    with pytest.raises(TagLookupError, match=rf"'{CACHE_PATH}' is missing\.$"):
        read_metadata(files)
    for text, message in (
        ("{", "is not JSON: "),
        ("[" * 100000, "is not JSON: "),
        ("[]", "has no list '.compute.tagsList'."),
        ('{"compute": 1}', "has no list '.compute.tagsList'."),
        ('{"compute": {"tagsList": {}}}', "has no list '.compute.tagsList'."),
        ('{"compute": {"tagsList": [1]}}', "has a tag without a name: 1."),
        ('{"compute": {"tagsList": [{"name": 1}]}}', "has a tag without a name: {'name': 1}."),
    ):
        files.write(CACHE_PATH, text)

        with pytest.raises(TagLookupError) as failure:
            read_metadata(files)
        assert str(failure.value).startswith(f"'{CACHE_PATH}' {message}")

    files.remove(CACHE_PATH)
    files.make_directory(CACHE_PATH)
    with pytest.raises(TagLookupError, match=r"is not a regular file\.$"):
        read_metadata(files)
