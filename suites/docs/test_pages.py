"""The pages hang together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from suites.docs.pages import (
    REPOSITORY,
    Page,
    StaleDocumentError,
    check_link,
    parse_page,
    read_pages,
)

if TYPE_CHECKING:
    from pathlib import Path

FRAGMENT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\.(feature|bugfix|doc|removal)\.md")


def test_links_lead_somewhere(pages: list[Page]) -> None:
    for page in pages:
        for link in page.links:
            check_link(page, link, pages, REPOSITORY)


def test_every_page_can_be_reached_from_the_index(pages: list[Page]) -> None:
    (index,) = (page for page in pages if page.name == "docs/index.md")
    targets = {f"docs/{link.text}" for link in index.links}

    assert {page.name for page in pages if page.name.startswith("docs/")} <= {
        *targets,
        "docs/index.md",
    }


def test_readme_opens_with_the_two_commands() -> None:
    (readme,) = (page for page in read_pages() if page.name == "README.md")

    assert readme.blocks[0].text == "./dev demo\n./dev test\n"
    assert readme.blocks[0].place.line <= 3


def test_fragments_are_named_by_their_kind_and_tell_something() -> None:
    fragments = [f for f in (REPOSITORY / "changelog").iterdir() if f.name != "README.md"]

    for fragment in fragments:
        assert FRAGMENT.fullmatch(fragment.name), f"'{fragment.name}' names no kind of change."
        assert fragment.read_text().strip().endswith("."), f"'{fragment.name}' holds no sentence."


@pytest.mark.parametrize(
    ("target", "trouble"),
    [
        ("missing.md", "'missing.md', which is not there"),
        ("other.md#nowhere", "'docs/other.md' has no heading '#nowhere'"),
        ("#nowhere", "'docs/page.md' has no heading '#nowhere'"),
    ],
)
def test_link_to_nothing_is_refused(tmp_path: Path, target: str, trouble: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/other.md").write_text("# Somewhere\n")
    (tmp_path / "docs/page.md").write_text(f"# Here\n\nSee [this]({target}).\n")
    (tmp_path / "README.md").touch()
    pages = read_pages(tmp_path)
    page = pages[-1]

    with pytest.raises(StaleDocumentError, match=f"docs/page.md:3: .*{re.escape(trouble)}"):
        check_link(page, page.links[0], pages, tmp_path)


def test_headings_have_the_anchors_that_github_gives_them() -> None:
    page = parse_page("page.md", "# Exit codes, and `harness doctor`\n")

    assert page.anchors == {"exit-codes-and-harness-doctor"}


def test_page_is_taken_apart_with_its_lines() -> None:
    page = parse_page(
        "page.md",
        "Text with `code`.\n\n```json outcome\n{}\n```\n\n"
        "| `Key` | Meaning |\n|---|---|\n| `a` | b \\| c |\n",
    )

    assert (page.code[0].text, page.code[0].place.line) == ("code", 1)
    (block,) = page.blocks
    assert (block.language, block.kind, block.text, block.place.line) == (
        "json",
        "outcome",
        "{}\n",
        3,
    )
    (table,) = page.tables
    assert table.header == ("Key", "Meaning")
    assert table.rows == (("a", "b | c"),)
    assert table.place.line == 7
