"""What is added to the evidence of a machine that is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from harness.evidence.retention import Bundle
from harness.plugin import failure_bundle
from harness.plugin.failure_bundle import finish_bundle
from harness.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


class FakeItem:
    """Plays a failed test."""

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


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the bundles that are removed, of a folder with an old one and the test's own."""
    gone: list[str] = []

    class OldBundle(Bundle):
        @override
        def remove(self) -> None:
            gone.append(self.name)

    bundles = [
        OldBundle(name=name, parts=(), made_s=0.0, size_bytes=1) for name in ("test", "older")
    ]

    def write_archive(test: Path) -> Path:
        archive = test.with_suffix(".tar.zst")
        archive.write_bytes(bytes(3 << 19))
        return archive

    monkeypatch.setattr(failure_bundle, "write_archive", write_archive)
    monkeypatch.setattr(failure_bundle, "bundles_in", lambda _: bundles)
    monkeypatch.setattr(failure_bundle, "beyond_limits", lambda found, **_: list(found))
    return gone


def test_failing_line_has_its_locals_and_old_bundles_go_but_not_the_tests_own(
    tmp_path: Path, removed: list[str]
) -> None:
    folder = tmp_path / "test/node"
    folder.mkdir(parents=True)
    item: Any = FakeItem()

    finish_bundle(item, a_call(ValueError()), Settings(), [folder], run_started_s=0.0)

    text = (tmp_path / "test/traceback.txt").read_text()
    assert text == "locals: True, style: long\n"
    assert (item.config.option.showlocals, item.config.option.tbstyle) == (False, "auto")
    assert removed == ["older"]
    (said,) = item.sections
    assert said.startswith(f"all of it in one file: '{tmp_path}/test.tar.zst' (1.5 MiB)")
    assert "removed 1 older bundles" in said


def test_evidence_that_could_not_be_kept_leaves_no_bundle(
    tmp_path: Path, removed: list[str]
) -> None:
    item: Any = FakeItem()

    finish_bundle(item, a_call(None), Settings(), [tmp_path / "test/node"], run_started_s=0.0)

    assert (item.sections, removed, list(tmp_path.iterdir())) == ([], [], [])
