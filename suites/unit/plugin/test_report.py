"""Names of evidence folders, and what of them is attached."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plugin.report import _declared, folder_name
from harness.provisioner import EvidenceDeclaration, Provisioner
from harness.provisioner.declaration import DECLARATION_NAME, write_declaration
from harness.provisioner.outcome import LogPatterns, OutcomeDeclaration

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("node_id", "name"),
    [
        ("suites/e2e/test_boot.py::test_kernel", "suites-e2e-test_boot.py-test_kernel"),
        ("test_boot.py::test_kernel[noble-kvm]", "test_boot.py-test_kernel-noble-kvm"),
        ("test_boot.py::TestBoot::test_kernel@group1", "test_boot.py-TestBoot-test_kernel"),
        ("test_boot.py::test_kernel[noble]@group1", "test_boot.py-test_kernel-noble"),
    ],
)
def test_plain_ids_stay_readable(node_id: str, name: str) -> None:
    assert folder_name(node_id) == name


def test_at_sign_within_a_parameter_is_kept() -> None:
    assert folder_name("t.py::t[a@b]") != folder_name("t.py::t[a]")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("t.py::t[a/b]", "t.py::t[a-b]"),
        ("t.py::t[a b]", "t.py::t[a-b]"),
        ("t.py::t[é]", "t.py::t[ü]"),
        ("t.py::t[" + "x" * 200 + "1]", "t.py::t[" + "x" * 200 + "2]"),
    ],
)
def test_similar_node_ids_get_different_folders(first: str, second: str) -> None:
    assert folder_name(first) != folder_name(second)


@given(st.text())
def test_any_id_becomes_one_harmless_folder_name(node_id: str) -> None:
    name = folder_name(node_id)

    assert re.fullmatch(r"[A-Za-z0-9_=][A-Za-z0-9._=-]*", name)
    assert len(name) <= 160


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
        (tmp_path / name).touch()

    found = [path for pattern in _declared(tmp_path) for path in tmp_path.glob(pattern)]

    assert {path.relative_to(tmp_path).as_posix() for path in found} == {
        "files/var/log/mine[1].log",
        "files/var/log/mine/a",
        "commands/mounts",
    }


def test_damaged_declaration_attaches_nothing_more(tmp_path: Path) -> None:
    (tmp_path / DECLARATION_NAME).write_text("{")

    assert list(_declared(tmp_path)) == []
