"""What is added to the kept evidence of a failed test, and which older bundles are removed."""

from __future__ import annotations

import math
import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.evidence.retention import VERSIONS
from harness.plugin import failure_bundle
from harness.plugin.failure_bundle import finish_bundle
from harness.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


class FakeItem:
    """A fake failed test."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(option=SimpleNamespace(showlocals=False, tbstyle="auto"))
        self.sections: list[str] = []

    def repr_failure(self, _excinfo: object) -> str:
        option = self.config.option
        return f"locals: {option.showlocals}, style: {option.tbstyle}"

    def add_report_section(self, _when: str, _key: str, text: str) -> None:
        self.sections.append(text)


def a_call(error: BaseException | None) -> Any:
    raised: Any = (type(error), error, None)
    excinfo = None if error is None else pytest.ExceptionInfo.from_exc_info(raised)
    return SimpleNamespace(when="call", excinfo=excinfo)


def a_bundle(evidence: Path, name: str, made_s: float) -> Path:
    """Write the bundle of a failed test, and return the folder of the test's machine in this bundle."""
    machine = evidence / name / "node"
    machine.mkdir(parents=True)
    (machine / VERSIONS).write_text('{"schema": 1, "harness": "1", "payload": "", "agent": ""}')
    os.utime(evidence / name, (made_s, made_s))
    return machine


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings of a run that keeps only the bundle of the last failure."""

    def write_archive(test: Path) -> Path:
        archive = test.with_name(f"{test.name}.tar.zst")
        archive.write_bytes(bytes(3 << 19))
        return archive

    monkeypatch.setattr(failure_bundle, "write_archive", write_archive)
    return Settings(evidence_folder=tmp_path, bundle_limit_mib=0)


def finish(settings: Settings, machine: Path, *, run_started_s: float = math.inf) -> FakeItem:
    item: Any = FakeItem()
    finish_bundle(item, a_call(ValueError()), settings, [machine], run_started_s=run_started_s)
    return cast("FakeItem", item)


def test_failure_bundle_has_a_traceback_with_locals_and_replaces_older_bundles(
    tmp_path: Path, settings: Settings
) -> None:
    for made_s, name in enumerate(("old", "older"), 1000):
        a_bundle(tmp_path, name, made_s)

    item = finish(settings, a_bundle(tmp_path, "test", 1.0))

    text = (tmp_path / "test/traceback.txt").read_text()
    assert text == "locals: True, style: long\n"
    assert (item.config.option.showlocals, item.config.option.tbstyle) == (False, "auto")
    assert {path.name for path in tmp_path.iterdir()} == {"test", "test.tar.zst"}
    (said,) = item.sections
    assert said.startswith(f"the whole bundle in one file: '{tmp_path}/test.tar.zst' (1.5 MiB)")
    assert "removed 2 older bundles" in said


def test_bundle_of_the_current_run_is_not_removed(tmp_path: Path, settings: Settings) -> None:
    a_bundle(tmp_path, "other", 1000.0)

    item = finish(settings, a_bundle(tmp_path, "test", 1.0), run_started_s=0.0)

    assert (tmp_path / "other").is_dir()
    assert "removed" not in item.sections[0]


def test_new_bundle_has_the_latest_modification_time_although_the_clock_is_behind(
    tmp_path: Path, settings: Settings
) -> None:
    ahead_s = time.time() + 86_400
    for later_s, name in enumerate(("first", "second")):
        a_bundle(tmp_path, name, ahead_s + later_s)

    finish(settings, a_bundle(tmp_path, "test", 1.0))

    assert (tmp_path / "test.tar.zst").stat().st_mtime > ahead_s + 1


def test_no_bundle_is_made_if_no_evidence_was_kept(tmp_path: Path, settings: Settings) -> None:
    item = finish(settings, tmp_path / "test/node")

    assert (item.sections, list(tmp_path.iterdir())) == ([], [])
