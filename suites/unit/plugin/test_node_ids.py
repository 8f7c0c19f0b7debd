"""The names of evidence folders, made from node ids."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from harness.plugin.node_ids import folder_name


def test_folder_name_of_a_plain_node_id_is_readable() -> None:
    for node_id, name in (
        ("suites/e2e/test_boot.py::test_kernel", "suites-e2e-test_boot.py-test_kernel"),
        ("test_boot.py::test_kernel[noble-kvm]", "test_boot.py-test_kernel-noble-kvm"),
        ("test_boot.py::test_kernel[noble]@group1", "test_boot.py-test_kernel-noble"),
    ):
        assert folder_name(node_id) == name, node_id


def test_at_sign_in_a_parameter_id_changes_the_folder_name() -> None:
    assert folder_name("t.py::t[a@b]") != folder_name("t.py::t[a]")


def test_similar_node_ids_get_different_folders() -> None:
    """The folders differ also on a file system that ignores case."""
    for first, second in (
        ("t.py::t[a/b]", "t.py::t[a-b]"),
        ("t.py::t[é]", "t.py::t[e\u0301]"),
        *((f"t.py::t{'x' * n}1", f"t.py::t{'x' * n}2") for n in range(128, 150)),
        *((f"t.py::t[{'x' * n}1]", f"t.py::t[{'x' * n}2]") for n in range(128, 150)),
        ("a/b.py::t", "a-b.py::t"),
        ("a.py::b::c", "a.py::b[c]"),
        ("a.py::T::c", "a.py::t::c"),
        ("a_spec.sh::mails a@b", "a_spec.sh::mails a@c"),
        ("a.py/b.py::t", "a.py::b.py-t"),
        ("a.py::t[x-]", "a.py::t[x]"),
        ("a.py::t[]", "a.py::t"),
        ("a.py::t[\udce9]", "a.py::t[\\udce9]"),
    ):
        assert folder_name(first).casefold() != folder_name(second).casefold(), first


def test_each_run_of_a_repeated_test_has_its_own_folder() -> None:
    names = {folder_name("a.py::t", repeat=number) for number in (1, 2, 3)}

    assert len(names) == 3
    assert "a.py-t" in names
    assert all(name.startswith("a.py-t") for name in names)


def test_node_id_that_resembles_a_folder_name_with_a_digest_gets_another_folder_name() -> None:
    name = folder_name("t.py::t[X]")

    assert folder_name(f"t.py::t[{name.removeprefix('t.py-t-').lower()}]") != name.lower()


IDS = st.from_regex(r"([aAb]/|a-)?[aA]\.py(::[aAt]){1,2}(\[[aA./:-]{0,3}\])?", fullmatch=True)


@given(IDS, IDS)
def test_different_node_ids_have_different_folder_names(first: str, second: str) -> None:
    assert (folder_name(first).lower() == folder_name(second).lower()) == (first == second)


@given(st.text())
@example(".a.py::t")
def test_folder_name_of_any_node_id_has_only_harmless_characters(node_id: str) -> None:
    name = folder_name(node_id)

    assert re.fullmatch(r"[A-Za-z0-9_=][A-Za-z0-9._=-]*", name)
    assert len(name) <= 160
