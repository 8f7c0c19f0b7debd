"""The README begins with the commands for newcomers; parsed pages have the right line numbers."""

from __future__ import annotations

from suites.docs.pages import (
    parse_page,
    read_pages,
)


def test_first_block_of_the_readme_has_the_commands_dev_demo_and_dev_test() -> None:
    (readme,) = (page for page in read_pages() if page.name == "README.md")

    assert readme.blocks[0].text == "./dev demo\n./dev test\n"


def test_parsed_page_has_the_line_numbers_of_its_blocks() -> None:
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
