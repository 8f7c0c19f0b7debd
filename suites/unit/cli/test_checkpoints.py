"""The output, the removals and the exit codes of `harness checkpoints`."""

from __future__ import annotations

import datetime as dt
import json
import os
from typing import TYPE_CHECKING

import pytest

from harness.cli import main
from harness.cli.columns import duration, print_columns
from harness.machine.checkpoint.store import Checkpoint, CheckpointStore
from harness.provisioning.wait import Deadline
from harness.settings import Settings
from suites.unit.machine.fake_copy import FakeCopy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.machine.checkpoint.store import CheckpointPlace


def _make(place: CheckpointPlace) -> Mapping[str, str]:
    for path in (place.ram, place.state, place.disk):
        path.write_text(path.name)
    return {}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    """Return the store that the command will read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return CheckpointStore(
        Settings().checkpoint_store,
        limit_mib=100,
        free_bytes=lambda _folder: 1 << 40,
        runner=FakeCopy(),
    )


@pytest.fixture
def two(store: CheckpointStore) -> tuple[Checkpoint, Checkpoint]:
    """Return a checkpoint and a checkpoint made from it, neither in use."""
    deadline = Deadline.after(60)
    with (
        store.use("booted", {}, _make, memory_mib=1, deadline=deadline) as parent,
        store.use("baked", {}, _make, memory_mib=1, parent=parent, deadline=deadline) as child,
    ):
        return parent, child


def test_checkpoints_are_listed_as_text_and_as_json(
    store: CheckpointStore,
    two: tuple[Checkpoint, Checkpoint],
    capsys: pytest.CaptureFixture[str],
) -> None:
    parent, child = two
    with store.use("booted", {}, _make, memory_mib=1, deadline=Deadline.after(60)):
        assert main(["checkpoints", "ls"]) == 0
        text = capsys.readouterr().out
        assert main(["checkpoints", "ls", "--json"]) == 0

    header, first, second = text.splitlines()
    assert header.split() == ["NAME", "KEY", "PARENT", "MIB", "LAST", "USED", "IN", "USE"]
    assert first.split()[:4] == ["baked", child.key[:12], parent.folder.name, "0"]
    assert second.split()[:3] == ["booted", parent.key[:12], "-"]
    assert (first.split()[-2:], second.split()[-2:]) == (["ago", "no"], ["ago", "yes"])
    baked, booted = json.loads(capsys.readouterr().out)
    assert (baked["key"], baked["folder"]) == (child.key, str(child.folder))
    assert (baked["parent"], booted["parent"]) == (parent.folder.name, None)
    assert (baked["in_use"], booted["in_use"], baked["damage"]) == (False, True, None)
    assert dt.datetime.fromisoformat(baked["last_used"]).tzinfo is not None


def test_empty_checkpoint_cache_is_not_an_error(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert store.ls() == []
    assert [main(["checkpoints", action]) for action in ("ls", "verify", "gc")] == [0, 0, 0]
    assert capsys.readouterr().out.startswith("NAME")


def test_exit_code_of_the_verify_command_is_2_and_each_damaged_checkpoint_is_reported(
    two: tuple[Checkpoint, Checkpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    parent, child = two
    assert main(["checkpoints", "verify"]) == 0
    capsys.readouterr()
    os.truncate(parent.ram, 1)

    assert main(["checkpoints", "verify"]) == 2

    sentence = f"The checkpoint's file '{parent.ram}' has 1 bytes, but its manifest states 3."
    streams = capsys.readouterr()
    assert streams.out == f"baked {child.key[:12]}: ok\n"
    assert streams.err == f"harness: {sentence}\n"
    assert main(["checkpoints", "verify", "--json"]) == 2
    listed = json.loads(capsys.readouterr().out)
    assert [each["damage"] for each in listed] == [None, sentence]


def test_gc_command_removes_unused_checkpoints_beyond_the_limit_and_prints_the_reason(
    store: CheckpointStore,
    two: tuple[Checkpoint, Checkpoint],
    capsys: pytest.CaptureFixture[str],
) -> None:
    parent, child = two

    assert main(["checkpoints", "gc"]) == 0
    assert capsys.readouterr().out == ""
    with store.use("booted", {}, _make, memory_mib=1, deadline=Deadline.after(60)):
        assert main(["checkpoints", "gc", "--limit-mib=0"]) == 0
    assert capsys.readouterr().out == (
        f"Removed '{child.folder}' (0 MiB): it is not in use, and the cache was larger than its "
        "limit of 0 MiB.\n"
    )
    assert main(["checkpoints", "gc", "--all", "--json"]) == 0

    (removed,) = json.loads(capsys.readouterr().out)
    assert removed["path"] == str(parent.folder)
    assert not parent.folder.exists()


def test_invalid_checkpoint_size_limit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("--limit-mib=-1", "--limit-mib=many", "--limit-mib=1 --all"):
        with pytest.raises(SystemExit) as caught:
            main(["checkpoints", "gc", *wrong.split()])

        assert caught.value.code == 2
        assert "--limit-mib" in capsys.readouterr().err, wrong


def test_table_escapes_control_characters_and_stays_aligned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_columns(("NAME", "FOR"), [("a\nb\x1b[2J", "x"), ("c", "")])

    header, first, last = capsys.readouterr().out.splitlines()
    assert first.isprintable()
    assert (header.index("FOR"), last) == (first.index("  x") + 2, "c")


def test_age_of_a_checkpoint_is_shown_in_one_unit() -> None:
    shown = {-5: "0 s", 119: "119 s", 120: "2 min", 7199: "119 min", 7200: "2 h", 200000: "2 d"}

    assert {seconds: duration(seconds) for seconds in shown} == shown


@pytest.mark.parametrize(
    ("words", "left"), [(["booted"], ["baked"]), (["baked", "booted"], [])], ids=" ".join
)
@pytest.mark.usefixtures("two")
def test_rm_command_removes_all_given_checkpoints_with_their_descendants(
    store: CheckpointStore, words: list[str], left: list[str]
) -> None:
    """Two checkpoints may have the same name."""
    deadline = Deadline.after(60)
    with store.use("baked", {"other": "1"}, _make, memory_mib=1, deadline=deadline):
        pass
    assert main(["checkpoints", "rm", *words]) == 0

    assert [each.name for each in store.ls()] == left


def test_rm_command_selects_a_checkpoint_by_key_prefix_but_refuses_an_empty_word(
    store: CheckpointStore, two: tuple[Checkpoint, Checkpoint]
) -> None:
    parent, child = two
    assert main(["checkpoints", "rm", ""]) == 2
    assert all(each.folder.exists() for each in two)

    assert main(["checkpoints", "rm", child.key[:12]]) == 0

    assert [each.key for each in store.ls()] == [parent.key]


def test_rm_command_keeps_a_checkpoint_in_use_and_exits_with_2(
    store: CheckpointStore,
    two: tuple[Checkpoint, Checkpoint],
    capsys: pytest.CaptureFixture[str],
) -> None:
    parent, child = two
    deadline = Deadline.after(60)
    with store.use("booted", {}, _make, memory_mib=1, deadline=deadline):
        assert main(["checkpoints", "rm", "booted", "baked"]) == 2

    assert parent.folder.exists()
    assert not child.folder.exists()
    assert "is kept, since a machine uses this checkpoint" in capsys.readouterr().err


def test_rm_command_with_an_unknown_name_removes_nothing_and_lists_known_checkpoints(
    two: tuple[Checkpoint, Checkpoint], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", "rm", "baked", "nope"]) == 2

    assert "'nope'; the known checkpoints are 'baked', 'booted'" in capsys.readouterr().err
    assert all(each.folder.exists() for each in two)
