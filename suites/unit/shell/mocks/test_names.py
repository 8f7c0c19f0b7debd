"""The names that a mock can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.shell.mocks.names import can_be_function, check_mock_name, mentioned_paths
from harness.shell.mocks.scripts import write_mock_scripts

if TYPE_CHECKING:
    from pathlib import Path


def test_mock_can_have_the_name_of_a_command_or_the_path_of_a_file() -> None:
    names = (
        "curl",
        "[",
        "-x",
        ".hidden",
        "a b",
        "/usr/bin/id",
        "./tool",
        "bin/tool",
        "é",
        "\udce9",
    )
    for name in names:
        check_mock_name(name, source="a_spec.sh", line=3)


def test_impossible_mock_name_is_refused_with_its_line() -> None:
    names: list[tuple[str, str]] = [
        ("", "the name is empty"),
        (".", "are directories"),
        ("../../etc/passwd", "are directories"),
        ("/usr/../etc/passwd", "are directories"),
        ("/usr/bin/", "ends with '/'"),
        ("a\0b", "control character"),
        ("a\x1b[31m", "control character"),
        ("a\x7fb", "control character"),
        ("x" * 256, "too long"),
        ("é" * 128, "too long"),
        ("/" + "x/" * 2000 + "y", "too long"),
        ("\ud800", "no file can have this name"),
        ("__hx_answer", "the harness's own functions have such names"),
    ]
    for name, why in names:
        with pytest.raises(
            BadInputError, match=rf"^a_spec.sh:3: A mock can't be called .*{why}"
        ) as error:
            check_mock_name(name, source="a_spec.sh", line=3)

        assert len(str(error.value)) < 300


def test_mock_whose_name_is_not_utf8_gets_a_script(tmp_path: Path) -> None:
    write_mock_scripts(tmp_path, ["\udce9"])

    [script] = tmp_path.iterdir()
    assert script.name == "\udce9"
    assert (
        b"__hx_request mock '\xe9'" in script.read_bytes() or b"mock \xe9" in script.read_bytes()
    )


FUNCTIONS = {
    "gpu::probe": True, "a-b": True, "a.b": True, "a+b": True, "@a": True, "/opt/x": True,
    "a=b": True, "[": True, "if": True, "é": True, ":": True, "a b": False, "a;b": False,
    "$(a)": False, "a'b": False, "#a": False, "a\\b": False, "a`b`": False, "": False,
}  # fmt: skip


def test_exactly_the_function_names_that_bash_accepts_can_be_mocked() -> None:
    assert {name: can_be_function(name) for name in FUNCTIONS} == FUNCTIONS


MENTIONED: dict[str, set[str]] = {
    "/usr/bin/tool x": {"/usr/bin/tool"},
    '"/opt/a b/tool"; /opt/a-b/sbin/tool|cat': {"/opt/a-b/sbin/tool"},
    "ls /etc/tool /var/lib/tool": set(),
    "/usr/bin/tool-x; /usr/bin/tool/y; $DIR/bin/tool; ./bin/tool; a/bin/tool": set(),
    "X=/opt/bin/tool; /usr/sbin/tool": {"/opt/bin/tool", "/usr/sbin/tool"},
    "echo tool": set(),
}


def test_absolute_paths_of_a_command_are_found_in_code() -> None:
    assert {code: mentioned_paths("tool", code) for code in MENTIONED} == MENTIONED
