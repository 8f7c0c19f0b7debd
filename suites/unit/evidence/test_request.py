"""The evidence request for every node, and its script, are compared with golden files."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import BadInputError
from harness.evidence.collection_script import Frame, StreamError, parse_stream, render_script
from harness.evidence.request import (
    NOTHING_MORE,
    AdditionalEvidence,
    EvidenceRequest,
    guest_request,
    node_request,
)
from suites.unit.provisioning.goldens import expect_golden

if TYPE_CHECKING:
    from collections.abc import Iterable

GOLDENS = Path(__file__).parent / "goldens"


def test_evidence_request_for_a_node_matches_the_golden_file() -> None:
    request = guest_request(["6.1.0-56", "6.1.0-55"])
    existing = node_request(["6.1.0-56", "6.1.0-55"])

    assert (request.files, request.paths) == (existing.files, existing.paths)
    assert set(request.commands) - set(existing.commands) == {"dkms-status"}
    expect_golden(
        "request",
        "\n".join(
            [
                *(f"{name}: {shlex.join(argv)}" for name, argv in request.commands.items()),
                *("", "files:", *request.files, "", "paths:", *request.paths),
            ]
        ),
        GOLDENS,
    )


def test_evidence_script_matches_the_golden_file() -> None:
    request = EvidenceRequest(
        commands={"it's": ["echo", "a b"], "x": ["true"]},
        files=["/a b/*.x", "/c/d"],
        paths=["/e/?/f", "/c/*"],
    )

    expect_golden("script", render_script(request, "0123456789abcdef").rstrip("\n"), GOLDENS)


def test_stream_is_parsed_into_frames_with_kind_and_name_and_content() -> None:
    stream = b"\nn file /a b\0x\0y\nn exit 0\0\nn command c\0\nn end \0"

    expected = [
        (Frame(kind="file", name="/a b"), b"x\0y"),
        (Frame(kind="exit", name="0"), b""),
        (Frame(kind="command", name="c"), b""),
        (Frame(kind="end", name=""), b""),
    ]
    assert whole_frames(parse_stream([stream], "n")) == expected
    single = [bytes([byte]) for byte in stream]
    assert whole_frames(parse_stream(single, "n")) == expected


def whole_frames(items: Iterable[Frame | bytes]) -> list[tuple[Frame, bytes]]:
    found: list[tuple[Frame, bytes]] = []
    for item in items:
        if isinstance(item, Frame):
            found.append((item, b""))
        else:
            frame, content = found.pop()
            found.append((frame, content + item))
    return found


def test_frame_name_that_is_not_utf8_is_preserved() -> None:
    (frame, _), _ = whole_frames(parse_stream([b"\nn file /\xff\0x\nn end \0"], "n"))

    assert os.fsencode(frame.name) == b"/\xff"


def test_incomplete_stream_is_refused_with_the_reason() -> None:
    for stream, why in (
        (b"", "the stream is incomplete"),
        (b"x\nn end \0", "the stream is incomplete"),
        (b"\nn end \0\n", "the stream is incomplete"),
        (b"\nn end \0\nn end \0", "the stream is incomplete"),
        (b"\nn file /a\0", "the stream is incomplete"),
        (
            b"\nn file /" + b"a" * 90 + b"\nn end \0",
            f"the name of a frame has no end: {b'file /' + b'a' * 74!r}",
        ),
    ):
        with pytest.raises(StreamError) as caught:
            list(parse_stream([stream], "n"))

        assert str(caught.value) == why, stream


def test_later_evidence_request_replaces_commands_of_the_same_name_when_merged() -> None:
    one = AdditionalEvidence(
        files=["/b", "/a"], commands={"x": ["one"], "y": ["one"]}, source="one"
    )
    other = AdditionalEvidence(files=["/c", "/b"], commands={"y": ["other"]}, source="other")

    assert one.merged(other) == AdditionalEvidence(
        files=("/b", "/a", "/c"), commands={"x": ["one"], "y": ["other"]}, source="other"
    )


def test_additional_files_are_added_to_the_files_and_the_paths_of_a_request() -> None:
    request = EvidenceRequest(commands={"a": ["a"]}, files=["/f"], paths=["/p"])
    more = AdditionalEvidence(files=["/m"], commands={"b": ["b"]})

    assert request.extended(more) == EvidenceRequest(
        commands={"a": ["a"], "b": ["b"]}, files=["/f", "/m"], paths=["/p", "/m"]
    )
    assert request.extended(NOTHING_MORE) == EvidenceRequest(
        commands={"a": ["a"]}, files=["/f"], paths=["/p"]
    )


def test_error_for_invalid_additional_evidence_mentions_the_key() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"files": "/etc/x"}, "files"),
        ({"files": 5}, "files"),
        ({"files": ["/a", 5]}, "files[1]"),
        ({"files": ["/a", "etc/x"]}, "files[1]"),
        ({"files": ["/etc/../x"]}, "files[0]"),
        ({"files": ["/etc/./x"]}, "files[0]"),
        ({"files": ["/etc//x"]}, "files[0]"),
        ({"files": ["/etc/"]}, "files[0]"),
        ({"files": ["/"]}, "files[0]"),
        ({"files": ["/etc/x\n"]}, "files[0]"),
        ({"commands": [["uptime"]]}, "commands"),
        ({"commands": {"b": ["ip"], "a": "ip link"}}, "commands.a"),
        ({"commands": {"../a": ["ip"]}}, "commands"),
        ({"commands": {".a": ["ip"]}}, "commands"),
        ({"commands": {5: ["ip"]}}, "commands"),
        ({"commands": {"a.exit-code": ["ip"]}}, "commands"),
    ]
    for more, key in rows:
        with pytest.raises(BadInputError) as caught:
            AdditionalEvidence(**more, source="mine")

        assert (caught.value.source, caught.value.key) == ("mine", key), more


def test_additional_command_with_the_name_of_a_standard_command_is_refused() -> None:
    more = AdditionalEvidence(commands={"own": ["x"], "dmesg": ["x"]}, source="mine")

    with pytest.raises(BadInputError) as caught:
        node_request([]).extended(more)

    assert (caught.value.source, caught.value.key) == ("mine", "commands.dmesg")
