"""Which files of kept evidence are attached to a report."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from allure_commons.types import AttachmentType

from harness.plugin.attachments import _attached, _declaration, attach
from harness.provisioner import EvidenceDeclaration, Provisioner
from harness.provisioner.declaration import DECLARATION_NAME, write_declaration
from harness.provisioner.gpu_node import EVENTS_FOLDER
from harness.provisioner.outcome import LogPatterns, OutcomeDeclaration

if TYPE_CHECKING:
    import pytest


def test_evidence_files_that_the_provisioner_declares_are_attached(tmp_path: Path) -> None:
    mine = Provisioner(
        name="mine",
        run=["/opt/mine"],
        outcome=OutcomeDeclaration(log=LogPatterns(path="/var/log/mine[1].log")),
        evidence=EvidenceDeclaration(files=["/var/log/mine/*"], commands={"mounts": ["findmnt"]}),
    )
    write_declaration(mine, tmp_path)
    for name in ("files/var/log/mine[1].log", "files/var/log/mine/a", "commands/mounts"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    found = _attached(tmp_path, _declaration(tmp_path))

    assert {path.relative_to(tmp_path).as_posix() for path in found} == {
        "files/var/log/mine[1].log",
        "files/var/log/mine/a",
        "commands/mounts",
        DECLARATION_NAME,
    }


def test_empty_stderr_is_attached_but_an_empty_console_log_is_not_attached(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    for name in ("serial.log", "stderr.log", "argv.txt"):
        (tmp_path / "host" / name).write_text("x" * (name == "argv.txt"))

    found = _attached(tmp_path, None)

    assert {path.name for path in found} == {"stderr.log", "argv.txt"}


def test_only_the_declaration_is_attached_if_the_declaration_is_damaged(tmp_path: Path) -> None:
    (tmp_path / DECLARATION_NAME).write_text("{")

    declaration = _declaration(tmp_path)

    assert declaration is None
    assert [path.name for path in _attached(tmp_path, declaration)] == [DECLARATION_NAME]


def test_attachments_with_the_same_name_are_numbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event is named after its tasks, and any other file after its path."""
    seen: list[str] = []

    def step(title: str) -> nullcontext[None]:
        seen.append(f"> {title}")
        return nullcontext()

    monkeypatch.setattr("allure.step", step)
    monkeypatch.setattr(
        "allure.attach.file", lambda path, name, **_: seen.append(f"{Path(path).name} {name}")
    )
    events = tmp_path / "files" / EVENTS_FOLDER.lstrip("/")
    events.mkdir(parents=True)
    for number, task in enumerate(("apt", "dkms", "apt", "apt", "dkms"), start=1001):
        (events / f"{number}.json").write_text(json.dumps({"TaskName": task}))
    (events / "1006.json").write_text("{")
    for name in ("journal", "dmesg"):
        (tmp_path / "commands").mkdir(exist_ok=True)
        (tmp_path / "commands" / name).write_text("x")

    attach(tmp_path, "node")

    assert [each for each in seen if each.startswith(("1", "journal", "dmesg", ">"))] == [
        "> Evidence of 'node'",
        "> Output of commands in the guest",
        *("journal journal", "dmesg dmesg"),
        "> Files of the guest",
        *("1001.json event: apt", "1002.json event: dkms", "1003.json event: apt (2)"),
        *("1004.json event: apt (3)", "1005.json event: dkms (2)"),
        "1006.json event: not readable",
    ]


def test_files_that_a_guest_can_write_are_attached_as_plain_text_or_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Browsers run scripts in web pages and pictures, so a guest's files are attached as text."""
    shown: dict[str, AttachmentType] = {}

    def attach_file(_path: str, *, name: str, attachment_type: AttachmentType) -> None:
        shown[name] = attachment_type

    monkeypatch.setattr("allure.step", lambda _: nullcontext())
    monkeypatch.setattr("allure.attach.file", attach_file)
    kinds = ("html", "svg", "xml", "png", "json")
    names = [f"/srv/own.{kind}" for kind in kinds]
    mine = Provisioner(
        name="mine",
        run=["/opt/mine"],
        outcome=OutcomeDeclaration(log=LogPatterns(path="/srv/log")),
        evidence=EvidenceDeclaration(files=names, commands={"a.svg": ["findmnt"]}),
    )
    write_declaration(mine, tmp_path)
    for name in (
        "timeline.svg",
        "host/domain.xml",
        "commands/a.svg",
        *(f"files{n}" for n in names),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    attach(tmp_path, "node")

    assert shown == {
        DECLARATION_NAME: AttachmentType.JSON,
        "timeline.svg": AttachmentType.SVG,
        "domain.xml": AttachmentType.XML,
        "a.svg": AttachmentType.TEXT,
        **dict.fromkeys(names, AttachmentType.TEXT),
        "/srv/own.json": AttachmentType.JSON,
    }
