"""Which artifacts of the store are meant, and what is said of them."""

from __future__ import annotations

import datetime as dt

import pytest

from harness.shared_store.answers import next_page, read_moment
from harness.shared_store.source import StoredArtifact, needed_artifacts

TAGS = ("baked-0123", "booted-0123", "booted-4567")
NOON = dt.datetime(2026, 8, 21, 12, tzinfo=dt.timezone.utc)


def an_artifact(tag: str) -> StoredArtifact:
    return StoredArtifact(
        repository="checkpoints", tag=tag, digest="x", pushed=None, packed_bytes=1, needs=None
    )


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ([], TAGS),
        (["booted"], TAGS[1:]),
        (["booted-4567"], TAGS[2:]),
        (["nothing", "baked"], TAGS[:1]),
        (["booted-4567", "baked-0123"], (TAGS[0], TAGS[2])),
        (["0123"], ()),
    ],
)
def test_artifacts_are_named_by_their_beginnings(names: list[str], chosen: tuple[str]) -> None:
    assert needed_artifacts([an_artifact(tag) for tag in TAGS], names) == [*chosen]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-08-21T12:00:00Z", NOON),
        ("2026-08-21T12:00:00+00:00", NOON),
        ("2026-08-21T14:00:00+02:00", NOON),
        ("2026-08-21T12:00:00", NOON),
        ("noon", None),
        ("", None),
        (None, None),
    ],
)
def test_time_of_a_push_has_its_zone(text: str | None, moment: dt.datetime | None) -> None:
    assert read_moment(text) == moment


@pytest.mark.parametrize(
    ("link", "page"),
    [
        ('</v2/t/tags/list?last=a>; rel="next"', "/v2/t/tags/list?last=a"),
        (" <https://r/x>", "https://r/x"),
        ("", None),
        (None, None),
        ("/v2/x", None),
    ],
)
def test_next_page_is_in_angle_brackets(link: str | None, page: str | None) -> None:
    assert next_page(link) == page
