"""Names of evidence folders."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plugin.node_ids import folder_name


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
