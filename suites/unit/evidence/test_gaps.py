"""Items that the evidence does not show are not taken for items that do not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.evidence.gaps import refuse_any_closed, refuse_closed, refuse_gaps
from harness.evidence.requested import is_match, unrequested, write_request

if TYPE_CHECKING:
    from pathlib import Path


def test_path_pattern_matches_like_a_shell_glob() -> None:
    for pattern, matching, others in (
        ("/etc/*.conf", ["/etc/a.conf"], ["/etc/.a.conf", "/etc/a/b.conf", "/etc/a.conf.d"]),
        ("/etc/a?", ["/etc/ab"], ["/etc/a", "/etc/abc", "/etc/a/"]),
        ("/etc/?x", ["/etc/ax"], ["/etc/.x"]),
        ("/etc/a*", ["/etc/a", "/etc/a.b"], ["/etc/ba"]),
        ("/a+b[c]", ["/a+b[c]"], ["/aab[c]", "/a+bc"]),
        ("/*/x", ["/a/x"], ["/x", "/a/b/x", "/.a/x"]),
        ("/**/*.log", ["/a/b.log"], ["/a/.log", "/.a/b.log", "/a/b/c.log"]),
        # Evidence of other people may have any pattern.
        (f"/etc/{'*' * 60}b", ["/etc/ab"], [f"/etc/{'a' * 60}"]),
        (f"/etc/{'*a' * 60}b", [f"/etc/{'a' * 60}b"], [f"/etc/{'a' * 200}"]),
    ):
        assert [path for path in [*matching, *others] if is_match(path, pattern)] == matching, (
            pattern
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the evidence of a node whose gathering was complete."""
    write_request(
        tmp_path,
        commands={},
        files=["/etc/*", "/var/log/?.log", "/lib/*/a/*", "/proc/x"],
        paths=["/dev/nvidia*"],
    )
    (tmp_path / "unreadable.txt").touch()
    return tmp_path


def test_unrequested_returns_patterns_that_no_requested_pattern_covers(folder: Path) -> None:
    for kind, pattern, was in (
        ("files", "/etc/passwd", True),
        ("files", "/etc/*", True),
        ("files", "/etc/a*", True),
        ("files", "/etc/a/b", False),
        ("files", "/var/log/a.log", True),
        ("files", "/var/log/*.log", False),
        ("files", "/var/log/?.log", True),
        ("files", "/var/log/ab.log", False),
        ("files", "/lib/*/a/*", True),
        ("files", "/lib/x/a/*.ko", True),
        ("files", "/lib/*/b", False),
        ("files", "/proc/x", True),
        ("files", "/proc/?", False),
        ("files", "/dev/nvidia0", False),
        ("paths", "/dev/nvidia0", True),
        ("paths", "/etc/passwd", False),
    ):
        assert (unrequested(folder, kind, [pattern]) == []) is was, (kind, pattern)  # type: ignore[arg-type]


def test_request_file_of_an_unknown_form_or_schema_is_refused(folder: Path) -> None:
    for text, why in (
        ("{", "unknown format"),
        ('{"schema": 0, "files": []}', "has the schema 0, but"),
        ('{"schema": 1}', "unknown format"),
        (
            '{"schema": 2, "files": []}',
            "has the schema 2, but this version of the harness reads 1",
        ),
    ):
        (folder / "requested.json").write_text(text)

        with pytest.raises(HarnessError, match=why):
            unrequested(folder, "files", ["/etc/x"])


def test_path_that_was_not_gathered_raises_a_harness_error(folder: Path) -> None:
    refuse_gaps(folder, "files", "/etc/x")
    with pytest.raises(HarnessError, match="'/srv/x' was not gathered"):
        refuse_gaps(folder, "files", "/etc/x", "/srv/x")


def test_paths_below_an_unreadable_folder_are_unknown(folder: Path) -> None:
    (folder / "unreadable.txt").write_text("/var/x\n/etc/ssl/private\n")

    for pattern in ("/etc/ssl/other", "/etc/ssl", "/etc/ssl/private2"):
        refuse_closed(folder, pattern)
    for pattern in (
        "/etc/ssl/private",
        "/etc/ssl/private/key",
        "/etc/ssl/private/old/key",
        "/etc/ssl/*/key",
        "/etc/ssl/*",
    ):
        with pytest.raises(HarnessError, match="no permission to read '/etc/ssl/private'"):
            refuse_closed(folder, "/etc/x", pattern)


def test_every_path_is_unknown_if_the_root_is_unreadable(folder: Path) -> None:
    (folder / "unreadable.txt").write_text("/\n")

    for pattern in ("/etc/x", "/*", "/"):
        with pytest.raises(HarnessError, match="no permission to read '/',"):
            refuse_closed(folder, pattern)


def test_any_unreadable_path_makes_the_whole_listing_unknown(folder: Path) -> None:
    refuse_any_closed(folder)
    (folder / "unreadable.txt").write_text("/var/x\n")
    with pytest.raises(HarnessError, match="no permission to read '/var/x'"):
        refuse_any_closed(folder)


def test_absence_is_unknown_if_gathering_was_incomplete(folder: Path) -> None:
    (folder / "not-collected.txt").write_text("No answer.\n")

    with pytest.raises(
        HarnessError, match=r"may still exist in the guest\. The reason is: No answer\."
    ):
        refuse_closed(folder, "/etc/x")
    (folder / "not-collected.txt").unlink()
    (folder / "unreadable.txt").unlink()
    with pytest.raises(HarnessError, match="is not complete"):
        refuse_closed(folder, "/etc/x")
