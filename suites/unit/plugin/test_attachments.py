"""What of kept evidence is attached to a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.plugin.attachments import _attached, _declaration
from harness.provisioner import EvidenceDeclaration, Provisioner
from harness.provisioner.declaration import DECLARATION_NAME, write_declaration
from harness.provisioner.outcome import LogPatterns, OutcomeDeclaration

if TYPE_CHECKING:
    from pathlib import Path


def test_what_a_provisioner_declares_is_attached(tmp_path: Path) -> None:
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


def test_damaged_declaration_attaches_nothing_more(tmp_path: Path) -> None:
    (tmp_path / DECLARATION_NAME).write_text("{")

    declaration = _declaration(tmp_path)

    assert declaration is None
    assert [path.name for path in _attached(tmp_path, declaration)] == [DECLARATION_NAME]
