"""Commands that accept the archive of a test's evidence, and the command that removes old bundles."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from harness.cli import main
from harness.evidence.archive import write_archive
from suites.unit.timeline.folders import a_node_that_built

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a separate cache and a separate list of machines for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # The test must not see machines that this user keeps.
    monkeypatch.setattr("harness.cli.machines.roster_folder", lambda: tmp_path / "machines")
    return tmp_path / "cache"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    node = a_node_that_built(tmp_path / "evidence/t.py-test/node").write()
    lines = [{"version": 2, "width": 80, "height": 24}, [0.1, "o", "Linux version 6.1\r\n"]]
    (node / "host/serial.cast").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    packed = write_archive(node.parent)
    shutil.rmtree(node.parent)
    return packed


def test_console_in_an_archive_is_played(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--speed=0", str(archive)]) == 0

    assert capsys.readouterr().out == "Linux version 6.1\r\n"


def test_timeline_of_an_archive_is_drawn(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["timeline", str(archive)]) == 0

    assert "build-driver" in capsys.readouterr().out


def test_archive_without_a_saved_machine_cannot_be_resumed(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(archive)]) == 2

    assert "There is no saved machine" in capsys.readouterr().err


def test_gc_lists_and_removes_old_bundles(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "evidence/t.py-test"
    (folder / "node").mkdir(parents=True)
    versions = {"schema": 1, "harness": {}, "payload": "p", "agent": "a"}
    (folder / "node/versions.json").write_text(json.dumps(versions))
    for path in (archive, folder):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    words = ["gc", "--evidence-dir", str(tmp_path / "evidence")]

    assert main([*words, "--dry-run"]) == 0
    assert archive.exists()
    assert main(words) == 0
    assert not archive.exists()
    assert not folder.exists()

    printed = capsys.readouterr().out
    assert f"bundle of 2023-11-14, 0 MiB: '{tmp_path / 'evidence/t.py-test'}'" in printed
    assert "1 bundles" in printed


def test_gc_of_a_folder_that_does_not_exist_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gc", "--evidence-dir", str(tmp_path / "evidnce")]) == 2

    assert f"--evidence-dir: '{tmp_path / 'evidnce'}' is not a folder" in capsys.readouterr().err


def test_gc_keeps_an_archive_without_its_folder(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody copied such an archive there, or another program made it."""
    os.utime(archive, (1_700_000_000, 1_700_000_000))

    assert main(["gc", "--evidence-dir", str(tmp_path / "evidence")]) == 0

    assert archive.exists()
    assert "There is nothing to remove." in capsys.readouterr().out


@pytest.mark.parametrize("command", ["replay", "timeline"])
def test_error_for_an_archive_of_several_machines_says_how_to_choose_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """The message must not refer to the temporary folder of the archive."""
    for name in ("one", "two"):
        node = a_node_that_built(tmp_path / f"evidence/t.py-test/{name}").write()
        (node / "host/serial.cast").write_text('{"version": 2}\n')

    assert main([command, str(write_archive(tmp_path / "evidence/t.py-test"))]) == 2

    said = capsys.readouterr().err
    assert (
        "'t.py-test/one', 't.py-test/two'; unpack the archive, and name the folder of one machine"
        in said
    )
    assert "cache" not in said
