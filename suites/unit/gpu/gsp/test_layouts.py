"""The strict parser for the data of a driver release, and the comparison of two releases."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.gpu.gsp.layouts import (
    Field,
    known_releases,
    nearest_release,
    read_layouts,
    read_release_file,
)
from harness.gpu.gsp.release_source import changes

if TYPE_CHECKING:
    from pathlib import Path

_DATA: dict[str, object] = {
    "schema": 1,
    "release": "999.1",
    "structs": {
        "INNER": [8, [["low", 0, 4, "u32", 1], ["high", 4, 4, "u32", 1]]],
        "OUTER": [24, [["count", 0, 4, "u32", 1], ["inner", 8, 8, "INNER", 2]]],
    },
    "commands": {"0x20800001": ["doThis", "OUTER"], "0x20800002": ["doThat", None]},
    "constants": {"MC_ENGINE_IDX_GSP": 50},
}


def _write(folder: Path, release: str = "999.1", **changed: object) -> Path:
    file = folder / "releases" / f"{release}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**_DATA, "release": release, **changed}))
    return file


def test_shipped_release_data_contains_the_structs_and_constants_for_the_handshake() -> None:
    for release in ("535.261.03", "550.163.01"):
        layouts = read_layouts(release)

        # The driver's queue and libos ABI: these sizes are the same in both releases.
        assert layouts.struct("GSP_ARGUMENTS_CACHED").size == 0x50
        assert layouts.struct("GspFwWprMeta").size == 256
        assert layouts.struct("LibosMemoryRegionInitArgument").size == 32
        fields = layouts.struct("NV_CHANNEL_ALLOC_PARAMS").fields
        assert fields["hVASpace"] == Field(0x1C, 4, "u32", 1)
        bars, instances = layouts.command(0x20801803), layouts.command(0x20800AA6)
        assert bars is not None
        assert bars.struct == "NV2080_CTRL_BUS_GET_PCI_BAR_INFO_PARAMS"
        # Only the GSP implements the command that lists instances.
        assert instances is not None
        assert instances.struct is not None
        assert layouts.constant("NV_VGPU_MSG_EVENT_GSP_INIT_DONE") == 0x1001


def test_lookup_of_a_missing_struct_or_constant_raises_a_key_error(tmp_path: Path) -> None:
    layouts = read_release_file(_write(tmp_path))

    assert layouts.command(0x20800003) is None
    with pytest.raises(KeyError):
        layouts.struct("u32")
    with pytest.raises(KeyError):
        layouts.constant("MC_ENGINE_IDX_NONE")


def test_release_file_in_a_users_folder_is_read(tmp_path: Path) -> None:
    _write(tmp_path)
    _write(tmp_path, "1000.1")

    assert list(known_releases(tmp_path)) == ["535.261.03", "550.163.01", "999.1", "1000.1"]
    assert read_layouts("999.1", tmp_path).struct("OUTER").fields["inner"].count == 2
    # A user's file overrides the harness's file for the same release.
    _write(tmp_path, "550.163.01")
    assert read_layouts("550.163.01", tmp_path).structs == ("INNER", "OUTER")


def test_error_for_a_release_without_data_shows_the_known_releases_and_the_command() -> None:
    with pytest.raises(BadInputError) as refused:
        read_layouts("570.1.2")

    message = str(refused.value)
    assert "NVIDIA driver 570.1.2" in message
    assert "'535.261.03', '550.163.01'" in message
    assert "harness gpu release" in message


def test_error_for_a_malformed_release_file_mentions_the_file_and_the_mistake(
    tmp_path: Path,
) -> None:
    file = _write(tmp_path)
    slips: tuple[tuple[dict[str, object], str], ...] = (
        ({}, "JSON"),
        ({"schema": 2}, "schema"),
        ({"extra": 1}, "extra"),
        ({"release": "../etc"}, "release"),
        ({"release": "999.2"}, "'999.2'"),
        ({"structs": {"A": [4, [["x", 0, 4, "NOT_THERE", 1]]]}, "commands": {}}, "'NOT_THERE'"),
        (
            {"structs": {"A": [4, [["x", 2, 4, "u32", 1]]]}, "commands": {}},
            "byte 6, but the structure has 4 bytes",
        ),
        (
            {"structs": {"A": [8, [["x", 0, 4, "u32", 3]]]}, "commands": {}},
            "byte 12, but the structure has 8 bytes",
        ),
        ({"structs": {"A": [4, [["x", 0, -4, "u32", 1]]]}, "commands": {}}, "structs.A"),
        ({"structs": {"A": [4, [["x", 0, 4, "u33", 1]]]}, "commands": {}}, "'u33'"),
        ({"commands": {"0x20800001": ["doThis", "NOT_THERE"]}}, "'NOT_THERE'"),
        ({"commands": {"1": ["doThis", None]}}, "commands"),
        ({"constants": {"MC_ENGINE_IDX_GSP": "50"}}, "constants"),
    )
    for changed, said in slips:
        file.write_text(json.dumps({**_DATA, **changed}) if changed else "{")

        with pytest.raises(BadInputError) as refused:
            read_release_file(file)

        assert str(file) in str(refused.value)
        assert said in str(refused.value)


def test_release_file_that_is_not_a_plain_file_is_refused(tmp_path: Path) -> None:
    """Opening a FIFO would wait for a writer."""
    pipe, folder = tmp_path / "1.json", tmp_path / "2.json"
    os.mkfifo(pipe)
    folder.mkdir()

    for path in (pipe, folder):
        with pytest.raises(BadInputError, match=rf"^{path}: .*not a regular file"):
            read_release_file(path)


def test_nearest_release_is_the_newest_earlier_release() -> None:
    known = ["535.261.03", "550.54.14", "550.163.01"]

    assert nearest_release("570.1", known) == "550.163.01"
    assert nearest_release("550.163.01", known) == "550.54.14"
    assert nearest_release("520.1", known) == "535.261.03"
    assert nearest_release("520.1", ["520.1"]) is None
    assert nearest_release("550.54.15", ["550.54.20", "550.54.14"]) == "550.54.14"


def test_list_of_changes_contains_moved_and_added_and_removed_names(tmp_path: Path) -> None:
    old = read_release_file(_write(tmp_path))
    new = read_release_file(
        _write(
            tmp_path,
            "999.2",
            structs={
                "OUTER": [32, [["count", 4, 4, "u32", 1], ["added", 8, 8, "u64", 1]]],
                "NEW": [4, []],
            },
            commands={"0x20800001": ["doThis", "NEW"], "0x20800003": ["doMore", None]},
            constants={"MC_ENGINE_IDX_GSP": 51},
        )
    )

    assert list(changes(old, new)) == [
        "- structure INNER",
        "+ structure NEW",
        (
            "~ structure OUTER: size 24 -> 32, -inner, +added, "
            "count u32[1] of 4 bytes at 0 -> u32[1] of 4 bytes at 4"
        ),
        "~ command 0x20800001: doThis(OUTER) -> doThis(NEW)",
        "- command 0x20800002: doThat()",
        "+ command 0x20800003: doMore()",
        "~ number MC_ENGINE_IDX_GSP: 50 -> 51",
    ]
    assert list(changes(old, old)) == []
