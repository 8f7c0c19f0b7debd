"""A node's state is compared with an earlier state; each single kind of change is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.evidence.state import FileIdentity, StateKind, Unknown
from harness.evidence.state_diff import AllowedChanges
from suites.unit.evidence.states import OLD_NS, TAKEN_NS, a_file, a_state, rewritten

if TYPE_CHECKING:
    from pathlib import Path

    from harness.evidence.state import NodeState

TOOL = "/usr/bin/tool"
BUSY = {"references": "1", "holders": "nvidia_uvm"}


def difference(before: NodeState, after: NodeState, allow: AllowedChanges | None = None) -> str:
    """Return the message with which a difference between two states is refused."""
    with pytest.raises(ExpectationError) as caught:
        expect.unchanged(before, after, allow=allow)
    return caught.value.sentence


def test_two_equal_states_are_accepted_as_unchanged() -> None:
    file, folder = a_file(), a_file(kind="d", size=0)
    link = a_file(kind="l", target="tool", size=0)
    items = {StateKind.MODULES: {"nvidia": BUSY}}

    state = a_state({TOOL: file, "/usr": folder, "/usr/bin/link": link}, items)

    expect.unchanged(state, state)


def test_change_of_one_attribute_is_refused() -> None:
    for after, seen in (
        (a_file(uid=1000), "owner 0:0 -> 1000:0"),
        (a_file(gid=7), "owner 0:0 -> 0:7"),
        (a_file(mode=0o4755), "mode 0755 -> 4755"),
        (a_file(capabilities="cap_net_raw+ep"), "capabilities none -> cap_net_raw+ep"),
        (a_file(attributes="i"), "attributes none -> i"),
        (a_file(xattrs=(("user.a", "00"),)), "xattr user.a none -> 00"),
        (a_file(size=11), "size 10 -> 11"),
        (a_file(kind="l", target="b"), "target none -> b"),
        (rewritten(a_file()), "its earlier content is not known"),
    ):
        message = difference(a_state({TOOL: a_file()}), a_state({TOOL: after}))

        assert f"~ {TOOL}: " in message
        assert seen in message
        assert "1 items differ" in message


def test_new_path_and_vanished_path_are_refused() -> None:
    both = {"/a": a_file()}

    assert "+ /b: kind f, mode 0755, owner 0:0, size 10" in difference(
        a_state(both), a_state({**both, "/b": a_file()})
    )
    assert "- /a: kind f" in difference(a_state(both), a_state())


def test_file_that_is_written_again_with_the_same_content_is_unchanged() -> None:
    before = a_file(sha256="a" * 64)

    expect.unchanged(a_state({TOOL: before}), a_state({TOOL: rewritten(before)}))
    empty = a_file(size=0)
    expect.unchanged(a_state({TOOL: empty}), a_state({TOOL: rewritten(empty)}))


def test_file_with_other_content_of_the_same_size_is_refused() -> None:
    before = a_file(sha256="a" * 64)
    after = rewritten(before, sha256="b" * 64)

    message = difference(a_state({TOOL: before}), a_state({TOOL: after}))

    assert f"sha256 {'a' * 16} -> {'b' * 16}" in message


def test_files_are_compared_without_checksum_if_only_one_state_has_a_checksum() -> None:
    before = a_file(sha256="a" * 64)

    expect.unchanged(a_state({TOOL: before}), a_state({TOOL: before._replace(sha256=None)}))
    message = difference(a_state({TOOL: before}), a_state({TOOL: rewritten(before, sha256=None)}))

    assert "sha256" not in message


def test_file_changed_in_the_last_second_counts_as_changed_despite_equal_identity() -> None:
    """Two changes within one tick of the clock have the same ctime."""
    changed_ns = TAKEN_NS - 999_999_999
    recent = a_file(identity=FileIdentity("disk", 12, changed_ns, changed_ns))

    later = replace(a_state({TOOL: recent}), taken_at_ns=TAKEN_NS + 10**10)
    assert TOOL in difference(a_state({TOOL: recent}), later)
    read = recent._replace(sha256="a" * 64)
    expect.unchanged(a_state({TOOL: read}), a_state({TOOL: read}))


def test_every_field_of_a_file_identity_is_compared() -> None:
    for identity in (
        FileIdentity("other disk", 12, OLD_NS, OLD_NS),
        FileIdentity("disk", 13, OLD_NS, OLD_NS),
        FileIdentity("disk", 12, OLD_NS + 1, OLD_NS),
        FileIdentity("disk", 12, OLD_NS, OLD_NS + 1),
    ):
        after = a_file(identity=identity)

        assert TOOL in difference(a_state({TOOL: a_file()}), a_state({TOOL: after}))


def test_each_kind_of_change_is_refused_unless_it_is_allowed() -> None:
    for kind in set(StateKind) - {StateKind.PATHS}:
        before = a_state(items={kind: {"one": {"key": "a"}, "two": {}}})
        after = a_state(items={kind: {"one": {"key": "b"}, "three": {}}})

        message = difference(before, after)

        assert f"{kind.value} (3):" in message
        assert "~ one: key a -> b" in message
        assert [word in message for word in ("- two", "+ three")] == [True, True]
        field = kind.name.lower()
        expect.unchanged(before, after, allow=AllowedChanges(**{field: ["one", "t*"]}))
        assert f"{kind.value} (1):" in difference(before, after, AllowedChanges(**{field: ["t*"]}))


def test_changes_that_every_idle_node_makes_are_allowed() -> None:
    changed = {"/var/log/syslog": a_file(), "/var/lib/systemd/random-seed": a_file()}
    units = {StateKind.UNITS: {"session-1.scope": {"active": "active"}}}

    expect.unchanged(a_state(), a_state(changed, units))
    assert "/var/logs" in difference(a_state(), a_state({"/var/logs": a_file()}))


def test_allowed_pattern_must_match_the_whole_path(tmp_path: Path) -> None:
    allow = AllowedChanges(paths=["/opt/gpu", "/srv/*"], units=["*"])
    # The changes of an idle node are still allowed.
    paths = dict.fromkeys(("/opt/gpu", "/opt/gpu/x", "/srv/a", "/var/log/x"), a_file())

    message = difference(a_state(), a_state(paths, folder=tmp_path), allow)

    assert "1 items differ" in message
    assert "+ /opt/gpu/x" in message
    assert (tmp_path / "difference-1.txt").read_text().count("  + ") == 1


def test_string_in_place_of_a_list_of_patterns_is_refused() -> None:
    with pytest.raises(
        BadInputError, match="key 'paths': A list of patterns was expected, but this is a text"
    ):
        AllowedChanges(paths="/opt/*")


def test_unknown_part_of_a_state_raises_an_error_unless_its_changes_are_allowed() -> None:
    unknown = a_state(None, None, Unknown(StateKind.IMAGES, "*", "containerd does not answer"))

    for states in ((unknown, a_state()), (a_state(), unknown)):
        with pytest.raises(HarnessError, match=r"container image \*: containerd does not answer"):
            expect.unchanged(*states)
        with pytest.raises(HarnessError, match="are unknown"):
            expect.unchanged(*states, allow=AllowedChanges(images=["docker.io/*"], paths=["*"]))
        expect.unchanged(*states, allow=AllowedChanges(images=["*"]))


def test_states_with_the_same_unknown_part_do_not_count_as_equal() -> None:
    state = a_state(None, None, Unknown(StateKind.PATHS, "/srv", "Permission denied"))

    with pytest.raises(HarnessError, match="path /srv: Permission denied"):
        expect.unchanged(state, state)
    expect.unchanged(state, state, allow=AllowedChanges(paths=["/srv*"]))


def test_error_shows_40_difference_lines_and_the_difference_file_has_all(tmp_path: Path) -> None:
    paths = {f"/opt/{number:03}": a_file() for number in range(50)}
    packages = {StateKind.PACKAGES: {f"p{number:02}": {"version": "1"} for number in range(20)}}
    after = a_state(paths, packages, folder=tmp_path / "states")

    first, second = difference(a_state(), after), difference(a_state(), after)

    head, *lines = first.splitlines()
    assert len(lines) == 40
    assert lines[-1] == f"… and {70 - sum(line.startswith('  ') for line in lines)} more"
    assert "('difference-1.txt' has them all)" in head
    assert "('difference-2.txt' has them all)" in second
    whole = (tmp_path / "states" / "difference-1.txt").read_text()
    assert len(re.findall(r"^  \+ ", whole, re.MULTILINE)) == 70
    forty = difference(a_state(), a_state(dict(list(paths.items())[:39])))
    assert len(forty.splitlines()) == 41
    assert "more" not in forty


def test_message_begins_with_the_first_difference() -> None:
    one = difference(a_state(), a_state({TOOL: a_file()}))
    two = difference(a_state(), a_state({TOOL: a_file(), "/opt/x": a_file()}))

    assert one.startswith(f"Changed: '+ {TOOL}: kind f,")
    assert two.partition(". The state of")[0].endswith("' and 1 others")


def test_message_mentions_each_node_and_the_folder_of_the_later_state(tmp_path: Path) -> None:
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    before = replace(a_state(folder=earlier), node="first")
    after = replace(a_state({TOOL: a_file()}, folder=later), node="second")

    with pytest.raises(
        ExpectationError, match=r"of 'second' .* earlier state of 'first'"
    ) as caught:
        expect.unchanged(before, after)

    assert caught.value.evidence == later
    assert not earlier.exists()


def test_unknown_parts_raise_a_harness_error_that_names_both_nodes(
    tmp_path: Path,
) -> None:
    parts = [Unknown(StateKind.PATHS, f"/srv/{number:02}", "closed") for number in range(41)]
    before = replace(a_state(None, None, parts[0]), node="first")
    after = replace(a_state({TOOL: a_file()}, None, *parts, folder=tmp_path / "x"), node="second")

    with pytest.raises(HarnessError, match="The states of 'first' and 'second'") as caught:
        expect.unchanged(before, after)

    assert not isinstance(caught.value, AssertionError)
    assert caught.value.evidence == tmp_path / "x"
    assert not (tmp_path / "x").exists()
    assert (
        len(re.findall(r"^  path /srv/\d\d: closed$", caught.value.sentence, re.MULTILINE)) == 40
    )


def test_allowed_changes_of_one_part_do_not_hide_another_unknown_part() -> None:
    unknown = (
        Unknown(StateKind.IMAGES, "*", "containerd does not answer"),
        Unknown(StateKind.UNITS, "*", "systemd does not answer"),
    )

    for allow, seen in (
        (AllowedChanges(images=["*"]), "systemd"),
        (AllowedChanges(units=["*"]), "containerd"),
    ):
        with pytest.raises(HarnessError, match=f"{seen} does not answer") as caught:
            expect.unchanged(a_state(), a_state({}, None, *unknown), allow=allow)
        assert caught.value.sentence.count("does not answer") == 1


def test_path_that_is_not_utf8_is_written_to_the_difference_file(tmp_path: Path) -> None:
    name = b"/opt/\xff".decode(errors="surrogateescape")

    message = difference(a_state(), a_state({name: a_file()}, folder=tmp_path))

    assert "1 items differ ('difference-1.txt' has them all)" in message
    whole = (tmp_path / "difference-1.txt").read_bytes()
    assert whole.endswith(b"\n")
    assert b"/opt/" in whole
