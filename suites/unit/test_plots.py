"""Pictures in a page."""

from __future__ import annotations

import base64
from html.parser import HTMLParser

from typing_extensions import override

from harness.plots import picture


class Tags(HTMLParser):
    """The tags of a page, each with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, dict[str, str | None]] = {}
        self.feed(page)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] = dict(attrs)


def test_picture_has_a_drawing_for_each_colour_scheme_and_an_escaped_alternative_text() -> None:
    words = """<b>"a" & 'b'</b>"""

    tags = Tags(picture(b"light", b"dark", words)).found

    assert set(tags) == {"picture", "source", "img"}
    assert tags["img"]["alt"] == words
    assert "dark" in str(tags["source"]["media"])
    for tag, name, content in (("source", "srcset", b"dark"), ("img", "src", b"light")):
        assert base64.b64decode(str(tags[tag][name]).rpartition(",")[2]) == content
