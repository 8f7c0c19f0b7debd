"""Allure's files are safe to show and limited in size, and an unwritten file does not end the run."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

import pytest
from allure_commons import model2

from harness.plugin.allure_files import AllureFiles

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e\udce9\x00 <script> é"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\u202e\udce9\x00 <script> é"


def a_result(text: str) -> model2.TestResult:
    return model2.TestResult(
        name=text,
        uuid="1",
        fullName=text,
        labels=[model2.Label(name=text, value=text)],
        parameters=[model2.Parameter(name=text, value=text)],
        statusDetails=model2.StatusDetails(message=text, trace=text),
        steps=[model2.TestStepResult(name=text, steps=[model2.TestStepResult(name=text)])],
        titlePath=[text],
    )


def test_control_characters_are_escaped_in_each_text_of_an_allure_result(tmp_path: Path) -> None:
    AllureFiles(tmp_path).report_result(a_result(EVIL))

    (path,) = tmp_path.iterdir()
    result = json.loads(path.read_text())
    step = {"name": SHOWN}
    assert result == {
        "uuid": "1",
        "name": SHOWN,
        "fullName": SHOWN,
        "labels": [{"name": SHOWN, "value": SHOWN}],
        "parameters": [{"name": SHOWN, "value": SHOWN}],
        "statusDetails": {"message": SHOWN, "trace": SHOWN},
        "steps": [{**step, "steps": [step]}],
        "titlePath": [SHOWN],
    }


def test_message_and_trace_of_an_allure_result_have_a_size_limit(tmp_path: Path) -> None:
    AllureFiles(tmp_path).report_result(a_result("y" * 1_000_000))

    (path,) = tmp_path.iterdir()
    details = json.loads(path.read_text())["statusDetails"]
    assert len(details["message"]) <= 8192
    assert len(details["trace"]) <= 65536


def test_control_characters_are_escaped_in_attached_text_but_not_in_binary_data(
    tmp_path: Path,
) -> None:
    rows: list[tuple[str | bytes, str, bytes]] = [
        (EVIL, "a.txt", SHOWN.encode()),
        (EVIL, "a.attach", SHOWN.encode()),
        (b"caf\xe9 \x1b[2J", "a.txt", rb"caf\xe9 \x1b[2J"),
        (b"\x89PNG\x1b", "a.png", b"\x89PNG\x1b"),
    ]
    for body, name, written in rows:
        AllureFiles(tmp_path).report_attached_data(body, name)

        assert (tmp_path / name).read_bytes() == written, body


def test_control_characters_are_escaped_in_an_attached_text_file(tmp_path: Path) -> None:
    (tmp_path / "serial.log").write_bytes(b"\x1b]0;owned\x07 caf\xe9\r\n")
    files = AllureFiles(tmp_path / "to")

    files.report_attached_file(str(tmp_path / "serial.log"), "a.txt")
    files.report_attached_file(str(tmp_path / "serial.log"), "a.cast")

    assert (tmp_path / "to/a.txt").read_text() == "\\x1b]0;owned\\x07 caf\\xe9\n"
    assert (tmp_path / "to/a.cast").read_bytes() == b"\x1b]0;owned\x07 caf\xe9\r\n"


def test_attaching_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        AllureFiles(tmp_path).report_attached_file("/no/such", "a.txt")


def test_file_over_the_attachment_limit_is_replaced_by_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_ATTACHMENT_MIB", "1")
    for name, size in (("serial.log", (1 << 20) + 1), ("serial.cast", 1 << 20)):
        (tmp_path / name).write_bytes(b"")
        os.truncate(tmp_path / name, size)

    AllureFiles(tmp_path / "to").report_attached_file(str(tmp_path / "serial.log"), "a.txt")
    AllureFiles(tmp_path / "to").report_attached_file(str(tmp_path / "serial.cast"), "a.cast")

    assert (tmp_path / "to/a.cast").stat().st_size == 1 << 20
    note = (tmp_path / "to/a.txt").read_text()
    assert "serial.log: the size of one attachment" in note
    assert "limit 'attachment-mib'" in note


def test_full_disk_is_recorded_and_leaves_no_partial_allure_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = AllureFiles(tmp_path)
    (tmp_path / "a-result.json.tmp").touch()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.replace", refuse)
    files.report_attached_data("text", "a.txt")
    files.report_result(a_result("b"))

    assert files.error is not None
    assert (files.error[0], files.error[1].errno) == ("a.txt", errno.ENOSPC)
    assert list(tmp_path.iterdir()) == []
