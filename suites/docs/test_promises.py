"""The promises page lists the tests that check promises, and no other tests."""

from __future__ import annotations

import pytest

from suites.e2e.promises import PAGE, REPOSITORY, Row, collected_rows, render_page


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return collected_rows()


def test_promises_page_has_one_row_for_each_machine_test_and_no_other_row(rows: list[Row]) -> None:
    written = PAGE.read_text().splitlines()
    wanted = render_page(rows).splitlines()

    without_test = sorted(set(written) - set(wanted))
    without_row = sorted(set(wanted) - set(written))
    assert (without_test, without_row) == ([], []), (
        f"'{PAGE.name}' has lines without a test, and tests have no line there; run "
        "`python -m suites.e2e.promises`."
    )
    assert written == wanted


def test_rows_for_another_provisioner_leave_out_promises_of_the_harness_provisioner(
    rows: list[Row],
) -> None:
    others = collected_rows("--provisioner=suites/e2e/shell_provisioner/provisioner.yaml")

    assert set(others) < set(rows)
    assert {row.family for row in others} == {
        "record",
        "kernel",
        "teardown",
        "services",
        "registry",
    }
    titles = {row.title.partition(": ")[2] for row in others if row.family == "record"}
    assert "record is a pipe" in titles
    assert "another version is wanted" not in titles, "It needs a key of our configuration."


def test_titles_of_the_promises_are_unique(rows: list[Row]) -> None:
    titles = [row.title for row in rows]

    assert sorted(titles) == sorted(set(titles))


def test_unit_tests_of_the_promises_exist(rows: list[Row]) -> None:
    for unit in sorted({row.unit for row in rows}):
        path, _, name = unit.partition("::")
        text = (REPOSITORY / path).read_text()
        assert not name or f"def {name}(" in text, f"There is no unit test '{unit}'."
