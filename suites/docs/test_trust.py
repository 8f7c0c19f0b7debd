"""The tests that docs/trust.md names exist."""

from __future__ import annotations

import re

from suites.docs.pages import REPOSITORY

_PAGE = REPOSITORY / "docs/trust.md"
_NAMED = re.compile(r"`((?:unit|host|e2e|docs)/[\w/]+\.py)(?:::(\w+))?`")


def test_every_promise_on_the_trust_page_refers_to_existing_tests() -> None:
    rows = [line for line in _PAGE.read_text().splitlines() if line.startswith("| ")]
    promises = [row for row in rows if row != "| Promise | Checked by |"]

    assert promises
    for row in promises:
        named = _NAMED.findall(row)
        assert named, f"No test is named for: {row}"
        for path, test in named:
            file = REPOSITORY / "suites" / path
            assert file.is_file(), f"There is no 'suites/{path}'."
            found = re.search(rf"^ *def {test}\(", file.read_text(), re.MULTILINE)
            assert not test or found, f"There is no '{test}' in 'suites/{path}'."
